"""What a recipe for unknown tasks reaches when nothing but the task is changed."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium

from benchmarks.curves import finished, points, trained
from fleetfoot import recipes
from fleetfoot.config import to_json
from fleetfoot.envs.gym import GymConfig
from fleetfoot.errors import UserError
from fleetfoot.log import LogConfig
from fleetfoot.recipe import Recipe
from fleetfoot.run.folder import read_recipe

TASKS = (
    *("Pendulum-v1", "InvertedDoublePendulum-v5", "Reacher-v5", "Pusher-v5"),
    *("Swimmer-v5", "Hopper-v5", "LunarLanderContinuous-v3", "BipedalWalker-v3"),
)


def own_tasks(
    tasks: tuple[str, ...] = TASKS,
    recipe: str = "flash_sac/own",
    seeds: tuple[int, ...] = (0, 1, 2),
    gamma: float | None = None,
    runs: Path = Path("runs/own_tasks"),
) -> Iterator[dict[str, Any]]:
    """Evaluations of one recipe on several Gymnasium tasks, beside the score at which Gymnasium calls a task solved.

    :param tasks: Ids of the tasks.
    :param recipe: Its name.
    :param seeds: One run each.
    :param gamma: Another discount for all of them; None: that of the recipe.
    :param runs: Folder of the runs, TASK-seedK; one that is there already is read, not trained again.
    """
    stored = recipes.get(recipe)
    base = stored if gamma is None else replace(stored, gamma=gamma)
    rows: list[dict[str, Any]] = []
    for task in tasks:
        folders = [
            trained_exactly(on(base, task, seed), runs / f"{task}-seed{seed}") for seed in seeds
        ]
        curves: list[dict[str, Any]] = [
            {"seed": seed, **points(finished(folder))}
            for seed, folder in zip(seeds, folders, strict=True)
        ]
        rows.append(
            {
                "task": task,
                "last": round(statistics.mean(curve["return"][-1] for curve in curves), 1),
                "last_by_seed": [curve["return"][-1] for curve in curves],
                "solved_at": gymnasium.spec(task).reward_threshold,
                "seeds": curves,
            }
        )
        yield {"rows": rows}
    yield {"rows": rows, "recipe": to_json(base)}


def trained_exactly(recipe: Recipe, folder: Path) -> Path:
    """The folder, with a run of this very recipe in it."""
    if read_recipe(trained(recipe, folder)) != recipe:
        raise UserError(f"{folder} holds a run of another recipe: delete it, or give other --runs.")
    return folder


def on(recipe: Recipe, task: str, seed: int) -> Recipe:
    """One thread each: networks of this size are not faster with two."""
    quiet = LogConfig(every_vec_steps=50, tensorboard=False, console=False)
    return replace(recipe, env=GymConfig(id=task), seed=seed, threads=1, log=quiet)
