"""Groups of runs: by the names of their recipes and by what differs between them, or by given recipe fields."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from fleetfoot.compare.runs import Run
from fleetfoot.config import flat_fields, shown
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
    "execution",
    "env_timeout",
)


def groups_of(runs: Sequence[Run], by: Sequence[str] = ()) -> list[str]:
    """The group of each run."""
    fields = [dict(flat_fields(run.recipe)) for run in runs]
    if not by:
        return _by_difference(runs, fields)
    for name in by:
        if not any(name in one for one in fields):
            known = {key for one in fields for key in one}
            raise UserError(f"no recipe here has a field {name!r}.{nearest(name, known)}")

    def label(one: dict[str, Any]) -> str:
        values = [(name, shown(one.get(name))) for name in by]
        return ", ".join(value if name == "name" else f"{name}={value}" for name, value in values)

    return [label(one) for one in fields]


def _by_difference(runs: Sequence[Run], fields: Sequence[dict[str, Any]]) -> list[str]:
    """The group of each run, by the name of its recipe and by the fields in which runs of that name differ."""
    names = _by_name(runs)
    alike: defaultdict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for name, run in zip(names, runs, strict=True):
        alike[name, run.task].append(run.recipe)
    paths: defaultdict[str, dict[str, None]] = defaultdict(dict)
    for (name, _), recipes in alike.items():
        paths[name] |= dict.fromkeys(path for path in varying(recipes) if _counts(path))
    return [
        ", ".join([name, *(f"{path}={shown(one[path])}" for path in paths[name] if path in one)])
        for name, one in zip(names, fields, strict=True)
    ]


def varying(trees: Sequence[dict[str, Any]], path: str = "") -> Iterator[str]:
    """The fields in which parts differ. Where the class of a part differs, its fields are compared within each class:
    that two agents have other defaults is no difference of its own."""
    for name in dict.fromkeys(key for tree in trees for key in tree if key != "part"):
        classes: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
        values = set()
        for value in (tree[name] for tree in trees if name in tree):
            if isinstance(value, dict) and "part" in value:
                classes[str(value["part"])].append(value)
            else:
                values.add(shown(value))
        if len(classes) + len(values) > 1:
            yield f"{path}{name}"
        for members in classes.values():
            yield from varying(members, f"{path}{name}.")


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
    """A line for each group whose runs of one task differ in more than their seeds: with `by` they may."""
    members_of: defaultdict[tuple[str, str], list[Run]] = defaultdict(list)
    for run, group in zip(runs, groups, strict=True):
        members_of[group, run.task].append(run)
    for (group, task), members in members_of.items():
        fields = [dict(flat_fields(run.recipe)) for run in members]
        for name in filter(_counts, dict.fromkeys(varying([run.recipe for run in members]))):
            values = sorted({shown(one[name]) for one in fields if name in one})
            some = " and ".join(values) if len(values) < 4 else f"{len(values)} values"
            yield (
                f"{group} on {task} mixes runs whose {name} differs ({some}); --by {name} separates them."
            )
        seeds = [run.seed for run in members]
        repeated = sorted({seed for seed in seeds if seeds.count(seed) > 1})
        if repeated:
            yield f"{group} on {task} has seed {', '.join(map(str, repeated))} more than once."


def _counts(name: str) -> bool:
    return name.split(".")[0] not in IGNORED_FIELDS and not name.startswith("topology.ray")
