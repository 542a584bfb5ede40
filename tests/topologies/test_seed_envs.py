"""Several sets of environments as one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fleetfoot.data import Step
from fleetfoot.envs.tensor import TensorConfig
from fleetfoot.envs.vec_env import VecEnv
from fleetfoot.topologies.multi_seed.env import ConcatVecEnv

CPU = torch.device("cpu")


def pendulum(num_envs: int, seed: int) -> VecEnv:
    return TensorConfig(task="pendulum").build(num_envs, seed, CPU)


class Halves:
    """Steps in two halves, and notes which."""

    def __init__(self, env: VecEnv, name: str, notes: list[str]) -> None:
        self.env, self.name, self.notes, self.spec = env, name, notes, env.spec

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def step(self, action: Tensor) -> Step:
        raise AssertionError("it can do better")

    def send(self, action: Tensor) -> None:
        self.notes.append(f"send {self.name}")
        self.action = action

    def receive(self) -> Step:
        self.notes.append(f"receive {self.name}")
        return self.env.step(self.action)


def test_rows_are_those_of_the_parts_and_parts_work_at_the_same_time() -> None:
    notes: list[str] = []
    sizes = (2, 1, 3)
    parts = [pendulum(size, seed) for seed, size in enumerate(sizes)]
    alone = [pendulum(size, seed) for seed, size in enumerate(sizes)]
    joined = ConcatVecEnv(
        [Halves(parts[0], "a", notes), parts[1], Halves(parts[2], "c", notes)], CPU
    )
    assert joined.spec.num_envs == 6
    first = torch.cat([env.reset().actor for env in alone])
    assert torch.equal(joined.reset().actor, first)
    action = torch.rand(6, 1, generator=torch.Generator().manual_seed(0)) * 2 - 1
    step = joined.step(action)
    assert notes == ["send a", "send c", "receive a", "receive c"]
    wanted = [env.step(own) for env, own in zip(alone, action.split(sizes), strict=True)]  # type: ignore[no-untyped-call]
    assert torch.equal(step.obs.actor, torch.cat([w.obs.actor for w in wanted]))
    assert torch.equal(step.reward, torch.cat([w.reward for w in wanted]))
