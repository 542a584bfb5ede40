"""The figures of a report as plain numbers. The page's script draws them with Plotly."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fleetfoot.compare import Group
from fleetfoot.compare.comparison import Axis, TaskScale, scores
from fleetfoot.compare.runs import Floats
from fleetfoot.report.facts import Facts

MOST_POINTS = 150  # of a line
MOST_NUMBERS = 400_000  # of all lines that can be chosen; about 4 MB
DIGITS = 6  # that a screen can show, and more

Series = dict[str, Any]
X_TITLES: dict[Axis, str] = {
    "env_steps": "environment steps",
    "train_seconds": "minutes of training",
}
TIME_PARTS = ("simulate", "act", "append", "sample", "update", "wait")  # in the order of the loop


def short(values: Iterable[float]) -> list[float]:
    """With as many digits as count, so that the page stays small."""
    return [float(f"{value:.{DIGITS}g}") for value in values]


def thinned(values: Sequence[float] | Floats) -> Floats:
    """At most `MOST_POINTS` of them, evenly spread, with the first and the last."""
    array = np.asarray(values, dtype=np.float64)
    if len(array) <= MOST_POINTS:
        return array
    chosen: Floats = array[np.linspace(0, len(array) - 1, MOST_POINTS).round().astype(int)]
    return chosen


def along(axis: Axis, values: Sequence[float] | Floats) -> Floats:
    """Positions on an axis, in its unit."""
    array = np.asarray(values, dtype=np.float64)
    return array / 60.0 if axis == "train_seconds" else array


def run_lines(
    members: Mapping[int, Facts], scale: TaskScale | None, axis: Axis, groups: Mapping[int, int]
) -> list[Series]:
    """A line for each run that was evaluated; `members` by their number on the page."""
    lines = []
    for number, facts in members.items():
        if len(facts.run.returns):
            x, y = along(axis, getattr(facts.run, axis)), scores(facts.run, scale)
            lines.append(
                {
                    "run": number,
                    "group": groups[number],
                    "x": short(thinned(x)),
                    "y": short(thinned(y)),
                }
            )
    return lines


def group_line(group: Group, place: int, axis: Axis) -> Series | None:
    """The interquartile mean of a group with its interval; None where its runs have no range in common."""
    curve = group.curves.get(axis)
    if curve is None:
        return None
    line: Series = {"group": place, "x": short(along(axis, curve.x)), "y": short(curve.y)}
    if curve.low is not None and curve.high is not None:
        line |= {"low": short(curve.low), "high": short(curve.high)}
    return line


def metric_lines(
    members: Mapping[int, Facts], name: str, groups: Mapping[int, int]
) -> list[Series]:
    """A metric of the log over environment steps, one line for each run that has it."""
    lines = []
    for number, facts in members.items():
        points = [(line["env_steps"], line[name]) for line in facts.lines if name in line]
        if points:
            x, y = np.array(points, dtype=np.float64).T
            series = {"run": number, "group": groups[number]}
            lines.append(series | {"x": short(thinned(x)), "y": short(thinned(y))})
    return lines


def means(lines: Sequence[Series]) -> list[Series]:
    """The mean of each group that has several lines, where all of them reach."""
    found = []
    for place in sorted({line["group"] for line in lines}):
        own = [line for line in lines if line["group"] == place]
        first, last = max(line["x"][0] for line in own), min(line["x"][-1] for line in own)
        if len(own) > 1 and first < last:
            grid = np.unique(np.concatenate([line["x"] for line in own]))
            grid = thinned(grid[(grid >= first) & (grid <= last)])
            y = np.mean([np.interp(grid, line["x"], line["y"]) for line in own], axis=0)
            found.append({"group": place, "x": short(grid), "y": short(y)})
    return found


def choices(members: Mapping[int, Facts], groups: Mapping[int, int]) -> dict[str, list[Series]]:
    """Every metric of the logs, to choose from; those that come late in the alphabet give way in a huge report."""
    counters = {"vec_steps", "env_steps", "updates", "train_seconds"}
    names = sorted({name for facts in members.values() for name in facts.metrics} - counters)
    chosen: dict[str, list[Series]] = {}
    room = MOST_NUMBERS
    for name in names:
        lines = metric_lines(members, name, groups)
        room -= sum(2 * len(line["x"]) for line in lines)
        if room < 0:
            break
        chosen[name] = lines
    return chosen


def time_split(
    members: Mapping[int, Facts], groups: Mapping[int, int], count: int
) -> list[dict[str, float]]:
    """Milliseconds per vec step of each part of the loop, for each group: means over its runs, by part."""
    table: list[dict[str, float]] = []
    for place in range(count):
        own = [facts for number, facts in members.items() if groups[number] == place]
        names = {name for facts in own for name in facts.metrics if _is_time(name)}
        # The parts of the loop in their order, then what a topology adds.
        ordered = sorted(names, key=lambda name: (_place_in_loop(name), name))
        table.append({name[5:-3]: _mean(own, name) for name in ordered})
    return table


def _is_time(name: str) -> bool:
    return name.startswith("time/") and name.endswith("_ms")


def _place_in_loop(name: str) -> int:
    part = name[5:-3]
    return TIME_PARTS.index(part) if part in TIME_PARTS else len(TIME_PARTS)


def _mean(runs: Sequence[Facts], name: str) -> float:
    per_run = [[line[name] for line in facts.lines if name in line] for facts in runs]
    return float(np.mean([np.mean(values) for values in per_run if values]))
