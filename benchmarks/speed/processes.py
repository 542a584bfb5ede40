"""Gymnasium environments in processes: ours, and Gymnasium's AsyncVectorEnv with shared memory.

Ours steps several environments in each process, Gymnasium's has one process for each environment. Both take turns with
the same actions; the median round counts.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch

from benchmarks.rates import medians, player, take_turns
from fleetfoot.data import Continuous
from fleetfoot.envs.subprocess.env import ProcessEnv
from fleetfoot.errors import UserError
from fleetfoot.system import usable_cores


def bench_processes(
    id: str = "HalfCheetah-v5",
    num_envs: int = 16,
    seconds: float = 20.0,
    *,
    processes: int = 0,
    rounds: int = 5,
    seed: int = 0,
) -> dict[str, Any]:
    """Env steps per second of both. `processes` 0: of ours, as many as there are usable cores."""
    if num_envs < 1 or rounds < 1 or seconds <= 0 or processes < 0:
        raise UserError(
            "bench processes needs num_envs and rounds >= 1, processes >= 0, seconds > 0."
        )
    processes = processes or usable_cores()
    ours = ProcessEnv(id, id, {}, num_envs, processes, seed, torch.device("cpu"))
    theirs = gymnasium.make_vec(
        id,
        num_envs,
        vectorization_mode="async",
        vector_kwargs={
            "shared_memory": True,
            "autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP,
        },
    )
    try:
        ours.reset()
        theirs.reset(seed=seed)
        assert isinstance(ours.spec.action, Continuous)
        rng = np.random.default_rng(seed)
        script = rng.uniform(-1, 1, (200, num_envs, ours.spec.action.size)).astype(np.float32)
        rates = take_turns(
            {
                "fleetfoot": player(lambda action: ours.step(torch.from_numpy(action)), script),
                "AsyncVectorEnv": player(theirs.step, script),
            },
            seconds,
            rounds,
            times=num_envs,
        )
    finally:
        ours.close()
        theirs.close()
    median = medians(rates)
    return {
        "id": id,
        "num_envs": num_envs,
        "processes": {"fleetfoot": min(processes, num_envs), "AsyncVectorEnv": num_envs},
        "env_steps_per_second": median,
        "rounds": rates,
        "ratio": median["fleetfoot"] / median["AsyncVectorEnv"],
    }
