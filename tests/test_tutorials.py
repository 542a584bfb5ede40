"""The code of the README, the tutorials and some other pages runs, in the order of the page.

Python runs in one namespace, and `fleetfoot` commands in this process.
Trainings are cut to a few vec steps and films to half a second: what is tested is that the pages work.
Long pages, and blocks after `<!-- slow -->`, run with `pytest -m slow tests/test_tutorials.py`.
"""

from __future__ import annotations

import dataclasses
import importlib
import re
import runpy
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from fleetfoot import api
from fleetfoot.cli import main as cli
from fleetfoot.recipe import Recipe

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^(<!-- slow -->\n)?```(python|console)\n(.*?)^```$", re.M | re.S)
PAGES = [
    "../README.md",
    "environments/atari.md",
    "environments/envpool.md",
    "environments/mujoco.md",
    "guides/own-environment.md",
    "guides/own-robot.md",
    "guides/seeds.md",
    "tutorials/diagnostics.md",
    "tutorials/first-robot.md",
    "tutorials/own-algorithm.md",
    "tutorials/to-a-cluster.md",
    "tutorials/to-hardware.md",
]
# They film, export or start processes: half a minute each. What else they show, README and diagnostics show too.
LONG = [
    "environments/atari.md",
    "environments/envpool.md",
    "guides/own-robot.md",
    "guides/seeds.md",
    "tutorials/first-robot.md",
    "tutorials/to-hardware.md",
]
# The names that the code of a page builds on: those of the example that it shows.
SHOWS = {
    "guides/own-environment.md": "examples/own_environment.py",
    "guides/own-robot.md": "examples/own_robot.py",
}


def blocks(page: str, slow: bool) -> list[tuple[str, str]]:
    found = BLOCK.findall((ROOT / "docs" / page).read_text())
    return [(kind, code) for mark, kind, code in found if slow or not mark]


def shortened(recipe: Recipe) -> Recipe:
    """The same run with few steps, few environments and one evaluation."""
    steps = min(recipe.total_vec_steps, 12)
    pace = dataclasses.replace(recipe.pace, updates_per_vec_step=1, warmup_vec_steps=4)
    return dataclasses.replace(
        recipe,
        total_vec_steps=steps,
        num_envs=min(recipe.num_envs, 8),
        batch_size=min(recipe.batch_size, 32),
        pace=pace,
        evaluation=dataclasses.replace(
            recipe.evaluation, every_vec_steps=steps, episodes=1, max_vec_steps=40
        ),
        log=dataclasses.replace(recipe.log, every_vec_steps=4),
        checkpoint=dataclasses.replace(recipe.checkpoint, every_vec_steps=0),
    )


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Everything that a page may call, made short; and a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for folder in ("examples", "benchmarks"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    train, seeds, resume = api.train, api.train_seeds, api.resume_as
    record, evaluate = api.record_run, api.evaluate_run
    monkeypatch.setattr(api, "train", lambda r, folder=None: train(shortened(r), folder))
    monkeypatch.setattr(
        api, "train_seeds", lambda r, n, folder=None: seeds(shortened(r), n, folder)
    )

    def resume_short(folder: Any, recipe: Recipe, **how: Any) -> Any:
        return resume(folder, dataclasses.replace(recipe, total_vec_steps=20), **how)

    monkeypatch.setattr(api, "resume_as", resume_short)

    def record_short(folder: Any, *args: Any, **how: Any) -> Any:
        return record(folder, *args, **{**how, "seconds": 0.3})

    monkeypatch.setattr(api, "record_run", record_short)

    def evaluate_short(folder: Any, *args: Any, **how: Any) -> Any:
        return evaluate(folder, *args, **{**how, "episodes": 1})

    monkeypatch.setattr(api, "evaluate_run", evaluate_short)


def exit_code(args: list[str]) -> int | str | None:
    try:
        return cli.run(args)
    except SystemExit as ended:  # --help
        return ended.code


def run_console(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for line in re.findall(r"^\$ (.*)$", code, re.M):
        words = shlex.split(line)
        if words[0] == "fleetfoot":
            assert exit_code(words[1:]) == 0, line
        else:
            assert words[0] == "python", f"a test does not know how to run {line!r}"
            monkeypatch.setattr(sys, "argv", words[1:])
            with pytest.raises(SystemExit) as ended:
                runpy.run_path(words[1], run_name="__main__")
            assert ended.value.code == 0, line


def run_python(code: str, page: str, names: dict[str, Any]) -> None:
    exec(compile(code, page, "exec"), names)
    for name in [name for name in names if name.startswith("test_")]:
        names.pop(name)()


def run_page(page: str, slow: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    if page in SHOWS:
        monkeypatch.syspath_prepend(str(ROOT / "examples"))
        names |= vars(importlib.import_module(Path(SHOWS[page]).stem))
    for kind, code in blocks(page, slow):
        if own := re.match(r'"""(\w+\.py): ', code):  # a file that the reader is told to save
            Path(own[1]).write_text(code)
        elif kind == "console":
            run_console(code, monkeypatch)
        elif not re.match(r"(class|@part)\b", code):  # the example itself, which is imported
            run_python(code, page, names)


@pytest.mark.parametrize("page", [page for page in PAGES if page not in LONG])
@pytest.mark.usefixtures("short")
def test_a_tutorial_runs(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run_page(page, False, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("page", [*LONG, "tutorials/to-a-cluster.md"])
@pytest.mark.usefixtures("short")
def test_a_long_tutorial_runs(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run_page(page, True, monkeypatch)


def test_every_tutorial_is_tested() -> None:
    written = {f"tutorials/{path.name}" for path in (ROOT / "docs/tutorials").glob("*.md")}
    assert written <= set(PAGES)
    assert all(blocks(page, True) for page in PAGES)
