"""Searches by Optuna: a planted optimum, pruning, and going on after a kill."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fleetfoot.cli import sweep
from fleetfoot.errors import UserError
from fleetfoot.recipe import Recipe
from fleetfoot.study import runner
from fleetfoot.study.folder import Study, open_study, read_study
from fleetfoot.study.jobs import Job
from fleetfoot.study.search import Goal, Search
from fleetfoot.study.space import axes_of
from fleetfoot.study.table import write_table
from support.command import call
from support.extras import needs
from support.in_process import InProcess
from support.runs import small

needs("optuna")
pytestmark = pytest.mark.usefixtures("elsewhere")

STEPS = (10, 20, 30, 40)


def searching(
    folder: Path, over: Sequence[str] = ("gamma=0..1",), seeds: int = 1, **goal: Any
) -> Search:
    def make(settings: dict[str, str]) -> Recipe:
        return small(total_vec_steps=STEPS[-1], gamma=float(settings["gamma"]))

    study = read_study(folder) if folder.exists() else open_study(folder, {}, seeds)
    return Search(study, axes_of(over), Goal(**goal), make)


def write_log(run: Path, values: Sequence[float], metric: str = "eval/return") -> None:
    lines = [{"vec_steps": step, metric: v} for step, v in zip(STEPS, values, strict=False)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def trained(search: Search, job: Job, until: int = len(STEPS)) -> None:
    """As far as a worker would have come. The best gamma is 0.3."""
    for run in job.runs:
        height = -((job.recipe.gamma - 0.3) ** 2)
        write_log(run, [height * 4 / (1 + k) for k in range(until)])


def finished(search: Search) -> None:
    while (job := search.next()) is not None:
        trained(search, job)
        search.ended(job, "finished")


def test_it_finds_the_best_and_repeats_itself() -> None:
    one = searching(Path("one"), trials=25, prune=False)
    finished(one)
    assert len(one.study.points) == 25
    best = one.best()
    assert best is not None
    assert abs(float(one.study.settings[best]["gamma"]) - 0.3) < 0.05
    two = searching(Path("two"), trials=25, prune=False)
    finished(two)
    assert two.study.settings == one.study.settings


def test_killed_and_continued_it_makes_the_same_trials() -> None:
    """Killed between trials, and in the middle of one."""
    whole = searching(Path("whole"), trials=20)
    finished(whole)
    killed = searching(Path("killed"), trials=20)
    for number in range(14):
        job = killed.next()
        assert job is not None
        trained(killed, job)
        if number == 13:
            trained(killed, job, until=2)
            list(killed.unwanted([job]))
            break
        killed.ended(job, "finished")
        if number == 6:
            killed = searching(Path("killed"), trials=20)
    killed = searching(Path("killed"), trials=20)
    assert [job.name for job in killed.waiting] == ["trial-013"]
    finished(killed)
    assert killed.study.settings == whole.study.settings
    assert killed.study.sweep == whole.study.sweep
    assert write_table(killed.study, "eval/return")[1].read_text() == (
        write_table(whole.study, "eval/return")[1].read_text()
    )


def test_what_looks_bad_is_pruned_and_stays_so() -> None:
    search = searching(Path("s"), trials=8)
    for _ in range(6):  # the rule needs five to begin with
        job = search.next()
        assert job is not None
        write_log(job.runs[0], [1.0, 2.0, 3.0, 4.0])
        assert list(search.unwanted([job])) == []
        search.ended(job, "finished")
    job = search.next()
    assert job is not None
    write_log(job.runs[0], [1.0, 0.0])
    assert [one.name for one in search.unwanted([job])] == ["trial-006"]
    assert list(search.unwanted([job])) == []  # nothing new
    write_log(job.runs[0], [1.0, 0.0, 9.0])  # it went on until it was stopped
    search.ended(job, "stopped")
    assert search.study.sweep["trials"]["trial-006"] == ["pruned", 20]
    rows, path = write_table(search.study, "eval/return")
    assert [row.state for row in rows] == ["complete"] * 6 + ["pruned"]
    assert path.read_text().splitlines()[-1].endswith(",pruned,,")
    again = searching(Path("s"), trials=8)
    values = again.search.trials[6].intermediate_values
    assert (again.search.trials[6].state.name, values) == ("PRUNED", {10: 1.0, 20: 0.0})


def test_seeds_count_together() -> None:
    search = searching(Path("s"), seeds=2, trials=1)
    job = search.next()
    assert job is not None
    write_log(job.runs[0], [1.0, 2.0, 3.0, 4.0])
    write_log(job.runs[1], [3.0, 4.0])
    assert search._curve(job) == {10: 2.0, 20: 3.0}
    write_log(job.runs[1], [3.0, 4.0, 5.0, 6.0])
    search.ended(job, "finished")
    assert search.search.trials[0].value == 5.0


def test_a_failure_is_no_end() -> None:
    search = searching(Path("s"), trials=2)
    job = search.next()
    assert job is not None
    search.ended(job, "failed")
    assert search.best() is None
    again = searching(Path("s"), trials=2)
    assert [trial.state.name for trial in again.search.trials] == ["FAIL"]
    finished(again)
    assert again.best() == "trial-001"


def test_whole_numbers_choices_and_the_smallest() -> None:
    over = ["num_envs=4..64:log", "gamma=0.1,0.9"]

    def make(settings: dict[str, str]) -> Recipe:
        return small(num_envs=int(settings["num_envs"]), gamma=float(settings["gamma"]))

    study = open_study(Path("s"), {}, 1)
    goal = Goal("loss", minimize=True, trials=6)
    search = Search(study, axes_of(over), goal, make, frozenset({"num_envs"}))
    while (job := search.next()) is not None:
        write_log(job.runs[0], [1.0, float(job.recipe.num_envs)], "loss")
        search.ended(job, "finished")
    envs = {name: recipe.num_envs for name, recipe in search.study.points.items()}
    assert envs[search.best() or ""] == min(envs.values())
    assert {one["gamma"] for one in search.study.settings.values()} <= {"0.1", "0.9"}
    with pytest.raises(UserError, match="whole ends"):
        Search(study, axes_of(["num_envs=4.5..64"]), goal, make, frozenset({"num_envs"}))


def test_what_no_search_wrote_is_refused() -> None:
    search = searching(Path("s"), trials=2)
    finished(search)
    study: Study = search.study
    with pytest.raises(UserError, match="not a trial of this search"):
        searching(Path("s"), over=["batch_size=1..2"])
    for trials in (
        {"trial-000": ["odd", 1]},
        {"trial-000": 3},
        [1],
        {"trial-000": ["pruned", "x"]},
    ):
        replace(study, sweep={"trials": trials}).write()
        with pytest.raises(UserError, match="cannot be read"):
            searching(Path("s"), trials=2)
    job = searching_metric()
    assert "Did you mean eval/return" in job


def searching_metric() -> str:
    search = searching(Path("m"), trials=1, metric="eval/returns")
    job = search.next()
    assert job is not None
    write_log(job.runs[0], [1.0])
    with pytest.raises(UserError) as caught:
        search.ended(job, "finished")
    return str(caught.value)


@pytest.mark.slow
def test_a_planted_optimum_takes_fewer_trials_than_the_grid(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the tensor pendulum, through the command. The grid is 7 x 7 over the same ranges."""
    monkeypatch.setattr(sweep, "Locally", InProcess)
    monkeypatch.setattr(runner, "POLL_SECONDS", 0.0)
    base = ("sweep", "support.planted:planted", "--seeds", "1")
    gains = "gain=1e-4,4.64e-4,2.15e-3,1e-2,4.64e-2,0.215,1"
    dampings = "damping=0,0.167,0.333,0.5,0.667,0.833,1"
    axes = ("--over", f"agent.{gains}", "--over", f"agent.{dampings}")
    assert call(capsys, *base, *axes, "--folder", "grid")[0] == 0
    ranges = ("--over", "agent.gain=1e-4..1:log", "--over", "agent.damping=0..1")
    options = ("--search", "optuna", "--trials", "30", "--folder", "found")
    assert call(capsys, *base, *ranges, *options)[0] == 0
    grid = [row.mean for row in write_table(read_study(Path("grid")), "eval/return")[0]]
    rows = write_table(read_study(Path("found")), "eval/return")[0]
    found = [row.mean for row in rows if row.results]
    needed = next(k for k, row in enumerate(rows, 1) if row.results and row.mean >= max(grid))
    print(
        f"grid: {len(grid)} trials, best {max(grid):.1f}; optuna: {max(found):.1f}, {needed} trials"
    )
    assert len(grid) == 49
    assert needed <= 30 < len(grid)
    assert any(row.state == "pruned" for row in rows)
