"""Streams of transitions for the tests of the replay, and its comparison with the oracle."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fleetfoot.data import Continuous, Discrete, EnvSpec, Obs, Transition
from fleetfoot.replay.replay import Replay
from fleetfoot.replay.ring import Ring
from fleetfoot.replay.samplers import Drawn
from oracles.replay import OracleReplay

CPU = torch.device("cpu")


def make_spec(num_envs: int = 3, **changes: Any) -> EnvSpec:
    fields: dict[str, Any] = {
        "name": "made-up",
        "num_envs": num_envs,
        "obs_shape": (4,),
        "action": Continuous(2),
        "device": CPU,
    }
    return EnvSpec(**(fields | changes))


class Stream:
    """Random transitions that follow from one another, as an environment would make them."""

    def __init__(self, spec: EnvSpec, seed: int, end_share: float):
        self.spec, self.end_share = spec, end_share
        self.random = torch.Generator().manual_seed(seed)
        self.obs = self.draw_obs()

    def draw_obs(self) -> Obs:
        n = self.spec.num_envs
        actor = torch.randn(n, *self.spec.obs_shape, generator=self.random)
        if self.spec.obs_dtype == torch.uint8:
            actor = (actor * 50 + 128).clamp(0, 255).to(torch.uint8)
        if self.spec.critic_shape is None:
            return Obs(actor, actor)
        rest = self.spec.critic_shape[0] - self.spec.critic_prefix
        private = torch.randn(n, rest, generator=self.random)
        if self.spec.critic_prefix == 0:
            return Obs(actor, private)
        return Obs(actor, torch.cat([actor[:, : self.spec.critic_prefix], private], 1))

    def step(self) -> Transition:
        n = self.spec.num_envs
        if isinstance(self.spec.action, Discrete):
            action = torch.randint(self.spec.action.count, (n,), generator=self.random)
        else:
            action = torch.rand(n, self.spec.action.size, generator=self.random) * 2 - 1
        ended = torch.rand(n, generator=self.random) < self.end_share
        by_clock = torch.rand(n, generator=self.random) < 0.5
        following = self.draw_obs()
        fresh = self.draw_obs()
        done = Transition(
            obs=self.obs,
            action=action,
            reward=torch.randn(n, generator=self.random),
            terminated=ended & ~by_clock,
            truncated=ended & by_clock,
            next_obs=following,
            info={},
        )
        pick = ended.view(-1, *([1] * (following.actor.dim() - 1)))
        actor = torch.where(pick, fresh.actor, following.actor)
        same = following.critic is following.actor
        critic = actor if same else torch.where(ended.unsqueeze(1), fresh.critic, following.critic)
        self.obs = Obs(actor, critic)
        return done


class Every:
    """A sampler that returns every row, oldest first."""

    def __init__(self, columns: int):
        self.columns = columns

    def draw(self, rows: int, ring: Ring) -> Drawn:
        age, column = torch.meshgrid(
            torch.arange(ring.size), torch.arange(self.columns), indexing="ij"
        )
        return Drawn(age.flatten(), column.flatten(), torch.ones(ring.size * self.columns))


def everything(replay: Replay) -> Any:
    replay.sampler = Every(replay.ring.columns)  # type: ignore[assignment]
    return replay.sample(0)


def compare(replay: Replay, oracle: OracleReplay, exact: bool = True) -> None:
    batch = everything(replay)
    tolerance: dict[str, Any] = {} if exact else {"rtol": 1e-2, "atol": 1e-2, "check_dtype": False}
    row = 0
    for age in range(replay.ring.size):
        for column in range(replay.ring.columns):
            first, reward, discount, following = oracle.window(age, column)
            torch.testing.assert_close(batch.obs.critic[row], first.obs, **tolerance)
            torch.testing.assert_close(batch.action[row], first.action, **tolerance)
            assert float(batch.reward[row]) == pytest.approx(reward, abs=1e-5)
            assert float(batch.discount[row]) == pytest.approx(discount, abs=1e-6)
            if batch.weight[row] > 0 and discount > 0:
                torch.testing.assert_close(batch.next_obs.critic[row], following, **tolerance)
            row += 1


def frame_spec(columns: int, stack: int = 4, **changes: Any) -> EnvSpec:
    return make_spec(
        columns,
        obs_shape=(stack, 2, 3),
        obs_dtype=torch.uint8,
        action=Discrete(4),
        frame_stack=stack,
        **changes,
    )


class Film:
    """Transitions as a game shows them: stacks that move on by one frame, blank before an episode's first."""

    def __init__(self, spec: EnvSpec, seed: int, end_share: float, shades: int = 256):
        self.spec, self.end_share, self.shades = spec, end_share, shades
        self.random = torch.Generator().manual_seed(seed)
        self.stack = self.first()

    def frame(self) -> torch.Tensor:
        shape = (self.spec.num_envs, *self.spec.obs_shape[1:])
        return torch.randint(self.shades, shape, generator=self.random, dtype=torch.uint8)

    def first(self) -> torch.Tensor:
        stack = torch.zeros(self.spec.num_envs, *self.spec.obs_shape, dtype=torch.uint8)
        stack[:, -1] = self.frame()
        return stack

    def obs(self, stack: torch.Tensor) -> Obs:
        if self.spec.critic_shape is None:
            return Obs(stack, stack)
        # What only the critic sees: a number made of the newest frame.
        return Obs(stack, stack[:, -1].float().mean((1, 2)).unsqueeze(1))

    def step(self) -> Transition:
        n = self.spec.num_envs
        ended = torch.rand(n, generator=self.random) < self.end_share
        by_clock = torch.rand(n, generator=self.random) < 0.5
        following = torch.cat([self.stack[:, 1:], self.frame().unsqueeze(1)], 1)
        done = Transition(
            obs=self.obs(self.stack),
            action=torch.randint(4, (n,), generator=self.random),
            reward=torch.randn(n, generator=self.random),
            terminated=ended & ~by_clock,
            truncated=ended & by_clock,
            next_obs=self.obs(following),
            info={},
        )
        self.stack = torch.where(ended.view(-1, 1, 1, 1), self.first(), following)
        return done
