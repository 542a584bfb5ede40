"""A small Gymnasium environment for the tests of process pools; as "support.fake_gym:Fake-v0"."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Fake(gymnasium.Env[Any, Any]):
    """Two numbers that walk where they are told. Leaving [-1.5, 1.5] ends it; actions are in [0, 10]."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 25}  # noqa: RUF012
    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float64)
    action_space = spaces.Box(0.0, 10.0, (2,), np.float64)

    made = 0  # in this process

    def __init__(
        self, trouble: str = "", render_mode: str | None = None, only: int | None = None
    ) -> None:
        self.trouble, self.render_mode = trouble, render_mode
        if only not in (None, Fake.made):  # the trouble is in one of those of a process
            self.trouble = ""
        Fake.made += 1
        if trouble == "making":
            raise ValueError("no such\nrobot")
        self.pid = float(os.getpid())

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place = self.np_random.uniform(-1, 1, 2)
        self.clock = 0
        # Drawn from the global stream, as HumanoidBench does.
        self.mark = np.random.uniform()
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.clock += 1
        if self.clock == 3 and self.trouble == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.clock == 3 and self.trouble == "exit":
            sys.stderr.close()
            os._exit(7)
        if self.clock == 3 and self.trouble == "raises":
            raise ZeroDivisionError("three is enough")
        if self.trouble == "slow":
            time.sleep(0.01)
        self.place = self.place + (np.asarray(action) - 5) / 10
        away = bool(np.abs(self.place).max() > 1.5)
        info: dict[str, Any] = {"success": self.clock > 5, "label": "fake"}
        if self.clock % 2 == 0:
            info["clock"] = self.clock
        return self._seen(), float(action[0]), away, False, info

    def render(self) -> Any:
        if self.render_mode is None:
            return None
        if self.trouble == "killed at render":
            os.kill(os.getpid(), signal.SIGKILL)
        np.random.uniform()  # as some do, say for the place of the camera
        return np.full((6, 8, 3), self.clock, np.uint8)

    def _seen(self) -> Any:
        return np.array([*self.place, self.mark])


gymnasium.register("Fake-v0", Fake, max_episode_steps=12)  # type: ignore[arg-type]
