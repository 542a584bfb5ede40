"""Pong with Ape-X and with the same agent in one process, each until it is solved or its time is up."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.curves import train_until
from fleetfoot import recipes
from fleetfoot.config import to_json
from fleetfoot.envs.atari import FRAME_SKIP
from fleetfoot.log import curve
from fleetfoot.log.sinks import read_lines
from fleetfoot.recipe import Recipe
from fleetfoot.topologies.apex.loop import ActorLearnerConfig

SOLVED = 15.0
LOGGED = ("fleet/", "critic/td_error", "critic/q", "episode/return")


def pong(
    minutes: float = 8.0,
    until: float = 18.0,
    names: tuple[str, ...] = ("apex_dqn/pong", "dqn/pong"),
    actors: int = 12,
    envs_per_actor: int = 32,
    sync_envs: int = 128,
    seed: int = 0,
    runs: Path = Path("runs/pong"),
) -> Iterator[dict[str, Any]]:
    """Return over frames and time. The defaults are for 16 cores and a GPU.

    A run is stopped as by Ctrl-C, so its folder can be resumed.

    :param minutes: Wall-clock of each run.
    :param until: A return that is enough.
    :param names: The recipes, one run each.
    :param actors: Actors of Ape-X.
    :param envs_per_actor: Games of each.
    :param sync_envs: Games of the recipe in one process.
    :param seed: Of every run.
    :param runs: Where the run folders go.
    """
    results: list[dict[str, Any]] = []
    for name in names:
        recipe = replace(recipes.get(name), seed=seed)
        if isinstance(recipe.topology, ActorLearnerConfig):
            topology = replace(recipe.topology, actors=actors)
            recipe = replace(recipe, topology=topology, num_envs=actors * envs_per_actor)
        else:
            recipe = replace(recipe, num_envs=sync_envs)
        results.append(measure(recipe, runs, minutes * 60, until))
        yield {"minutes": minutes, "runs": results}


def measure(recipe: Recipe, runs: Path, seconds: float, until: float) -> dict[str, Any]:
    """One run, and its curve."""
    folder = runs / f"{recipe.name.replace('/', '-')}-seed{recipe.seed}-{time.strftime('%H%M%S')}"
    start = time.perf_counter()

    def enough() -> bool:
        solved = any(point.value >= until for point in curve(folder))
        return solved or time.perf_counter() - start > seconds

    done = train_until(recipe, folder, enough)
    wall = time.perf_counter() - start
    points = [
        {
            "frames": point.vec_steps * recipe.num_envs * FRAME_SKIP,
            "train_seconds": round(point.train_seconds, 1),
            "return": round(point.value, 2),
        }
        for point in curve(folder)
    ]
    lines = read_lines(folder / "metrics.jsonl")
    sparse = lines[:: max(1, len(lines) // 40)]
    return {
        "recipe": to_json(recipe),
        "wall_seconds": round(wall, 1),
        "env_steps": done.counters.env_steps,
        "frames": done.counters.env_steps * FRAME_SKIP,
        "updates": done.counters.updates,
        "train_seconds": round(done.counters.train_seconds, 1),
        "best_return": done.best_return if points else None,
        "first_at_15": next((point for point in points if point["return"] >= SOLVED), None),
        "curve": points,
        "log": [
            {k: v for k, v in line.items() if k.startswith(LOGGED) or k in ("vec_steps", "updates")}
            for line in sparse
        ],
    }
