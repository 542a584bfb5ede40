"""How fast the Atari adapter is, beside the bare vector environment of ale-py.

Both take turns in one process, and which of them begins alternates from round to round; the median round counts. They
play the same game from the same seeds with the same actions.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from benchmarks.rates import medians, player, take_turns
from fleetfoot.data import Discrete
from fleetfoot.envs.atari import FRAME_SKIP, AtariConfig, rom_of
from fleetfoot.errors import UserError

BAR = 0.7  # of the bare environment's speed


def bench_atari(
    game: str = "Pong",
    num_envs: int = 64,
    seconds: float = 10.0,
    *,
    threads: int = 1,
    rounds: int = 5,
    seed: int = 0,
) -> dict[str, Any]:
    """Env steps per second of our adapter and of the bare AtariVectorEnv. An env step is four frames.

    `seconds` is the measured time in all, shared equally. The bare environment is as fast as ale-py makes it: it
    restarts one step late, and has no final observations.
    """
    if num_envs < 1 or rounds < 1 or seconds <= 0 or threads < 1:
        raise UserError("bench atari needs num_envs, rounds and threads >= 1, and seconds > 0.")
    env = AtariConfig(game=game, threads=threads).build(num_envs, seed, torch.device("cpu"))
    seeds = env.seeds
    env.reset()
    assert isinstance(env.spec.action, Discrete)
    script = np.random.default_rng(seed).integers(env.spec.action.count, size=(200, num_envs))
    ours = player(lambda action: env.step(torch.from_numpy(action)), script)
    bare = player(bare_step(game, num_envs, threads, seeds), script)
    contestants = {"fleetfoot": ours, "bare": bare}
    rates = take_turns(contestants, seconds, rounds, times=num_envs)
    env.close()
    speed = medians(rates)
    ratio = speed["fleetfoot"] / speed["bare"]
    return {
        "game": game,
        "num_envs": num_envs,
        "threads": threads,
        "rounds": rounds,
        "ale_py": importlib.metadata.version("ale-py"),
        "env_steps_per_second": speed,
        "frames_per_second_per_thread": {
            name: rate * FRAME_SKIP / min(threads, num_envs) for name, rate in speed.items()
        },
        "rounds_env_steps_per_second": rates,
        "ratio_to_bare": ratio,
        "bar": BAR,
        "passed": ratio >= BAR,
    }


def bare_step(game: str, num_envs: int, threads: int, seeds: Any) -> Callable[[Any], object]:
    from ale_py.vector_env import AtariVectorEnv

    envs: Any = AtariVectorEnv(
        rom_of(game),
        num_envs,
        num_threads=min(threads, num_envs),
        noop_max=31,
        reward_clipping=False,
        use_fire_reset=False,
    )
    envs.reset(seed=seeds)
    step: Callable[[Any], object] = envs.step
    return step
