"""The tables of a report, as text in cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fleetfoot.compare import Comparison, Estimate
from fleetfoot.compare.groups import IGNORED_FIELDS
from fleetfoot.config import flat_fields
from fleetfoot.log.console import readable
from fleetfoot.log.meter import EVAL_RETURN
from fleetfoot.report.facts import Facts
from fleetfoot.report.repeat import command

NONE = "\N{EN DASH}"  # in the place of a number that there is not
MOST_VALUES = 3  # of a field within one group, before they are only counted
SMOOTHNESS = {
    "eval/action_change": "change from step to step",
    "eval/action_jerk": "jerk",
    "eval/action_above_10hz": "share above 10 Hz",
    "eval/power": "mechanical power, W",
}


def number(value: float | None) -> str:
    return NONE if value is None or not np.isfinite(value) else readable(value)


def duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def with_interval(estimate: Estimate | None) -> str:
    if estimate is None:
        return ""
    if estimate.interval is None:
        return number(estimate.value)
    return (
        f"{number(estimate.value)} [{number(estimate.interval[0])}, {number(estimate.interval[1])}]"
    )


@dataclass(frozen=True)
class Result:
    """One row: a group on a task, or on all of them."""

    name: str
    group: int
    seeds: int
    iqm: str
    gap: str
    better: str
    best: str
    speed: str
    minutes: str


def results(
    made: Comparison, groups: Mapping[str, int], members: Mapping[int, Facts]
) -> list[Result]:
    by_folder = {str(facts.run.folder): facts for facts in members.values()}
    rows = []
    for group in made.groups:
        own = [by_folder[folder] for of in group.scores.values() for folder in of]
        seconds = [facts.last("train_seconds") or 0.0 for facts in own]
        steps = [facts.last("env_steps") or 0.0 for facts in own]
        rows.append(
            Result(
                name=group.name,
                group=groups[group.name],
                seeds=len(own),
                iqm=with_interval(group.iqm),
                gap=with_interval(group.optimality_gap),
                better=with_interval(group.improvement),
                best=number(max(float(facts.run.returns.max()) for facts in own)),
                speed=number(round(sum(steps) / sum(seconds))) if sum(seconds) > 0 else NONE,
                minutes=duration(float(np.mean(seconds))),
            )
        )
    return rows


def about(runs: Sequence[Facts], groups: int, tasks: int) -> list[tuple[str, str]]:
    """What was run, in a few figures."""
    steps = sum(facts.last("env_steps") or 0.0 for facts in runs)
    seconds = sum(facts.last("train_seconds") or 0.0 for facts in runs)
    finished = sum(facts.run.done >= 1.0 for facts in runs)
    return [
        (f"run{'s' * (len(runs) != 1)}, {finished} finished", str(len(runs))),
        (f"group{'s' * (groups != 1)}", str(groups)),
        (f"task{'s' * (tasks != 1)}", str(tasks)),
        ("environment steps", _large(steps)),
        ("of training, all runs together", duration(seconds)),
    ]


def _large(value: float) -> str:
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g} {letter}"
    return number(value)


def smoothness(
    runs: Mapping[int, Facts], groups: Mapping[int, int], count: int
) -> list[dict[str, Any]]:
    """The last evaluation of each run: mean, and the range over runs, for each group that has any."""
    rows: list[dict[str, Any]] = []
    for group in range(count):
        own = [facts for place, facts in runs.items() if groups[place] == group]
        cells = []
        for name in SMOOTHNESS:
            values = [value for facts in own if (value := facts.last(name)) is not None]
            spread = f" ({number(min(values))} to {number(max(values))})" if len(values) > 1 else ""
            cells.append(f"{number(float(np.mean(values)))}{spread}" if values else "")
        if any(cells):
            rows.append({"group": group, "cells": cells})
    used = [k for k in range(len(SMOOTHNESS)) if any(row["cells"][k] for row in rows)]
    titles = list(SMOOTHNESS.values())
    for row in rows:
        row["cells"] = [row["cells"][k] or NONE for k in used]
    return [{"titles": [titles[k] for k in used], "rows": rows}] if rows else []


def differences(
    runs: Mapping[int, Facts], groups: Mapping[int, int], count: int
) -> dict[str, list[dict[str, Any]]]:
    """The fields of the recipes in which groups differ: those that all have, and those of different parts."""
    fields = {place: dict(flat_fields(facts.run.recipe)) for place, facts in runs.items()}
    names = sorted({name for own in fields.values() for name in own})
    found: dict[str, list[dict[str, Any]]] = {"shared": [], "apart": []}
    for name in names:
        if name.split(".")[0] in (*IGNORED_FIELDS, "part") or count < 2:
            continue
        cells = []
        for group in range(count):
            own = [fields[place] for place in fields if groups[place] == group]
            cells.append(_values([one[name] for one in own if name in one]))
        if len(set(cells)) > 1:
            found["apart" if "" in cells else "shared"].append(
                {"name": name, "cells": [cell or NONE for cell in cells]}
            )
    return found


def _values(values: Sequence[Any]) -> str:
    texts = sorted({value if isinstance(value, str) else repr(value) for value in values})
    if len(texts) > MOST_VALUES:
        return f"{len(texts)} values"
    return " | ".join(text if len(text) <= 80 else text[:77] + "..." for text in texts)


def run_rows(runs: Mapping[int, Facts], groups: Mapping[int, int]) -> list[dict[str, Any]]:
    rows = []
    for place, facts in runs.items():
        run = facts.run
        rows.append(
            {
                "place": place,
                "folder": str(run.folder),
                "group": groups[place],
                "task": run.task,
                "seed": run.seed,
                "done": f"{run.done:.0%}",
                "finished": run.done >= 1.0,
                "steps": number(facts.last("env_steps")),
                "time": duration(facts.last("train_seconds") or 0.0),
                "last": number(facts.last(EVAL_RETURN)),
                "best": number(float(run.returns.max())) if len(run.returns) else NONE,
                "command": command(facts),
            }
        )
    return rows


def origin(runs: Mapping[int, Facts]) -> dict[str, Any]:
    """What the runs noted of their origin: what is the same for all, and what is not, run by run."""
    noted = {place: facts.provenance for place, facts in runs.items() if facts.provenance}
    names = list(dict.fromkeys(name for own in noted.values() for name in own))
    shared = [
        (name, next(iter(values)))
        for name in names
        if len(values := {own.get(name) for own in noted.values()}) == 1
    ]
    common = {name for name, _ in shared}
    own = [
        {
            "place": place,
            "rows": [(n, v) for n, v in table.items() if n not in common],
        }
        for place, table in noted.items()
    ]
    return {
        "shared": shared,
        "own": [one for one in own if one["rows"]],
        "missing": len(runs) - len(noted),
    }
