"""A recipe's whole loop, end to end: simulate, act, store and learn, in turn and at the same time."""

from __future__ import annotations

import tempfile
import time
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from benchmarks.rates import wait
from benchmarks.speed.learner import forget
from fleetfoot import recipes
from fleetfoot.errors import UserError
from fleetfoot.recipe import Recipe
from fleetfoot.run.build import open_run
from fleetfoot.topologies import overlap as overlapping
from fleetfoot.topologies.synchronous import SynchronousConfig, in_turns


def bench_loop(
    recipe: tuple[str, ...] = ("fast_td3/t1-joystick-flat",),
    num_envs: tuple[int, ...] = (1024, 4096),
    updates: tuple[float, ...] = (2.0,),
    vec_steps: int = 200,
    device: str = "auto",
    execution: str = "auto",
) -> dict[str, Any]:
    """Vec steps per second of a recipe's training, with and without overlap.

    :param recipe: Its name, or several, one after the other.
    :param num_envs: Environments, one measurement for each; the replay keeps its rows per environment.
    :param updates: Updates per vec step, likewise.
    :param vec_steps: Vec steps timed, after warming up.
    :param device: auto, cpu, cuda or cuda:K.
    :param execution: auto, eager, compiled or captured.
    """
    named = [recipes.get(name) for name in recipe]
    for one in named:
        if not isinstance(one.topology, SynchronousConfig):
            raise UserError(f"{one.name} does not run under the synchronous topology.")
    rows = [
        {"recipe": one.name}
        | measure(smaller(one, envs, pace, device, execution), overlap, vec_steps)
        for one in named
        for envs in num_envs
        for pace in updates
        for overlap in (False, True)
    ]
    return {"recipe": ", ".join(recipe), "loop": rows}


def smaller(recipe: Recipe, envs: int, updates: float, device: str, execution: str) -> Recipe:
    """The recipe with another number of environments, and a replay of few rows: their number costs no time."""
    return replace(
        recipe,
        num_envs=envs,
        pace=replace(recipe.pace, updates_per_vec_step=updates, warmup_vec_steps=10),
        replay=replace(recipe.off_policy_replay(), capacity=256 * envs, capacity_gib=None),
        evaluation=replace(recipe.evaluation, every_vec_steps=0, episodes=envs),
        log=replace(recipe.log, every_vec_steps=10**9),
        checkpoint=replace(recipe.checkpoint, every_vec_steps=0),
        total_vec_steps=10**9,
        device=device,
        execution=execution,  # type: ignore[arg-type]
    )


def measure(recipe: Recipe, overlap: bool, count: int) -> dict[str, Any]:
    forget(recipe.torch_device())
    vec_steps = overlapping.vec_steps if overlap else in_turns
    with (
        tempfile.TemporaryDirectory() as folder,
        open_run(recipe, Path(folder), None) as (journal, parts),
    ):
        begun = time.perf_counter()
        with closing(vec_steps(journal, parts, parts.learner(journal))) as steps:
            _take(steps, recipe.pace.warmup_vec_steps + 40, parts.device)
            ready = time.perf_counter() - begun
            journal.timer.forget()
            begun = time.perf_counter()
            _take(steps, count, parts.device)
            seconds = (time.perf_counter() - begun) / count
        split = journal.timer.metrics()
    memory = {}
    if parts.device.type == "cuda":
        memory["peak_GiB"] = torch.cuda.max_memory_allocated(parts.device) / 2**30
    return {
        "num_envs": recipe.num_envs,
        "updates_per_vec_step": recipe.pace.updates_per_vec_step,
        "overlap": overlap,
        "vec_steps_per_second": 1 / seconds,
        "env_steps_per_second": recipe.num_envs / seconds,
        "iteration_ms": 1e3 * seconds,
        **{name.removeprefix("time/"): value for name, value in split.items()},
        "seconds_until_ready": ready,
        **memory,
    }


def _take(steps: Any, count: int, device: torch.device) -> None:
    for _ in islice(steps, count):
        pass
    wait(device)
