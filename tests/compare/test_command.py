"""`fleetfoot compare` as users meet it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from support.command import call
from support.extras import needs
from support.fake_runs import make_run

needs("rliable")


pytestmark = pytest.mark.usefixtures("elsewhere")


@pytest.fixture
def runs(elsewhere: Path) -> Path:
    root = Path("runs")
    for seed in range(3):
        for task in ("walker-run", "dog-run"):
            make_run(root, "bro/x", seed, [100.0, 600.0 + seed], task=task)
            make_run(root, "sac/x", seed, [90.0, 300.0 + seed], task=task)
    return root


def test_pictures_json_and_a_table_at_the_end(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = call(capsys, "compare", str(runs), "--reps", "200", "--folder", "out")
    assert (code, err) == (0, "")
    rows = [line.split() for line in out.splitlines()[-2:]]
    assert rows[0][:3] == ["bro/x", "6", "0.601"]
    assert rows[1][:3] == ["sac/x", "6", "0.301"]
    assert rows[1][-3] == "0.00"  # P(better)
    for name in ("curves.png", "scores.png", "tasks.png"):
        assert (Path("out") / name).read_bytes().startswith(b"\x89PNG")
    first = (Path("out") / "compare.json").read_text()
    made = json.loads(first)
    assert [group["name"] for group in made["groups"]] == ["bro/x", "sac/x"]
    assert made["groups"][0]["iqm"]["value"] == pytest.approx(0.601)
    assert made["tasks"]["dog-run"]["range"] == [0.0, 1000.0]
    call(
        capsys, "compare", "runs/*-seed[012]", "--reps", "200", "--folder", "out"
    )  # a pattern: the same runs
    assert (Path("out") / "compare.json").read_text() == first


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ([], "which runs?"),
        (["run"], "Did you mean runs"),
        (["runs/none*"], "nothing matches"),
        (["empty"], "no folder there has a recipe.json"),
        (["runs", "--by", "agent.tua"], "agent.tau"),
        (["runs", "--baseline", "br/x"], "bro/x"),
        (["runs", "--low", "3"], "--low and --high must be given together"),
        (["runs", "--low", "3", "--high", "3"], "must be below high"),
        (["runs", "--ranges", "empty"], "must hold ranges as JSON"),
        (["runs", "--metric", "success"], "without a success rate"),
        (["runs", "--at", "5"], "there is nothing to compare"),
        (["runs", "--reps", "1"], "--reps must be at least 100"),
        (["runs", "--metrics", "x"], "--metric"),
        (["torn"], "torn/recipe.json cannot be read"),
        (["odd"], "is not a recipe"),
    ],
)
@pytest.mark.usefixtures("runs")
def test_mistakes_get_one_line(
    args: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("empty").mkdir()
    for name, text in (("torn", "{"), ("odd", "[]")):
        Path(name).mkdir()
        (Path(name) / "recipe.json").write_text(text)
    code, out, err = call(capsys, "compare", *args)
    assert (code, out) == (2, "")
    assert err.startswith("fleetfoot: ")
    assert err.count("\n") == 1
    assert says in err


def test_without_the_extra_the_line_names_it(
    runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "rliable", None)
    for name in [name for name in sys.modules if name.startswith("rliable.")]:
        monkeypatch.delitem(sys.modules, name)
    code, _, err = call(capsys, "compare", str(runs))
    assert code == 2
    assert "pip install 'rliable~=" in err
