"""An environment that raises in one actor's first life. Ray's workers import this module by its name."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fleetfoot.envs.tensor import TensorConfig, TensorEnv
from fleetfoot.part import part


@part
class CrashingConfig:
    """The cartpole, whose step number `at` fails in environments of this seed (0: of any seed)."""

    seed: int = 0
    at: int = 20

    def build(self, num_envs: int, seed: int, device: torch.device) -> TensorEnv:
        env = TensorConfig(task="cartpole").build(num_envs, seed, device)
        if self.seed in (0, seed):
            true_step, count = env.step, 0

            def step(action: Tensor) -> Any:
                nonlocal count
                count += 1
                if count == self.at:
                    raise ZeroDivisionError("the pole has left the world")
                return true_step(action)

            env.step = step  # type: ignore[method-assign]
        return env

    def for_evaluation(self) -> TensorConfig:
        return TensorConfig(task="cartpole")
