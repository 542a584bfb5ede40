"""Compare groups of runs after the same number of environment steps, and as curves over steps and time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np

from fleetfoot.compare.groups import groups_of, mixtures
from fleetfoot.compare.intervals import (
    CONFIDENCE,
    Bootstrap,
    Estimate,
    estimate,
    improvement,
    interquartile_mean,
    optimality_gap,
)
from fleetfoot.compare.ranges import Range, known_range
from fleetfoot.compare.runs import Floats, Run
from fleetfoot.errors import UserError, nearest

Metric = Literal["auto", "return", "success"]
Axis = Literal["env_steps", "train_seconds"]
AXES: tuple[Axis, ...] = ("env_steps", "train_seconds")
UNFINISHED = "fewer steps than its recipe asks for"
MAX_POINTS = 100  # of a curve


@dataclass(frozen=True)
class Ask:
    """What to compare, and how: the options of `fleetfoot compare`."""

    by: tuple[str, ...] = ()
    metric: Metric = "auto"
    ranges: Mapping[str, Range] = field(default_factory=dict[str, Range])
    everywhere: Range | None = None  # for tasks that `ranges` does not name
    at: int | None = None  # env steps; None: the length of the shortest run of each task
    baseline: str = ""  # empty: the first group
    unfinished: bool = False  # include runs that have not made all their steps
    bootstrap: Bootstrap = field(default_factory=Bootstrap)


@dataclass(frozen=True)
class TaskScale:
    """How the results of one task become scores."""

    metric: Literal["return", "success"]
    range: Range | None  # None: scores are returns
    at_env_steps: float


@dataclass(frozen=True)
class Curve:
    """The score over steps or seconds: of a group the interquartile mean and its interval, of a run its own."""

    x: list[float]
    y: list[float]
    low: list[float] | None  # None: one run per task
    high: list[float] | None


@dataclass(frozen=True)
class Group:
    """The runs that are summarised together, and their statistics."""

    name: str
    scores: dict[str, dict[str, float]]  # task -> run folder -> score
    seeds: dict[str, list[int]]
    iqm: Estimate
    optimality_gap: Estimate | None  # None: scores are returns
    improvement: Estimate | None  # over the baseline; None: this is the baseline
    curves: dict[Axis, Curve]
    task_curves: dict[str, dict[Axis, list[Curve]]]  # one per run


@dataclass(frozen=True)
class Comparison:
    """All groups, on the tasks they have in common."""

    groups: list[Group]
    tasks: dict[str, TaskScale]
    baseline: str
    bootstrap: Bootstrap
    notes: list[str]

    @property
    def normalised(self) -> bool:
        return all(task.range is not None for task in self.tasks.values())

    def to_json(self) -> dict[str, Any]:
        return {"confidence": CONFIDENCE, "normalised": self.normalised, **asdict(self)}


def compare(runs: Sequence[Run], ask: Ask) -> Comparison:
    notes: list[str] = []
    runs = _usable(runs, ask, notes)
    labels = groups_of(runs, ask.by)
    names = list(dict.fromkeys(labels))
    table: dict[str, dict[str, list[Run]]] = {name: {} for name in names}
    for run, name in zip(runs, labels, strict=True):
        table[name].setdefault(run.task, []).append(run)
    shared = _shared_tasks(table, notes)
    compared = [(r, n) for r, n in zip(runs, labels, strict=True) if r.task in shared]
    notes += mixtures([r for r, _ in compared], [n for _, n in compared])
    scales = {
        task: _scale(
            [run for run, _ in compared if run.task == task], task, len(shared), ask, notes
        )
        for task in shared
    }
    if single := [n for n in names if any(len(table[n][task]) == 1 for task in shared)]:
        notes.append(f"only one seed on some task, so the spread is unknown: {', '.join(single)}.")
    baseline = ask.baseline or names[0]
    if baseline not in table:
        raise UserError(
            f"there is no group {baseline!r}.{nearest(baseline, names)} The groups are {', '.join(names)}."
        )
    scores = {
        name: {
            task: {str(r.folder): _score(r, scales[task]) for r in table[name][task]}
            for task in shared
        }
        for name in names
    }
    groups = [
        _group(name, table[name], scales, scores, baseline, ask.bootstrap, notes) for name in names
    ]
    return Comparison(groups, scales, baseline, ask.bootstrap, notes)


def _usable(runs: Sequence[Run], ask: Ask, notes: list[str]) -> list[Run]:
    """The runs that can be compared, with a note that names those that cannot."""
    unlike: dict[str, list[Run]] = {}  # why -> which
    usable = []
    for run in runs:
        if len(run.returns) == 0:
            unlike.setdefault("no evaluations yet", []).append(run)
        elif ask.at is not None and not run.env_steps[0] <= ask.at <= run.env_steps[-1]:
            unlike.setdefault(f"no evaluations around {ask.at:,} env steps", []).append(run)
        elif run.done < 1.0 and not ask.unfinished and ask.at is None:
            unlike.setdefault(UNFINISHED, []).append(run)
        else:
            usable.append(run)
    shortest: dict[str, float] = {}
    for run in usable:
        end = float(run.env_steps[-1])
        shortest[run.task] = min(shortest.get(run.task, end), end)
    for run in (run for run in usable if run.env_steps[0] > shortest[run.task]):
        why = f"no evaluation within the {shortest[run.task]:,.0f} env steps of the shortest run"
        unlike.setdefault(why, []).append(run)
    usable = [run for run in usable if run.env_steps[0] <= shortest[run.task]]
    for why, left_out in unlike.items():
        names = ", ".join(str(run.folder) for run in left_out)
        include = ""
        if why == UNFINISHED:
            include = (
                " (--unfinished includes such runs, and compares at the length of the shortest)"
            )
        notes.append(f"left out, with {why}: {names}{include}.")
    if not usable:
        raise UserError(
            "there is nothing to compare: " + (notes[0] if notes else "no runs were given.")
        )
    return usable


def _shared_tasks(table: Mapping[str, Mapping[str, list[Run]]], notes: list[str]) -> list[str]:
    """The tasks that every group has runs of. Other tasks would make groups differ in their tasks."""
    all_tasks = list(dict.fromkeys(task for tasks in table.values() for task in tasks))
    shared = [task for task in all_tasks if all(task in tasks for tasks in table.values())]
    if not shared:
        tasks_by_group = "; ".join(f"{name}: {', '.join(tasks)}" for name, tasks in table.items())
        raise UserError(f"these groups have no task in common ({tasks_by_group}).")
    if omitted := [task for task in all_tasks if task not in shared]:
        notes.append(f"left out, because not every group has runs of them: {', '.join(omitted)}.")
    return shared


def _scale(runs: list[Run], task: str, tasks: int, ask: Ask, notes: list[str]) -> TaskScale:
    """How the runs of one task are scored: the metric, its bounds, and after how many steps."""
    has_success = all(run.success is not None for run in runs)
    if ask.metric == "success" and not has_success:
        without = next(run for run in runs if run.success is None)
        raise UserError(
            f"{without.folder} has evaluations without a success rate; use --metric return."
        )
    metric: Literal["return", "success"] = (
        "success" if has_success and ask.metric != "return" else "return"
    )
    ends = sorted({float(run.env_steps[-1]) for run in runs})
    at = ends[0] if ask.at is None else float(ask.at)
    if ask.at is None and len(ends) > 1:
        notes.append(
            f"{task}: runs are compared after {at:,.0f} env steps, the length of the shortest; the longest "
            f"has {ends[-1]:,.0f}."
        )
    if metric == "success":
        return TaskScale(metric, (0.0, 1.0), at)
    bounds = ask.ranges.get(task) or ask.everywhere or known_range(task)
    if bounds is None and tasks > 1:
        values = np.concatenate([run.returns for run in runs])
        low, high = float(values.min()), float(values.max())
        bounds = (low, high if high > low else low + 1.0)
        scores = (
            f"scores 0 and 1 are the lowest and the highest evaluation of these runs, {low:,.1f} and {high:,.1f}"
            if high > low
            else f"every evaluation of these runs is {low:,.1f}, which counts as a score of 0"
        )
        notes.append(
            f"{task} has no known range of returns; {scores} (--ranges FILE sets a range)."
        )
    elif bounds is None:
        notes.append(
            f"{task} has no known range of returns, so scores are returns and there is no optimality gap "
            "(--low and --high set a range)."
        )
    return TaskScale(metric, bounds, at)


def scores(run: Run, scale: TaskScale | None) -> Floats:
    """All evaluations of a run as scores; returns where there is no scale."""
    if scale is None:
        return run.returns
    values = run.returns if scale.metric == "return" or run.success is None else run.success
    low, high = scale.range or (0.0, 1.0)
    return (values - low) / (high - low)


def _score(run: Run, scale: TaskScale) -> float:
    """The score at the step of the comparison, interpolated linearly between two evaluations."""
    return float(np.interp(scale.at_env_steps, run.env_steps, scores(run, scale)))


def _group(
    name: str,
    runs: Mapping[str, list[Run]],
    scales: Mapping[str, TaskScale],
    scores: Mapping[str, Mapping[str, Mapping[str, float]]],
    baseline: str,
    boot: Bootstrap,
    notes: list[str],
) -> Group:
    def samples(of: str) -> list[Floats]:
        return [np.array(list(scores[of][task].values())) for task in scales]

    ours, theirs = samples(name), samples(baseline)

    def better(*drawn: Floats) -> Floats:
        return improvement(drawn[: len(scales)], drawn[len(scales) :])

    normalised = all(scale.range is not None for scale in scales.values())
    curves = {}
    for axis in AXES:
        curve = _curve({task: runs[task] for task in scales}, scales, axis, boot)
        if curve is None:
            notes.append(f"{name} has no curve over {axis}: the ranges of its runs do not overlap.")
        else:
            curves[axis] = curve
    return Group(
        name=name,
        scores={task: dict(of) for task, of in scores[name].items()},
        seeds={task: [run.seed for run in runs[task]] for task in scales},
        iqm=estimate(boot, interquartile_mean, ours),
        optimality_gap=estimate(boot, optimality_gap, ours) if normalised else None,
        improvement=None if name == baseline else estimate(boot, better, [*ours, *theirs]),
        curves=curves,
        task_curves={
            task: {axis: [_run_curve(run, scale, axis) for run in runs[task]] for axis in AXES}
            for task, scale in scales.items()
        },
    )


def _curve(
    runs: Mapping[str, list[Run]], scales: Mapping[str, TaskScale], axis: Axis, boot: Bootstrap
) -> Curve | None:
    """The interquartile mean along an axis, over the range that all runs of the group cover."""
    positions: list[Floats] = [getattr(run, axis) for members in runs.values() for run in members]
    first, last = max(x[0] for x in positions), min(x[-1] for x in positions)
    if first > last:
        return None
    grid = np.unique(np.concatenate(positions))
    grid = grid[(grid >= first) & (grid <= last)]
    if axis == "train_seconds" or len(grid) > MAX_POINTS:  # no two runs share points in time
        grid = np.linspace(first, last, min(MAX_POINTS, 4 * max(len(x) for x in positions)))
    samples = [
        np.stack([np.interp(grid, getattr(run, axis), scores(run, scales[task])) for run in of])
        for task, of in runs.items()
    ]
    y, interval = boot(interquartile_mean, *samples)
    low, high = (None, None) if interval is None else (interval[0].tolist(), interval[1].tolist())
    return Curve(grid.tolist(), y.tolist(), low, high)


def _run_curve(run: Run, scale: TaskScale, axis: Axis) -> Curve:
    return Curve(getattr(run, axis).tolist(), scores(run, scale).tolist(), None, None)
