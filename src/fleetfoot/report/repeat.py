"""The command that repeats a run."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

from fleetfoot import recipes
from fleetfoot.compare.runs import Run
from fleetfoot.config import flat_fields, to_json
from fleetfoot.errors import UserError
from fleetfoot.report.facts import Facts

# Derived from other fields, or of no effect on what is learned.
NOT_REPEATED = ("name", "log", "checkpoint.keep")


def command(facts: Facts) -> str:
    """What the run itself noted, or else the recipe's name and every field in which the run differs from it."""
    return facts.command or from_recipe(facts.run)


def from_recipe(run: Run) -> str:
    """`fleetfoot train NAME --field value ...`, or the stored recipe as a file where flags cannot say it."""
    stored = shlex.join(["fleetfoot", "train", str(Path(run.folder) / "recipe.json")])
    try:
        recipe = recipes.get(run.name)
    except UserError:
        return stored
    derived = tuple(recipe.derived_fields())
    named = dict(flat_fields(to_json(recipe)))
    flags: list[str] = []
    for name, value in flat_fields(run.recipe):
        if name.startswith(NOT_REPEATED) or name in derived:
            continue
        if name not in named:
            # A field of another part: its defaults are not known here.
            return stored
        if named[name] != value or name == "seed":
            words = flag(name, value)
            if words is None or _is_part(value, run.recipe, name):
                return stored
            flags += words
    return shlex.join(["fleetfoot", "train", run.name, *flags])


def _is_part(value: Any, tree: Any, name: str) -> bool:
    for key in name.split("."):
        tree = tree.get(key) if isinstance(tree, dict) else None
    return isinstance(value, str) and isinstance(tree, dict)


def flag(name: str, value: Any) -> list[str] | None:
    """A field as words of a command line; None: there is no such flag."""
    option = "--" + name.replace("_", "-")
    if isinstance(value, bool):
        head, _, last = option.rpartition(".")
        if value:
            return [option]
        return [f"{head}.no-{last}" if head else f"--no-{last.removeprefix('--')}"]
    if isinstance(value, list):
        if any(isinstance(item, (dict, list)) for item in value):
            return None
        return [option, *(map(str, value) if value else ("none",))]
    if isinstance(value, dict):
        return [option, json.dumps(value)]
    return [option, str(value)]
