"""`fleetfoot sweep`, and `--seeds` in processes, as users meet them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from fleetfoot.cli import sweep
from fleetfoot.run.folder import read_recipe
from fleetfoot.run.provenance import read_provenance
from fleetfoot.study import open_study, read_study, runner
from support.command import call, refusal
from support.in_process import Ended, InProcess
from support.trust_recipes import tiny

pytestmark = pytest.mark.usefixtures("elsewhere")
Capsys = pytest.CaptureFixture[str]
RECIPE = "support.trust_recipes:tiny"
LR = ("--over", "agent.critic_optim.lr=1e-5..1e-3:log")
LR_END = ("--over", "agent.critic_optim.lr_end=1e-6..1e-4:log")
GRID = ("--over", "agent.tau=0.05,0.1,0.2", "--over", "num_envs=2,3", "--seeds", "2")


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers run in this process."""
    monkeypatch.setattr(sweep, "Locally", InProcess)
    monkeypatch.setattr(runner, "POLL_SECONDS", 0.0)


class Killed(BaseException):
    """The study is gone; nobody handles it."""


class KilledAfter(InProcess):
    """Dies when it is to start one job more than this."""

    jobs = 2

    def start(self, command: Sequence[str], log: Path) -> Ended:
        if type(self).jobs == 0:
            raise Killed
        type(self).jobs -= 1
        return super().start(command, log)


def test_a_grid_killed_twice_has_the_table_of_one_that_was_not(
    capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, err = call(capsys, "sweep", RECIPE, *GRID, "--folder", "whole")
    assert (code, err) == (0, "")
    assert "6 configurations, 2 seeds each, in whole" in out
    assert "the best 6 of 6 configurations" in out
    monkeypatch.setattr(sweep, "Locally", KilledAfter)
    for _ in range(2):
        KilledAfter.jobs = 2
        with pytest.raises(Killed):
            call(capsys, "sweep", RECIPE, *GRID, "--folder", "killed")
    monkeypatch.setattr(sweep, "Locally", InProcess)
    before = InProcess.started
    assert call(capsys, "sweep", "--folder", "killed")[0] == 0
    assert InProcess.started - before == 2  # the other four were done
    assert Path("whole/sweep.csv").read_text() == Path("killed/sweep.csv").read_text()
    rows = Path("whole/sweep.csv").read_text().splitlines()
    assert rows[0] == "agent.tau,num_envs,state,mean eval/return,seed 0,seed 1"
    assert len(rows) == 7
    assert len(read_provenance("killed")) == 3
    assert read_recipe("whole/runs/agent.tau=0.05,num_envs=3/seed-1").num_envs == 3


def test_compare_reads_a_study_and_groups_by_what_was_swept(capsys: Capsys) -> None:
    pytest.importorskip("rliable")
    args = ("--over", "agent.tau=0.05,0.1", "--over", "gamma=0.9,0.95")
    assert call(capsys, "sweep", RECIPE, *args, "--seeds", "2", "--folder", "s")[0] == 0
    code, out, _ = call(capsys, "compare", "s", "--reps", "100")
    assert code == 0
    groups = [
        group["name"] for group in json.loads(Path("comparison/compare.json").read_text())["groups"]
    ]
    name = tiny().name
    assert groups == [
        f"{name}, agent.tau={tau}, gamma={gamma}"
        for tau in ("0.05", "0.1")
        for gamma in ("0.9", "0.95")
    ]
    assert "note: left out" not in out


def test_a_grid_grows_and_a_search_too(capsys: Capsys) -> None:
    pytest.importorskip("optuna")
    one = ("sweep", RECIPE, "--seeds", "1", "--folder", "s", "--over")
    assert call(capsys, *one, "agent.tau=0.05,0.1")[0] == 0
    assert call(capsys, *one, "agent.tau=0.1,0.2")[0] == 0
    assert len(read_study(Path("s")).points) == 3
    found = ("--search", "optuna", "--folder", "o", "--seeds", "1")
    assert call(capsys, "sweep", RECIPE, "--over", "gamma=0.9..1", "--trials", "2", *found)[0] == 0
    code, out, _ = call(capsys, "sweep", "--folder", "o", "--trials", "3")
    assert (code, "the best 3 of 3" in out) == (0, True)
    study = read_study(Path("o"))
    assert list(study.points) == ["trial-000", "trial-001", "trial-002"]
    assert study.sweep["goal"]["trials"] == 3  # should it be killed now, it goes on to as many


def test_switches_and_lists_can_be_swept(capsys: Capsys) -> None:
    over = ("--over", "topology.overlap=true,false", "--over", "agent.critic_net.hidden=4 4,8")
    assert call(capsys, "sweep", RECIPE, *over, "--seeds", "1", "--folder", "s")[0] == 0
    points = read_study(Path("s")).points.values()
    assert {(one.topology.overlap, one.agent.critic_net.hidden) for one in points} == {  # type: ignore[attr-defined]
        *[(True, (4, 4)), (True, (8,)), (False, (4, 4)), (False, (8,))]
    }


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["sweep"], "which study?"),
        (["sweep", "--folder", "none"], "which recipe?"),
        (["sweep", "--folder", "other"], "was not made by fleetfoot sweep"),
        (["sweep", RECIPE, "--over", "agent.tau=1,2"], "give the study a --folder"),
        (["sweep", RECIPE, "--folder", "new"], "over what?"),
        (["sweep", RECIPE, "--over", "agent.tua=1,2", "--folder", "new"], "--agent.tau"),
        (["sweep", RECIPE, "--over", "agent.tau=x,2", "--folder", "new"], "--agent.tau"),
        (
            ["sweep", RECIPE, "--over", "agent.tau=1", "--agent.tau", "3", "--folder", "new"],
            "both given",
        ),
        (["sweep", RECIPE, "--over", "agent.tau=0.1..1", "--folder", "new"], "--search optuna"),
        (["sweep", RECIPE, "--over", "topology.overlap=maybe", "--folder", "new"], "true or false"),
        (
            ["sweep", RECIPE, "--over", "num_envs=0", "--folder", "new"],
            "num_envs must be at least 1",
        ),
        (
            ["sweep", RECIPE, "--over", "gamma=1", "--seeds", "0", "--folder", "new"],
            "--seeds must be",
        ),
        (
            ["sweep", RECIPE, "--over", "gamma=1", "--trials", "0", "--folder", "new"],
            "--trials must",
        ),
        (["sweep", RECIPE, "--over", "gamma=1", "--folder", "other"], "was not made by"),
        (["sweep", RECIPE, "--over", "gamma=1", "--folder", "full"], "exists and is not a study"),
        (["sweep", "nothing/here", "--over", "gamma=1", "--folder", "new"], "there is no recipe"),
        (["sweep", "--folder", "damaged"], "cannot be read"),
        (
            ["sweep", RECIPE, "--over", "gamma=1 --seed 3", "--folder", "new"],
            "cannot be '1 --seed 3'",
        ),
        (["sweep", RECIPE, "--over", "gamma='", "--folder", "new"], "--over gamma cannot be"),
        (["sweep", "ppo/pendulum", "--over", "batch_size=8,16", "--folder", "new"], "--batch-size"),
        (
            ["sweep", "fast_td3/pendulum", *LR, "--search", "optuna", "--folder", "new"],
            "set --agent.critic-optim.lr-end too",
        ),
        (
            ["sweep", "fast_td3/pendulum", *LR, *LR_END, "--search", "optuna", "--folder", "new"],
            "lr_end is 0.0001, above the 1e-05 where it starts",
        ),
        (["train", RECIPE, "--jobs", "2"], "--jobs is for several --seeds"),
        (["train", RECIPE, "--jobs", "-2", "--seeds", "2"], "--jobs must be 0 or more"),
    ],
)
def test_mistakes_get_one_line(args: list[str], says: str, capsys: Capsys) -> None:
    open_study(Path("other"), {"a": tiny()}, 3)
    for name in ("full", "damaged"):
        Path(name).mkdir()
    Path("full/x").touch()
    Path("damaged/study.json").write_text("{")
    assert says in refusal(capsys, *args)
    assert not Path("new").exists()


