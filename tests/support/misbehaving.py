"""A Gymnasium environment that behaves until its step number `at`, and then does what `how` names."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

ID = "Misbehaving-v0"


class Unpicklable(Exception):  # noqa: N818
    def __init__(self, one: int, two: int) -> None:
        super().__init__("no process can be told")
        self.why = lambda: (one, two)


def fail(error: BaseException) -> Any:
    raise error


def good(obs: Any = None, reward: Any = 1.0, ended: Any = False, info: Any = None) -> Any:
    obs = np.zeros(3, np.float32) if obs is None else obs
    return obs, reward, ended, False, {} if info is None else info


# What a step may do; with "reset " before it, a reset does it.
STEPS: dict[str, Callable[[], Any]] = {
    "raise": lambda: fail(ZeroDivisionError("the arm has left\nthe world")),
    "raise without words": lambda: fail(AssertionError()),
    "raise what cannot be pickled": lambda: fail(Unpicklable(1, 2)),
    "memory error": lambda: fail(MemoryError()),
    "recursion": lambda: fail(RecursionError("deep")),
    "broken pipe": lambda: fail(BrokenPipeError(32, "Broken pipe")),
    "system exit": lambda: sys.exit(0),
    "system exit 3": lambda: sys.exit(3),
    "generator exit": lambda: fail(GeneratorExit()),
    "none": lambda: None,
    "four values": lambda: good()[:4],
    "obs none": lambda: (None, *good()[1:]),
    "obs text": lambda: good("left"),
    "obs longer": lambda: good(np.zeros(4, np.float32)),
    "obs shorter": lambda: good(np.zeros(2, np.float32)),
    "obs scalar": lambda: good(np.float32(1.0)),
    "obs matrix": lambda: good(np.zeros((3, 3), np.float32)),
    "obs empty": lambda: good(np.zeros(0, np.float32)),
    "obs dict": lambda: good({"position": np.zeros(3)}),
    "obs complex": lambda: good(np.zeros(3, np.complex64)),
    "obs ragged": lambda: good([[1.0], 2.0, 3.0]),
    "obs nan": lambda: good(np.array([0.0, np.nan, 0.0], np.float32)),
    "obs inf": lambda: good(np.array([0.0, np.inf, 0.0], np.float32)),
    "reward none": lambda: good(reward=None),
    "reward text": lambda: good(reward="much"),
    "reward nan": lambda: good(reward=float("nan")),
    "reward inf": lambda: good(reward=float("inf")),
    "reward vector": lambda: good(reward=np.ones(2)),
    "ended none": lambda: good(ended=None),
    "ended text": lambda: good(ended="yes"),
    "ended vector": lambda: good(ended=np.array([True, False])),
    "info none": lambda: (*good()[:4], None),
    "info list": lambda: (*good()[:4], [1]),
}
HARMLESS = ("info none",)  # means the same as an empty one
ENDS_ITS_PROCESS: dict[str, Callable[[], Any]] = {
    "exit at once": lambda: os._exit(0),
    "killed by itself": lambda: os.kill(os.getpid(), 9),
}
HANGS: dict[str, Callable[[], Any]] = {
    "sleep": lambda: time.sleep(3600),
    "loop": lambda: [None for _ in iter(int, 1)],
}
EVERYTHING = {**STEPS, **ENDS_ITS_PROCESS, **HANGS}


class Misbehaving(gymnasium.Env[Any, Any]):
    observation_space = spaces.Box(-1.0, 1.0, (3,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, how: str = "raise", at: int = 25) -> None:
        self.how, self.at, self.count = how, at, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        if self.how.startswith("reset ") and self.count >= self.at:
            return EVERYTHING[self.how.removeprefix("reset ")]()[::4]  # obs and info
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> Any:
        self.count += 1
        if self.count == self.at and not self.how.startswith("reset "):
            return EVERYTHING[self.how]()
        return good(ended=self.count % 10 == 0)


gymnasium.register(ID, entry_point=f"{__name__}:{Misbehaving.__name__}")
