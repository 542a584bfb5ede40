"""Comparing runs: aggregates by hand, intervals against all resamples there are, and runs that do not fit together."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fleetfoot.compare import Ask, Bootstrap, Comparison, compare, find, read
from fleetfoot.compare.intervals import (
    estimate,
    improvement,
    interquartile_mean,
    optimality_gap,
    seeded,
)
from fleetfoot.compare.ranges import known_range
from fleetfoot.errors import UserError
from support.extras import needs
from support.fake_runs import make_run

needs("rliable")

QUICK = Bootstrap(reps=400)


def compared(root: Path, **ask: Any) -> Comparison:
    fields: dict[str, Any] = {"bootstrap": QUICK}
    return compare([read(folder) for folder in find([str(root)])], Ask(**(fields | ask)))


def test_interquartile_mean_by_hand() -> None:
    assert interquartile_mean(np.array([8.0, 1, 7, 2, 6, 3, 5, 4])).tolist() == [4.5]
    assert interquartile_mean(np.array([0.0, 10]), np.array([2.0, 4])).tolist() == [3.0]
    assert interquartile_mean(np.array([[0.0, 5], [2, 5], [4, 5], [9, 5]])).tolist() == [3.0, 5.0]


@pytest.mark.parametrize("count", range(1, 10))
def test_interquartile_mean_and_gap_are_those_of_rliable(count: int) -> None:
    from rliable import metrics

    scores = np.random.default_rng(count).uniform(0, 1.5, (count, 3))
    tasks = list(scores.T)
    assert interquartile_mean(*tasks)[0] == pytest.approx(metrics.aggregate_iqm(scores))
    assert optimality_gap(*tasks)[0] == pytest.approx(metrics.aggregate_optimality_gap(scores))


def test_optimality_gap_by_hand() -> None:
    assert optimality_gap(np.array([0.5, 2.0]), np.array([0.3, 1.0]))[0] == pytest.approx(0.3)


def test_probability_of_improvement_by_hand() -> None:
    """1 wins nothing, 2 ties twice, 3 wins twice: 3 of 9. The second task is won altogether."""
    ours = [np.array([1.0, 2, 3]), np.array([5.0, 6])]
    theirs = [np.array([2.0, 2, 4]), np.array([1.0, 2, 3])]
    assert improvement(ours[:1], theirs[:1])[0] == pytest.approx(3 / 9)
    assert improvement(ours, theirs)[0] == pytest.approx((3 / 9 + 1) / 2)
    assert improvement(theirs, ours)[0] == pytest.approx(1 - (3 / 9 + 1) / 2)
    from rliable import metrics

    x, y = np.random.default_rng(0).normal(size=(2, 5, 3))
    wanted = metrics.probability_of_improvement(x, y)
    assert improvement(list(x.T), list(y.T))[0] == pytest.approx(wanted)


def test_intervals_are_quantiles_over_all_resamples() -> None:
    """Four runs of one task and two of another have 4^4 * 2^2 resamples, each equally likely."""
    one, two = np.array([0.0, 1.0, 1.7, 3.1]), np.array([10.0, 11.3])
    means = [
        interquartile_mean(np.array(a), np.array(b))[0]
        for a in itertools.product(one, repeat=4)
        for b in itertools.product(two, repeat=2)
    ]
    found = estimate(Bootstrap(reps=20_000), interquartile_mean, [one, two])
    assert found.value == interquartile_mean(one, two)[0]
    assert found.interval == pytest.approx(np.quantile(means, [0.025, 0.975]), abs=0.05)


def numpy_state() -> Any:
    state: Any = np.random.get_state()
    return state[1]


def test_the_seed_decides_and_numpy_is_left_alone() -> None:
    sample = [np.random.default_rng(0).normal(size=7)]
    before = numpy_state()
    first, again, other = (
        estimate(Bootstrap(200, seed), interquartile_mean, sample) for seed in (3, 3, 4)
    )
    assert first == again != other
    assert np.array_equal(before, numpy_state())
    with pytest.raises(KeyError), seeded(0):
        raise KeyError
    assert np.array_equal(before, numpy_state())


def test_two_groups_of_one_task(tmp_path: Path) -> None:
    for seed, last in enumerate([10.0, 20.0, 30.0, 100.0]):
        make_run(tmp_path, "a/pendulum", seed, [0.0, last])
        make_run(tmp_path, "b/pendulum", seed, [0.0, last + 5.0], seconds=2.0)
    made = compared(tmp_path)
    a, b = made.groups
    assert (a.name, b.name, made.baseline) == ("a/pendulum", "b/pendulum", "a/pendulum")
    assert not made.normalised
    assert (a.iqm.value, b.iqm.value) == (25.0, 30.0)
    assert a.iqm.interval is not None
    assert a.iqm.interval[0] < 25 < a.iqm.interval[1]
    assert a.optimality_gap is a.improvement is None
    # 15 beats 10, 25 beats two, 35 three, 105 four
    assert b.improvement is not None
    assert b.improvement.value == 10 / 16
    steps, seconds = b.curves["env_steps"], b.curves["train_seconds"]
    assert (steps.x, steps.y) == ([40.0, 80.0], [0.0, 30.0])
    assert (seconds.x[0], seconds.x[-1], seconds.y[-1]) == (2.0, 4.0, 30.0)
    assert steps.low is not None
    assert steps.low[-1] == pytest.approx(b.iqm.interval[0], abs=8)  # type: ignore[index]
    assert any("no optimality gap" in note for note in made.notes)


def test_scores_are_normalised_per_task(tmp_path: Path) -> None:
    for seed in range(2):
        make_run(tmp_path, "a/run", seed, [500.0], task="walker-run")
        make_run(tmp_path, "a/reach", seed, [3.0], task="reach", success=[0.25])
        make_run(tmp_path, "a/own", seed, [-10.0], task="own")
    made = compared(tmp_path, ranges={"own": (-20.0, 20.0)})
    (a,) = made.groups
    assert a.name == "a"  # one recipe per task: the family is the group
    got = {task: list(of.values()) for task, of in a.scores.items()}
    assert got == {"walker-run": [0.5] * 2, "reach": [0.25] * 2, "own": [0.25] * 2}
    assert made.tasks["reach"].metric == "success"
    assert a.optimality_gap is not None
    assert a.optimality_gap.value == pytest.approx(2 / 3)
    (a,) = compared(tmp_path, everywhere=(0.0, 10.0)).groups
    assert list(a.scores["reach"].values()) == [0.25] * 2  # a rate is a rate
    (a,) = compared(tmp_path, metric="return", everywhere=(0.0, 10.0)).groups
    assert list(a.scores["reach"].values()) == [0.3] * 2


def test_without_known_ranges_several_tasks_are_scaled_by_what_was_seen(tmp_path: Path) -> None:
    for task, values in (("x", [0.0, 10.0]), ("y", [100.0, 300.0])):
        make_run(tmp_path, "a/it", 0, values, task=task)
        make_run(tmp_path, "b/it", 0, [values[0], sum(values) / 2], task=task)
    made = compared(tmp_path)
    assert [list(of.values()) for of in made.groups[0].scores.values()] == [[1.0], [1.0]]
    assert [list(of.values()) for of in made.groups[1].scores.values()] == [[0.5], [0.5]]
    assert sum("no known range" in note for note in made.notes) == 2
    assert made.groups[0].iqm.interval is None  # one seed
    assert any(note.startswith("only one seed") for note in made.notes)


def test_unequal_lengths_are_compared_at_the_shortest(tmp_path: Path) -> None:
    make_run(tmp_path, "a/it", 0, [1.0, 2.0, 3.0, 4.0], task="t")
    make_run(tmp_path, "b/it", 0, [8.0], task="t", every=15)
    made = compared(tmp_path)
    assert made.tasks["t"].at_env_steps == 60.0
    assert [group.iqm.value for group in made.groups] == [1.5, 8.0]  # between two evaluations
    assert any("compared after 60 env steps" in note for note in made.notes)
    at = compared(tmp_path, at=120)
    assert [(group.name, group.iqm.value) for group in at.groups] == [("a/it", 3.0)]


def test_unfinished_runs_and_runs_without_evaluations(tmp_path: Path) -> None:
    make_run(tmp_path, "a/it", 0, [1.0, 2.0])
    make_run(tmp_path, "a/it", 1, [5.0], total=20)
    make_run(tmp_path, "a/it", 2, [])
    made = compared(tmp_path)
    assert len(made.groups[0].scores["pendulum"]) == 1
    assert any("fewer steps than its recipe asks for: " in note for note in made.notes)
    assert any(
        "no evaluations yet: " in note and "seed2" in note and "seed1" not in note
        for note in made.notes
    )
    kept = compared(tmp_path, unfinished=True)
    assert list(kept.groups[0].scores["pendulum"].values()) == [1.0, 5.0]


def test_groups_by_name_and_by_field(tmp_path: Path) -> None:
    make_run(tmp_path, "sac/ln", 0, [1.0])
    make_run(tmp_path, "sac/none", 0, [2.0])
    make_run(tmp_path, "sac/none", 1, [3.0], agent={"part": "SACConfig", "tau": 0.5})
    made = compared(tmp_path)
    assert [group.name for group in made.groups] == [
        "sac/ln",
        "sac/none, agent=FastTD3Config",
        "sac/none, agent=SACConfig",
    ]
    by = compared(tmp_path, by=("agent.tau",))
    assert [group.name for group in by.groups] == ["agent.tau=0.1", "agent.tau=0.5"]
    assert any("seed 0 more than once" in note for note in by.notes)
    names = [group.name for group in compared(tmp_path, by=("agent", "name")).groups]
    assert names[-1] == "agent=SACConfig, sac/none"
    with pytest.raises(UserError, match=r"agent\.tow.*agent\.tau"):
        compared(tmp_path, by=("agent.tow",))


def test_two_agents_of_one_name_are_told_apart_and_so_are_their_settings(tmp_path: Path) -> None:
    """Fields that only one class has, or that have another default there, are not named beside the class."""
    td3, sac = {"part": "FastTD3Config", "tau": 0.1}, {"part": "FastSACConfig", "tau": 0.2}
    for seed in (0, 1):
        for place, agent in (("td3", td3 | {"noise": 1.0}), ("sac", sac | {"alpha": 3})):
            make_run(tmp_path / place, "a/it", seed, [1.0], agent=agent)
    names = [group.name for group in compared(tmp_path).groups]
    assert names == ["a/it, agent=FastSACConfig", "a/it, agent=FastTD3Config"]
    make_run(tmp_path / "more", "a/it", 0, [1.0], agent=sac | {"alpha": 3.0, "tau": 0.5})
    names = [group.name for group in compared(tmp_path).groups]
    assert "a/it, agent=FastSACConfig, agent.tau=0.5" in names
    assert len(names) == 3  # 3 and 3.0 are the same


def test_what_does_not_change_learning_makes_no_group(tmp_path: Path) -> None:
    make_run(tmp_path / "x", "a/it", 0, [1.0], threads=1, device="cpu", execution="eager")
    make_run(tmp_path / "y", "a/it", 1, [1.0], threads=4, device="cuda", execution="captured")
    assert [group.name for group in compared(tmp_path).groups] == ["a/it"]


def test_settings_of_a_family_on_several_tasks(tmp_path: Path) -> None:
    """What differs between tasks by design is no difference; what differs within a task is."""
    for task, v_max in (("x", 10), ("y", 20)):
        for tau in (0.1, 0.2):
            agent = {"part": "FastTD3Config", "tau": tau, "v_max": v_max}
            make_run(tmp_path / str(tau), f"a/{task}", 0, [1.0, 2.0], task=task, agent=agent)
    made = compared(tmp_path)
    assert [group.name for group in made.groups] == ["a, agent.tau=0.1", "a, agent.tau=0.2"]
    assert list(made.tasks) == ["x", "y"]


def test_a_run_that_was_evaluated_too_late_is_left_out_and_named(tmp_path: Path) -> None:
    make_run(tmp_path, "a/it", 0, [1.0, 2.0])
    make_run(tmp_path, "b/it", 0, [5.0], every=100)
    made = compared(tmp_path)
    assert [group.name for group in made.groups] == ["a/it"]
    assert any("within the 80 env steps" in note and "b-it" in note for note in made.notes)


def test_only_tasks_that_all_groups_have_count(tmp_path: Path) -> None:
    for task in ("x", "y"):
        make_run(tmp_path, "a/it", 0, [1.0], task=task)
    make_run(tmp_path, "b/it", 0, [1.0], task="x")
    made = compared(tmp_path)
    assert list(made.tasks) == ["x"]
    assert any("left out" in note and "y" in note for note in made.notes)
    make_run(tmp_path, "c/it", 0, [1.0], task="z")
    with pytest.raises(UserError, match="no task in common"):
        compared(tmp_path)


@pytest.mark.parametrize(
    ("task", "known"),
    [
        *[("dm_control/walker-run-v0", True), ("WalkerRun-v1", True), ("dog-trot", True)],
        *[("BallInCup", True), ("FingerTurnEasy-v1", True), ("Walker2d-v5", False)],
        *[("pendulum", False), ("point_mass", False)],
    ],
)
def test_ranges_of_the_dm_control_suite(task: str, known: bool) -> None:
    assert known_range(task) == ((0.0, 1000.0) if known else None)
