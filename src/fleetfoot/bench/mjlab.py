"""How fast the mjlab adapter is, beside mjlab's own environment.

All take turns in one process with the same actions; the median round counts. The bare environment restarts what ended
inside `step` and loses the last observations, which `exact_final_obs=False` does too.
"""

from __future__ import annotations

import importlib.metadata
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fleetfoot.data import Continuous
from fleetfoot.envs.mjlab import MjlabConfig, MjlabEnv
from fleetfoot.part import UserError
from fleetfoot.recipe import resolve_device


def bench_mjlab(
    task: str = "Mjlab-Velocity-Flat-Unitree-Go1",
    num_envs: int = 256,
    seconds: float = 20.0,
    *,
    rounds: int = 5,
    seed: int = 0,
    device: str = "auto",
) -> dict[str, Any]:
    """Env steps per second of our adapter, with true last observations and without, and of mjlab alone.

    `seconds` is the measured time in all, shared equally. Episodes begin anywhere in their time, as after a long run.
    """
    if num_envs < 1 or rounds < 1 or seconds <= 0:
        raise UserError("bench mjlab needs num_envs and rounds >= 1, and seconds > 0.")
    place = resolve_device(device)

    def build(exact: bool) -> MjlabEnv:
        config = MjlabConfig(task=task, exact_final_obs=exact, spread_ends=True)
        env = config.build(num_envs, seed, place)
        env.reset()
        return env

    exact, lost, bare = build(True), build(False), build(False)
    assert isinstance(exact.spec.action, Continuous)
    shape = (50, num_envs, exact.spec.action.size)
    generator = torch.Generator().manual_seed(seed)
    script = (torch.rand(shape, generator=generator) * 2 - 1).to(place)
    contestants = {
        "exact": _player(exact.step, script),
        "lost": _player(lost.step, script),
        "bare": _player(bare.envs.step, script),
    }
    seen: dict[str, list[float]] = {name: [] for name in contestants}
    share = seconds / (rounds * len(contestants))
    for play in contestants.values():
        play(share)  # warm up, and let robots fall that will fall
    for turn in range(rounds):
        for name in sorted(contestants, reverse=turn % 2 == 0):
            seen[name].append(num_envs * contestants[name](share))
    for env in (exact, lost, bare):
        env.close()
    speed = {name: statistics.median(rates) for name, rates in seen.items()}
    return {
        "task": task,
        "num_envs": num_envs,
        "device": str(place),
        "rounds": rounds,
        "versions": {
            name: importlib.metadata.version(name) for name in ("mjlab", "mujoco-warp", "warp-lang")
        },
        "env_steps_per_second": speed,
        "rounds_env_steps_per_second": seen,
        "ratio_to_bare": {name: speed[name] / speed["bare"] for name in ("exact", "lost")},
    }


def _player(step: Callable[[Tensor], object], script: Tensor) -> Callable[[float], float]:
    """A function that plays for some seconds and tells the vec steps per second; it goes on where it stopped."""
    at = 0

    def play(seconds: float) -> float:
        nonlocal at
        calls, start = 0, time.perf_counter()
        while (spent := time.perf_counter() - start) < seconds or calls == 0:
            step(script[at % len(script)])  # waits for the device by itself
            at += 1
            calls += 1
        return calls / spent

    return play