def test_a_search_of_learning_rates_is_for_those_that_do_not_rise() -> None:
    args = [*LR, "--search", "optuna", "--folder", "new"]
    made, _ = sweep.begun("fast_td3/pendulum", [*args, "--agent.critic-optim.lr-end", "None"], [])
    assert made.study.sweep["over"] == [LR[1]]


def test_a_study_of_something_else_is_refused(capsys: Capsys) -> None:
    args = ("--over", "agent.tau=0.1", "--seeds", "1", "--folder", "s")
    assert call(capsys, "sweep", RECIPE, *args)[0] == 0
    assert "another gamma" in refusal(capsys, "sweep", RECIPE, *args, "--gamma", "0.5")
    more = ("--search", "optuna")
    assert "another --over or --search" in refusal(capsys, "sweep", RECIPE, *args, *more)
    assert "has 1 seeds" in refusal(capsys, "sweep", RECIPE, *args, "--seeds", "2")
    code, _, err = call(capsys, "sweep", RECIPE, *args, "--metric", "eval/returns")
    assert (code, "Did you mean eval/return" in err) == (2, True)


def test_jobs_are_for_seeds_that_cannot_be_batched(
    capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "fleetfoot.study.seeds.Runner", partial(runner.Runner, launcher=InProcess())
    )
    prioritised = ("--replay.sampler", "ProportionalConfig", "--jobs", "2")
    before = InProcess.started
    code, out, err = call(
        capsys, "train", RECIPE, "--seeds", "3", *prioritised, "--folder", "s", "--no-video"
    )
    assert (code, err) == (0, "")
    assert InProcess.started - before == 3
    assert "3 of 3 seeds | 100%" in out
    assert "mean of 3 seeds: last" in out
    more = ("resume", "s", "--jobs", "2", "--total-vec-steps", "24")
    assert call(capsys, *more)[0] == 0
    assert read_recipe("s/seed-2").total_vec_steps == 24
    assert "all seeds in s are finished" in refusal(capsys, *more)
    assert call(capsys, "train", RECIPE, "--seeds", "2", "--jobs", "2", "--folder", "b")[0] == 0
    assert InProcess.started - before == 6  # batched: no process of its own


def test_help(capsys: Capsys) -> None:
    assert "--search optuna" in call(capsys, "sweep", "--help")[1]
    text = " ".join(call(capsys, "sweep", RECIPE, "--help")[1].replace("│", " ").split())
    assert "--over" in text
    assert "--agent.tau" in text
