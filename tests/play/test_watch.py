"""`fleetfoot watch`: read-only, and reloads by itself."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fleetfoot import UserError, api, deploy, export_run
from fleetfoot.play.watcher import Watcher, column, escaped


class Quick(Watcher):
    """Exports in this process, which saves the start of another."""

    def export(self, out: Path) -> None:
        export_run(self.folder, out, which="last", draw=True)


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_the_newest_policy_and_then_the_next(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    before = contents(folder)
    watcher = Quick(folder)
    policy = watcher.newest()
    assert policy is not None
    assert watcher.step == 20
    assert watcher.newest() is None  # nothing new
    assert contents(folder) == before  # it only reads
    api.resume(folder, total_vec_steps=30)
    newer = watcher.newest()
    assert newer is not None
    assert watcher.step == 30
    assert newer.about.graph_sha256 != policy.about.graph_sha256


def test_a_checkpoint_that_is_being_written_is_left_for_the_next_look(
    run: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    pointer = folder / "checkpoints" / "last.json"
    newest = folder / "checkpoints" / json.loads(pointer.read_text().splitlines()[-1])["folder"]
    weights = newest / "state.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    watcher = Quick(folder)
    assert watcher.newest() is None
    assert watcher.problem
    assert "\n" not in watcher.problem
    weights.write_bytes(whole)
    assert isinstance(watcher.newest(), deploy.Policy)
    assert not watcher.problem


def test_an_export_that_keeps_failing_is_tried_less_and_less_often(
    run: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    looks: list[int] = []

    class Failing(Watcher):
        def export(self, out: Path) -> None:
            looks.append(look)
            raise UserError("no such joint")

    watcher = Failing(folder)
    for look in range(100):  # noqa: B007
        assert watcher.newest() is None
        assert watcher.problem == "no such joint"
    assert looks == [0, 1, 3, 7, 15, 31, 63, 95]
    pointer = folder / "checkpoints" / "last.json"
    pointer.write_text(pointer.read_text() + " ")  # a new checkpoint is tried at once
    look = 100
    assert watcher.newest() is None
    assert looks[-1] == 100


def test_it_waits_for_the_first_checkpoint(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    hidden = tmp_path / "hidden"
    (folder / "checkpoints").rename(hidden)
    said: list[str] = []

    def later(seconds: float) -> None:
        hidden.rename(folder / "checkpoints")

    watcher: Any = Quick(folder)
    watcher._closed = SimpleNamespace(wait=later)
    assert isinstance(watcher.wait(said.append), deploy.Policy)
    assert said == [f"waiting for {folder}: it has no checkpoint yet"]


@pytest.mark.slow
def test_a_process_of_its_own_exports(run: Path, tmp_path: Path) -> None:
    watcher = Watcher(run)
    assert isinstance(watcher.newest(), deploy.Policy)
    shutil.copytree(run, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    with pytest.raises(UserError, match="holds no checkpoint"):
        Watcher(tmp_path / "run").export(tmp_path / "out")


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no recipe\.json"):
        Watcher(tmp_path)


def test_a_problem_is_shown_as_text() -> None:
    quoted = escaped("<iframe srcdoc=x>  [a](b)\n_c_ `d`")
    assert quoted == r"\<iframe srcdoc\=x\> \[a\]\(b\) \_c\_ \`d\`"


def test_columns_of_a_log_with_gaps() -> None:
    rows: list[dict[str, Any]] = [
        {"env_steps": 1, "a": 2.0},
        {"env_steps": 2},
        {"env_steps": 3, "a": 4.0, "b": 1.0},
        {"a": 9.0},
        {"env_steps": "x", "a": 1.0},
    ]
    x, y = column(rows, ("b", "a"))
    np.testing.assert_array_equal((x, y), [[1, 3], [2, 4]])
    assert len(column(rows, ("c",))[0]) == 0
