"""`fleetfoot scale` as users meet it."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fleetfoot import recipes
from fleetfoot.cli import scale_run
from fleetfoot.cli.form import parse_recipe
from fleetfoot.cli.main import main
from fleetfoot.cli.train import Options
from fleetfoot.data import Continuous, EnvSpec
from fleetfoot.errors import UserError
from fleetfoot.recipe import Recipe
from fleetfoot.run.folder import load_own_parts, write_recipe, write_spec
from fleetfoot.scale import grid
from fleetfoot.scale.table import read_table
from fleetfoot.study import open_study
from support.command import call
from support.extras import needs
from support.planted_study import Planted, on_law
from support.runs import small

needs("scipy")

RANGE = ("--low", "0", "--high", "1000", "--reps", "5")


pytestmark = pytest.mark.usefixtures("elsewhere")


def planted_table(path: Path) -> Path:
    planted = Planted(noise=0.05)
    keys = on_law(planted, (0.25, 0.5, 1.0, 2.0, 4.0))
    return planted.table(keys, evaluations=100).write(path)


@pytest.fixture
def table(elsewhere: Path) -> Path:
    return planted_table(Path("table.csv"))


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `scale fit` writes, to be copied."""
    place = tmp_path_factory.mktemp("fitted")
    table = planted_table(place / "table.csv")
    with pytest.raises(SystemExit, match="0"):
        main(["scale", "fit", str(table), *RANGE, "--folder", str(place / "fit")])
    return place / "fit"


