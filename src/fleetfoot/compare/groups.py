"""Groups of runs, by the names of their recipes or by recipe fields."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from fleetfoot.compare.runs import Run
from fleetfoot.config import flat_fields
from fleetfoot.errors import UserError, nearest

# Fields in which the runs of a group may differ: they do not change what is learned from a step.
IGNORED_FIELDS = (
    "name",
    "seed",
    "total_vec_steps",
    "evaluation",
    "log",
    "checkpoint",
    "device",
    "threads",
)


def groups_of(runs: Sequence[Run], by: Sequence[str] = ()) -> list[str]:
    """The group of each run."""
    if not by:
        return _by_name(runs)
    fields = [dict(flat_fields(run.recipe)) for run in runs]
    for name in by:
        if not any(name in one for one in fields):
            known = {key for one in fields for key in one}
            raise UserError(f"no recipe here has a field {name!r}.{nearest(name, known)}")

    def label(one: dict[str, Any]) -> str:
        values = [(name, _shown(one.get(name))) for name in by]
        return ", ".join(value if name == "name" else f"{name}={value}" for name, value in values)

    return [label(one) for one in fields]


def _by_name(runs: Sequence[Run]) -> list[str]:
    """The group of each run, by the name of its recipe.

    Recipes are called family/task. Where a family has one recipe for each of several tasks, the family is the group.
    Otherwise the names differ in something else, and the recipe is the group.
    """
    tasks: defaultdict[str, set[tuple[str, str]]] = defaultdict(set)
    for run in runs:
        tasks[_family(run)].add((run.name, run.task))
    whole = {
        family
        for family, pairs in tasks.items()
        if len(pairs) > 1
        and len(pairs) == len({name for name, _ in pairs}) == len({task for _, task in pairs})
    }
    return [_family(run) if _family(run) in whole else run.name for run in runs]


def _family(run: Run) -> str:
    return run.name.partition("/")[0]


def mixtures(runs: Sequence[Run], groups: Sequence[str]) -> Iterator[str]:
    """A line for each group whose runs of one task differ in more than their seeds."""
    members_of: defaultdict[tuple[str, str], list[Run]] = defaultdict(list)
    for run, group in zip(runs, groups, strict=True):
        members_of[group, run.task].append(run)
    for (group, task), members in members_of.items():
        fields = [dict(flat_fields(run.recipe)) for run in members]
        names = sorted({name for one in fields for name in one if _counts(name, one[name])})
        for name in names:
            values = sorted({_shown(one.get(name)) for one in fields})
            if len(values) > 1:
                some = " and ".join(values) if len(values) < 4 else f"{len(values)} values"
                yield (
                    f"{group} on {task} mixes runs whose {name} differs ({some}); --by {name} separates them."
                )
        seeds = [run.seed for run in members]
        repeated = sorted({seed for seed in seeds if seeds.count(seed) > 1})
        if repeated:
            yield f"{group} on {task} has seed {', '.join(map(str, repeated))} more than once."


def _counts(name: str, value: Any) -> bool:
    return name.split(".")[0] not in IGNORED_FIELDS and not name.startswith("topology.ray")


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else "none" if value is None else json.dumps(value)
