"""An environment that fails, in a module of its own so that other processes find it."""

from __future__ import annotations

from typing import Any

import torch

from fleetfoot.envs.tensor import TensorConfig, TensorEnv
from fleetfoot.part import part


@part
class FragileConfig:
    """The cartpole, whose third step fails."""

    def build(self, num_envs: int, seed: int, device: torch.device) -> TensorEnv:
        env = TensorConfig(task="cartpole").build(num_envs, seed, device)
        inner, count = env.step, 0

        def step(action: torch.Tensor) -> Any:
            nonlocal count
            count += 1
            if count == 3:
                raise RuntimeError("the motor is too hot")
            return inner(action)

        env.step = step  # type: ignore[method-assign]
        return env

    def for_evaluation(self) -> TensorConfig:
        return TensorConfig(task="cartpole")
