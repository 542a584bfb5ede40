"""Gymnasium environments in processes: ours, and Gymnasium's AsyncVectorEnv with shared memory.

Ours steps several environments in each process, Gymnasium's has one process for each environment. Both take turns with
the same actions; the median round counts. Steps per second of all processors together do not depend on other work on
the machine, and steps per second of the clock do: with more processes than cores, the one with more gets more of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import psutil
import torch

from benchmarks.rates import medians
from fleetfoot.data import Continuous
from fleetfoot.envs.subprocess.env import ProcessEnv
from fleetfoot.errors import UserError
from fleetfoot.system import usable_cores


def bench_processes(
    id: str = "HalfCheetah-v5",
    num_envs: int = 16,
    vec_steps: int = 500,
    *,
    processes: int = 0,
    rounds: int = 5,
    seed: int = 0,
) -> dict[str, Any]:
    """Env steps per second of both, by the processors' time and by the clock, in rounds of `vec_steps`.

    `processes` 0: of ours, as many as there are usable cores.
    """
    if num_envs < 1 or rounds < 1 or vec_steps < 1 or processes < 0:
        raise UserError("bench processes needs num_envs, vec_steps, rounds >= 1, processes >= 0.")
    processes = processes or usable_cores()
    ours = ProcessEnv(id, id, {}, num_envs, processes, seed, torch.device("cpu"))
    same_step = gymnasium.vector.AutoresetMode.SAME_STEP
    theirs: Any = gymnasium.make_vec(
        id,
        num_envs,
        vectorization_mode="async",
        vector_kwargs={"shared_memory": True, "autoreset_mode": same_step},
    )
    try:
        ours.reset()
        theirs.reset(seed=seed)
        assert isinstance(ours.spec.action, Continuous)
        rng = np.random.default_rng(seed)
        script = rng.uniform(-1, 1, (vec_steps, num_envs, ours.spec.action.size))
        actions = script.astype(np.float32)
        steps: dict[str, Callable[[Any], Any]] = {
            "fleetfoot": lambda action: ours.step(torch.from_numpy(action)),
            "AsyncVectorEnv": theirs.step,
        }
        rates = take_turns(steps, actions, rounds)
        memory = {
            "fleetfoot": megabytes([worker.process.pid for worker in ours.workers]),
            "AsyncVectorEnv": megabytes([process.pid for process in theirs.unwrapped.processes]),
        }
    finally:
        ours.close()
        theirs.close()
    cpu, wall = (medians(one) for one in rates)
    return {
        "id": id,
        "num_envs": num_envs,
        "processes": {"fleetfoot": min(processes, num_envs), "AsyncVectorEnv": num_envs},
        "env_steps_per_processor_second": cpu,
        "env_steps_per_second": wall,
        "ratio": cpu["fleetfoot"] / cpu["AsyncVectorEnv"],
        "megabytes": memory,
        "rounds": rates[0],
    }


def take_turns(
    steps: dict[str, Callable[[Any], Any]], actions: Any, rounds: int
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Env steps per second of the processors and of the clock, of each contestant in each round."""
    cpu: dict[str, list[float]] = {name: [] for name in steps}
    wall: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(-1, rounds):  # the first is not counted
        for name in sorted(steps, reverse=turn % 2 == 0):
            spent, start = processor_seconds(), time.perf_counter()
            for action in actions:
                steps[name](action)
            count = actions.shape[0] * actions.shape[1]
            if turn >= 0:
                cpu[name].append(count / (processor_seconds() - spent))
                wall[name].append(count / (time.perf_counter() - start))
    return cpu, wall


def processor_seconds() -> float:
    """Of this process and all that it started. Those that wait for the other contestant use none."""
    me = psutil.Process()
    times = [process.cpu_times() for process in (me, *me.children(recursive=True))]
    return float(sum(one.user + one.system for one in times))


def megabytes(pids: list[int]) -> float:
    """What these processes hold for themselves alone, together."""
    return float(sum(psutil.Process(pid).memory_full_info().uss for pid in pids)) / 2**20
