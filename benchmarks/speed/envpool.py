"""How fast the EnvPool adapter is, beside the bare EnvPool.

Both take turns in one process, and which of them begins alternates from round to round; the median round counts. They
run the same task with the same actions, which the bare EnvPool gets as it wants them.
"""

from __future__ import annotations

import importlib.metadata
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.rates import medians, player, take_turns
from fleetfoot.data import Continuous
from fleetfoot.envs.envpool import EnvPoolConfig
from fleetfoot.envs.envpool.pool import TaskKind, load
from fleetfoot.errors import UserError
from fleetfoot.system import usable_cores

BAR = 0.7  # of the bare environment's speed


def bench_envpool(
    task: str = "WalkerRun-v1",
    num_envs: int = 1,
    seconds: float = 10.0,
    *,
    threads: int = 0,
    rounds: int = 5,
    seed: int = 0,
    cpu: bool = False,
) -> dict[str, Any]:
    """Env steps per second of our adapter and of the bare EnvPool through its Gymnasium interface.

    `seconds` is the measured time in all, shared equally. `threads` 0: as many as there are usable cores. The bare
    environment's steps after an end, which do nothing but restart, are counted as steps: that favours it.

    With `cpu`, seconds are those of the processor, of all threads together, instead of the wall clock's: for a machine
    with other work.
    """
    if num_envs < 1 or rounds < 1 or seconds <= 0 or threads < 0:
        raise UserError("bench envpool needs num_envs and rounds >= 1, threads >= 0, seconds > 0.")
    threads = threads or usable_cores()
    env = EnvPoolConfig(task=task, threads=threads).build(num_envs, seed, torch.device("cpu"))
    if not isinstance(env.spec.action, Continuous):
        raise UserError(f"bench envpool needs a task with continuous actions, which {task} is not.")
    env.reset()
    rng = np.random.default_rng(seed)
    script = rng.uniform(-1, 1, (200, num_envs, env.spec.action.size)).astype(np.float32)
    clock = time.process_time if cpu else time.perf_counter
    ours = player(lambda action: env.step(torch.from_numpy(action)), script, clock)
    bare = player(*bare_player(task, num_envs, threads, seed, script), clock)
    contestants = {"fleetfoot": ours, "bare": bare}
    rates = take_turns(contestants, seconds, rounds, times=num_envs)
    env.close()
    speed = medians(rates)
    # Neighbours in time share what else the machine was doing.
    ratio = statistics.median(a / b for a, b in zip(*rates.values(), strict=True))
    return {
        "task": task,
        "num_envs": num_envs,
        "threads": threads,
        "rounds": rounds,
        "clock": "processor" if cpu else "wall",
        "envpool": importlib.metadata.version("envpool"),
        "env_steps_per_second": speed,
        "rounds_env_steps_per_second": rates,
        "ratio_to_bare": ratio,
        "bar": BAR,
        "passed": ratio >= BAR,
    }


def bare_player(
    task: str, num_envs: int, threads: int, seed: int, script: NDArray[np.float32]
) -> tuple[Callable[[Any], object], NDArray[Any]]:
    """Its step, and the script in its own units: to convert actions is the adapter's work."""
    kind = TaskKind(task, {})
    envs: Any = load().make(
        task,
        env_type="gymnasium",
        num_envs=num_envs,
        num_threads=min(threads, num_envs),
        seed=seed,
        **kind.kwargs,
    )
    envs.reset()
    return envs.step, kind.convert(script)