def make_run(folder: Path, recipe: Recipe, returns: list[float]) -> None:
    """A run folder as training leaves it, without the training."""
    import torch

    folder.mkdir(parents=True)
    write_recipe(folder, recipe)
    write_spec(
        folder, EnvSpec("pendulum", recipe.num_envs, (3,), Continuous(1), torch.device("cpu"))
    )
    lines = [
        {
            "vec_steps": 10 * k,
            "env_steps": 80 * k,
            "updates": k,
            "train_seconds": 1.0 * k,
            "eval/return": value,
        }
        for k, value in enumerate(returns, 1)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_fit_writes_tables_pictures_and_a_page_and_repeats_itself(
    table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = call(capsys, "scale", "fit", str(table), *RANGE)
    assert (code, err) == (0, "")
    assert out.startswith(
        "Scaling study of sac/pendulum\n8 seeds at update-to-data ratios 0.25, 0.5, 1, 2, 4.\n"
    )
    assert "Ratio 4, predicted from the smaller ones: wrong by" in out
    for name in ("curves", "laws", "frontier", "learner"):
        assert Path(f"fit/{name}.png").read_bytes().startswith(b"\x89PNG")
    made = json.loads(Path("fit/fit.json").read_text())
    assert made["r2"] > 0.99
    assert [law["threshold"] for law in made["laws"]][::9] == pytest.approx([200, 800])
    assert Path("fit/evaluations.csv").read_bytes() == table.read_bytes()
    assert len(Path("fit/crossings.csv").read_text().splitlines()) == 6
    first = Path("fit/fit.json").read_text()
    call(capsys, "scale", "fit", "fit/evaluations.csv", *RANGE, "--folder", "again")
    assert Path("again/fit.json").read_text() == first


def test_suggestions_are_options_that_train_takes(
    fitted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(fitted, "fit")
    laws = json.loads(Path("fit/fit.json").read_text())
    load_own_parts()
    ratios = {}
    for name, value in (("budget", 3e12), ("seconds", 100.0), ("env-steps", 60_000.0)):
        code, out, err = call(capsys, "scale", "suggest", "fit", f"--{name}", str(value))
        assert (code, err) == (0, "")
        first, command = out.splitlines()
        words = shlex.split(command)
        assert words[1:3] == ["train", "sac/pendulum"]
        recipe, _ = parse_recipe(
            recipes.get(words[2]), Options, words[3:], "fleetfoot", fixed=("name",)
        )
        ratios[name] = grid.utd_of(recipe)
        assert 0.25 <= ratios[name] <= 4.0
        assert f"ratio {ratios[name]:.3g}:" in first
        env_steps = float(first.split(" env steps")[0].rsplit(" ", 1)[1].replace(",", ""))
        assert recipe.total_vec_steps * recipe.num_envs == pytest.approx(env_steps, abs=11)
        if name == "budget":
            batch = (
                10 ** laws["batch"]["log10_at_one"]["pendulum"]
                * ratios[name] ** laws["batch"]["slope"]
            )
            per_step = 10 * ratios[name] * batch * laws["params"] + laws["delta"]
            assert recipe.batch_size == pytest.approx(batch, abs=8)
            assert env_steps * per_step == pytest.approx(value, rel=0.01)
    assert ratios["env-steps"] < 4.0  # no more updates than so much data calls for


def test_a_study_has_its_own_recipe_in_its_suggestions(
    fitted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What it changed besides the axes is stated, and the fitted laws can be followed by new runs."""
    base = recipes.get("sac/pendulum")
    changed = replace(base, num_envs=20, gamma=0.9, agent=replace(base.agent, tau=0.01))  # type: ignore[type-var]
    open_study(Path("study"), {"a": changed}, 8)
    shutil.copytree(fitted, "study/fit")
    code, out, _ = call(capsys, "scale", "suggest", "study", "--seconds", "100")
    words = out.splitlines()[1].split()
    assert code == 0
    for flag, value in (("--num-envs", "20"), ("--gamma", "0.9"), ("--agent.tau", "0.01")):
        assert words[words.index(flag) + 1] == value


def test_new_runs_can_follow_the_laws(fitted: Path) -> None:
    """The batch size of the planted study is 256 / sqrt(ratio), its learning rate 1e-3 ratio^-0.3."""
    shutil.copytree(fitted, "study/fit")
    options = scale_run.Options(folder=Path("study"))
    settings = scale_run.along_the_laws(recipes.get("sac/pendulum"), (1.0, 16.0), options)
    assert [(one.utd, one.batch) for one in settings] == [(1.0, 256), (16.0, 64)]
    assert [one.lr for one in settings] == pytest.approx([1e-3, 1e-3 * 16**-0.3], rel=0.01)
    with pytest.raises(UserError, match="leave out --batch and --lr"):
        scale_run.along_the_laws(
            recipes.get("sac/pendulum"), (1.0,), scale_run.Options(folder=Path("study"), batch=(8,))
        )
    with pytest.raises(UserError, match="no laws for point_mass: its tasks are pendulum"):
        scale_run.along_the_laws(recipes.get("fast_td3/point-mass"), (1.0,), options)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["fits"], "Did you mean fit"),
        (["fit"], "which study?"),
        (["fit", "tablee.csv"], "Did you mean table.csv"),
        (["fit", "empty"], "empty is empty: there is no run in it"),
        (["fit", "text.csv"], "not a table of a study: it has no column task"),
        (["fit", "none.csv"], "it holds no evaluation"),
        (["fit", "torn.csv"], "torn.csv cannot be read"),
        (
            ["fit", "one.csv"],
            "at least 2 seeds of each configuration, 8 are usual; there is one: pendulum, ratio 0.25",
        ),
        (["fit", "twice.csv"], "two runs of the same seed"),
        (
            ["fit", "table.csv", *RANGE, "--thresholds", "1500"],
            "no configuration reached a threshold",
        ),
        (["fit", "table.csv", "--low", "3"], "--low and --high must be given together"),
        (["fit", "table.csv", "--ranges", "empty"], "must hold ranges as JSON"),
        (["suggest"], "which study?"),
        (
            ["suggest", "empty", "--seconds", "5"],
            "has not been fitted yet: fleetfoot scale fit empty",
        ),
        (["suggest", "empty"], "give one of --budget (FLOPs), --seconds and --env-steps"),
        (["suggest", "empty", "--seconds", "5", "--budget", "3"], "give one of"),
        (["suggest", "bad", "--seconds", "5"], "fit.json is not a fit"),
        (["run"], "give the study a --folder"),
        (["run", "--folder", "new"], "which recipe?"),
        (["run", "sac/pendulum", "--folder", "new"], "which update-to-data ratios?"),
        (["run", "sac/pendulm", "--folder", "new"], "Did you mean sac/pendulum"),
        (
            ["run", "sac/pendulum", "--utd", "1", "--folder", "empty/../table.csv"],
            "exists and is not a study",
        ),
        (
            ["run", "sac/pendulum", "--utd", "1", "--seeds", "1", "--folder", "new"],
            "--seeds must be at least 2, not 1",
        ),
        (
            ["run", "sac/pendulum", "--utd", "1", "--updates", "1", "--folder", "new"],
            "set the same thing",
        ),
        (
            ["run", "sac/pendulum", "fast_td3/pendulum", "--utd", "1", "--folder", "new"],
            "a study has one algorithm",
        ),
        (["run", "ppo/pendulum", "--utd", "1", "--folder", "new"], "learns from rollouts"),
        (["run", "sac/pendulum", "--utd", "-1", "--folder", "new"], "--utd must be above 0"),
        (["run", "sac/pendulum", "--utd", "x", "--folder", "new"], "--utd"),
        (
            ["run", "sac/pendulum", "--utd", "1", "--fitted", "--folder", "new"],
            "has not been fitted yet",
        ),
    ],
)
def test_mistakes_get_one_line(
    table: Path, args: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("empty").mkdir()
    Path("bad").mkdir()
    Path("bad/fit.json").write_text('{"ratios": 3}')
    head, *rows = table.read_text().splitlines()
    Path("text.csv").write_text("a,b\n1,2\n")
    Path("none.csv").write_text(head + "\n")
    Path("torn.csv").write_text(f"{head}\n{rows[0]}\n{rows[1][:30]}\n")
    Path("one.csv").write_text(
        "\n".join([head, *(row for row in rows if row.split(",")[7] == "0")])
    )
    double = [row.replace("sac/pendulum", "sac/other") for row in rows[:100]]
    Path("twice.csv").write_text("\n".join([head, *rows, *double]))
    code, out, err = call(capsys, "scale", *args)
    assert (code, out) == (2, "")
    assert err.startswith("fleetfoot: ")
    assert err.count("\n") == 1
    assert says in err
    assert not Path("new").exists()


def test_too_small_a_budget_is_refused(fitted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(fitted, "fit")
    for name, unit in (("budget", "FLOPs"), ("seconds", "seconds"), ("env-steps", "env steps")):
        code, _, err = call(capsys, "scale", "suggest", "fit", f"--{name}", "0.5")
        assert code == 2
        assert f"0.5 {unit} are too few: the lowest score of this study, 200, needs" in err


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"gamma": 0.5}, "sac/pendulum differ in gamma (0.99 and 0.5), which is not an axis"),
        ({"num_envs": 4}, "differ in num_envs (8 and 4)"),
        (
            {"agent": recipes.get("fast_td3/pendulum").agent},
            "several algorithms, SACConfig (sac/pendulum) and FastTD3",
        ),
    ],
)
def test_mixed_recipes_are_refused(
    change: dict[str, Any], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = small("sac/pendulum")
    make_run(Path("mixed/a/seed-0"), recipe, [1.0])
    make_run(Path("mixed/b/seed-0"), replace(recipe, **change), [1.0])
    code, _, err = call(capsys, "scale", "fit", "mixed")
    assert code == 2
    assert says in err
    assert err.count("\n") == 1


def test_a_table_is_read_from_run_folders(capsys: pytest.CaptureFixture[str]) -> None:
    recipe = small("sac/pendulum", total_vec_steps=40)
    for seed in (0, 1):
        for utd in (0.5, 2.0):
            point = grid.apply(
                replace(recipe, seed=seed), grid.Setting(utd=utd, batch=8, lr=1e-3, width=2)
            )
            make_run(Path(f"study/{utd}/seed-{seed}"), point, [1.0, 2.0, 3.0])
    make_run(Path("study/later/seed-0"), recipe, [])  # begun, and not evaluated: left out
    table = read_table(Path("study"))
    keys = sorted(table.groups(), key=lambda key: key.utd)
    assert [(key.task, key.utd, key.batch, key.lr) for key in keys] == [
        ("pendulum", 0.5, 8, 1e-3),
        ("pendulum", 2.0, 8, 1e-3),
    ]
    # two critics of 3 + 1 inputs and one hidden layer of 32
    assert {key.params for key in keys} == {2 * ((4 + 1) * 32 + 32 + 1)}
    assert table.notes[0].startswith(
        "5 runs have not made all their steps, study/0.5/seed-0 has made 75%"
    )
    assert [run.env_steps.tolist() for run in table.runs] == [[80.0, 160.0, 240.0]] * 4
    path = table.write(Path("table.csv"))
    assert read_table(path).write(Path("again.csv")).read_bytes() == path.read_bytes()
    code, _, err = call(capsys, "scale", "fit", "study")
    assert (code, "at least 3 update-to-data ratios" in err) == (2, True)


@pytest.mark.parametrize("package", ["scipy", "matplotlib"])
def test_without_the_extra_the_line_names_it(
    package: str, table: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    code, _, err = call(capsys, "scale", "fit", str(table))
    assert code == 2
    assert "pip install 'scipy>=" in err
    assert err.count("\n") == 1


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    for args, word in (
        ([], "scale fit STUDY"),
        (["run", "--help"], "--folder STUDY"),
        (["fit", "--help"], "--delta"),
    ):
        code, out, _ = call(capsys, "scale", *args)
        assert code == 0
        assert word in out
