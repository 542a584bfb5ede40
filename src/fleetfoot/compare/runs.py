"""Run folders as data: recipe, task, seed and evaluations.

Recipes are read as plain JSON, so that runs with user-defined parts can be compared without importing them.
"""

from __future__ import annotations

import glob
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fleetfoot.errors import UserError, nearest, one_line
from fleetfoot.log.meter import EVAL_RETURN
from fleetfoot.log.sinks import read_lines
from fleetfoot.run.stored import read_stored

Floats: TypeAlias = NDArray[np.float64]

EVAL_SUCCESS = "eval/success"
TASK_FIELDS = ("task", "id", "game", "name", "suite")  # of an environment's config


@dataclass(frozen=True)
class Run:
    """What a comparison reads from a run folder."""

    folder: Path
    recipe: dict[str, Any]
    task: str
    seed: int
    done: float  # share of its steps, 0 to 1
    env_steps: Floats  # of its evaluations
    train_seconds: Floats
    returns: Floats
    success: Floats | None  # None: not every evaluation reports it

    @property
    def name(self) -> str:
        return str(self.recipe["name"])


def find(given: Sequence[str]) -> list[Path]:
    """Run folders: the given folders, all runs inside them, and what the given patterns match."""
    folders: list[Path] = []
    for word in given:
        matched = sorted(glob.glob(word, recursive=True)) if glob.has_magic(word) else [word]
        if not matched:
            raise UserError(f"nothing matches {word}.")
        inside = [run for place in matched for run in _inside(Path(place))]
        if not inside:
            raise UserError(f"there is no run in {word}: no folder there has a recipe.json.")
        folders += inside
    return list(dict.fromkeys(folders))


def _inside(place: Path) -> Iterator[Path]:
    if not place.exists():
        names = [str(path) for path in place.parent.glob("*/")]
        raise UserError(f"there is no folder {place}.{nearest(str(place), names)}")
    if (place / "recipe.json").is_file():
        yield place
    elif place.is_dir():
        yield from sorted({path.parent for path in place.rglob("recipe.json")})


def read(folder: Path) -> Run:
    """One run, possibly without evaluations."""
    recipe = _recipe(folder)
    metrics = folder / "metrics.jsonl"
    lines = read_lines(metrics) if metrics.exists() else []
    steps = max((line["vec_steps"] for line in lines), default=0)
    # Lines are in order even if the run was resumed from an earlier step: the log drops the lines after it.
    needed = {EVAL_RETURN, "env_steps", "train_seconds"}
    lines = [line for line in lines if needed <= line.keys()]

    def column(name: str) -> Floats:
        return np.array([float(line[name]) for line in lines])

    success = bool(lines) and all(EVAL_SUCCESS in line for line in lines)
    return Run(
        folder=folder,
        recipe=recipe,
        task=task_of(recipe["env"]),
        seed=int(recipe["seed"]),
        done=min(1.0, steps / max(1, int(recipe["total_vec_steps"]))),
        env_steps=column("env_steps"),
        train_seconds=column("train_seconds"),
        returns=column(EVAL_RETURN),
        success=column(EVAL_SUCCESS) if success else None,
    )


def _recipe(folder: Path) -> dict[str, Any]:
    path = folder / "recipe.json"
    try:
        recipe = read_stored(path, "recipe")
        missing = [k for k in ("name", "env", "seed", "total_vec_steps") if k not in recipe]
        int(recipe.get("seed", 0)), int(recipe.get("total_vec_steps", 0))
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise UserError(f"{path} cannot be read: {one_line(error)}.") from error
    if missing:
        raise UserError(f"{path} is not a recipe: it has no {', '.join(missing)}.")
    return recipe


def task_of(env: Any) -> str:
    """The name of the task in the config of an environment, or else the name of the config."""
    if not isinstance(env, dict):
        return str(env)
    for field in TASK_FIELDS:
        if isinstance(env.get(field), str) and env[field]:
            return str(env[field])
    if isinstance(env.get("tasks"), list) and env["tasks"]:
        return "+".join(task_of(task) for task in env["tasks"])
    return str(env.get("part", "environment")).removesuffix("Config")
