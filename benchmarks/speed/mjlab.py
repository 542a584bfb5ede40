"""How fast the mjlab adapter is, beside mjlab's own environment.

All take turns in one process, step by step with the same actions. On a CPU the time is the process's own, which other
work on the machine does not change. The bare environment restarts what ended inside `step` and loses the last
observations, which `exact_final_obs=False` does too.
"""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.rates import wait
from fleetfoot.data import Continuous
from fleetfoot.envs.lab.mjlab import MjlabConfig, MjlabEnv
from fleetfoot.errors import UserError
from fleetfoot.system import resolve_device

WARMUP_VEC_STEPS = 3  # kernels are loaded in the first


def bench_mjlab(
    task: str = "Mjlab-Velocity-Flat-Unitree-Go1",
    num_envs: int = 256,
    seconds: float = 30.0,
    *,
    episode_seconds: float | None = None,
    seed: int = 0,
    device: str = "auto",
) -> dict[str, Any]:
    """Env steps per second of our adapter, with true last observations and without, and of mjlab alone.

    `seconds` is the measured time in all. Episodes begin anywhere in their time, as after a long run. Shorter ones
    (`episode_seconds`) let few environments end as often as thousands do.
    """
    if num_envs < 1 or seconds <= 0:
        raise UserError("bench mjlab needs num_envs >= 1 and seconds > 0.")
    place = resolve_device(device)
    clock = time.process_time if place.type == "cpu" else time.perf_counter

    changes = {} if episode_seconds is None else {"episode_length_s": episode_seconds}

    def build(exact: bool) -> MjlabEnv:
        config = MjlabConfig(task=task, exact_final_obs=exact, spread_ends=True, changes=changes)
        env = config.build(num_envs, seed, place)
        env.reset()
        return env

    envs = {"exact": build(True), "lost": build(False), "bare": build(False)}
    action = envs["exact"].spec.action
    assert isinstance(action, Continuous)
    generator = torch.Generator().manual_seed(seed)
    steps: dict[str, Callable[[Tensor], Any]] = {name: env.step for name, env in envs.items()}
    steps["bare"] = envs["bare"].envs.step
    spent = dict.fromkeys(envs, 0.0)
    ended = dict.fromkeys(envs, 0)
    vec_steps, order = 0, list(envs)
    while sum(spent.values()) < seconds:
        drawn = torch.rand((num_envs, action.size), generator=generator) * 2 - 1
        given = drawn.to(place)
        for name in order:
            start = clock()
            outcome = steps[name](given)
            wait(place)
            if vec_steps >= WARMUP_VEC_STEPS:
                spent[name] += clock() - start
            terminated, time_out = outcome[-3:-1]  # of a `Step` and of mjlab's own tuple
            ended[name] += int((terminated | time_out).sum())
        order = [*order[1:], order[0]]
        vec_steps += 1
    for env in envs.values():
        env.close()
    speed = {name: num_envs * (vec_steps - WARMUP_VEC_STEPS) / spent[name] for name in envs}
    return {
        "task": task,
        "num_envs": num_envs,
        "device": str(place),
        "episode_seconds": episode_seconds,
        "vec_steps": vec_steps,
        "versions": {
            name: importlib.metadata.version(name) for name in ("mjlab", "mujoco-warp", "warp-lang")
        },
        "episodes_ended": ended,
        "env_steps_per_second": speed,
        "ratio_to_bare": {name: speed[name] / speed["bare"] for name in ("exact", "lost")},
    }
