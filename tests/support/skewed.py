"""Environments and learners that take their time, or fail. Ray's workers import this module by name."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from fleetfoot.agents.ddpg import DDPG, DDPGConfig
from fleetfoot.config import part
from fleetfoot.data import EnvSpec
from fleetfoot.envs.tensor import TensorConfig, TensorEnv


@part
class SkewedEnvConfig:
    """The pendulum, each of whose steps takes so many seconds; the one number `fails_at` of the environments that
    train raises, in one actor's first life, and the one number `waits_at` takes until there is a file `marker`."""

    seconds: float = 0.0
    fails_at: int = 0
    waits_at: int = 0
    marker: str = ""

    def build(self, num_envs: int, seed: int, device: torch.device) -> TensorEnv:
        env, count = TensorConfig(task="pendulum").build(num_envs, seed, device), 0
        true_step = env.step

        def step(action: torch.Tensor) -> Any:
            nonlocal count
            count += 1
            if count == self.fails_at:
                raise ZeroDivisionError("the motor is too hot")
            stuck = time.monotonic() + 120
            while count == self.waits_at and not Path(self.marker).exists():
                assert time.monotonic() < stuck
                time.sleep(0.01)
            time.sleep(self.seconds)
            return true_step(action)

        env.step = step  # type: ignore[method-assign]
        return env

    def for_evaluation(self) -> TensorConfig:
        return TensorConfig(task="pendulum")


@part
class SkewedDDPGConfig(DDPGConfig):
    """Each update takes so many seconds; the policy's number `fails_at` raises."""

    critic_seconds: float = 0.0
    policy_seconds: float = 0.0
    fails_at: int = 0

    @staticmethod
    def of(cfg: DDPGConfig, **changes: Any) -> SkewedDDPGConfig:
        same = {field.name: getattr(cfg, field.name) for field in fields(cfg)}
        return SkewedDDPGConfig(**(same | changes))

    def build(
        self, spec: EnvSpec, *, gamma: float, total_updates: int, seed: int, device: torch.device
    ) -> DDPG:
        agent: Any = super().build(
            spec, gamma=gamma, total_updates=total_updates, seed=seed, device=device
        )
        agent.update_critic = self.slow(agent.update_critic, self.critic_seconds, 0)
        agent.update_policy = self.slow(agent.update_policy, self.policy_seconds, self.fails_at)
        built: DDPG = agent
        return built

    @staticmethod
    def slow(update: Callable[[Any], Any], seconds: float, fails_at: int) -> Callable[[Any], Any]:
        count = 0

        def slower(batch: Any) -> Any:
            nonlocal count
            count += 1
            if count == fails_at:
                raise ZeroDivisionError("no way up")
            time.sleep(seconds)
            return update(batch)

        return slower
