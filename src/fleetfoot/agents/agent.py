"""What a topology may ask of an agent."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import nn

from fleetfoot.data import Batch, EnvSpec, Learned, Transition


class Agent(Protocol):
    """A learner. It knows neither episodes' ends nor n: both are folded into `Batch.reward` and `Batch.discount`."""

    @property
    def policy(self) -> nn.Module:
        """Obs -> the greedy action: what is evaluated, exported and deployed."""
        ...

    @property
    def behaviour(self) -> nn.Module:
        """Obs -> what the explorer reads: an action, a sampled action, or q-values."""
        ...

    def observe(self, fresh: Transition) -> None:
        """See each new transition once, in order. Running statistics change here and nowhere else."""
        ...

    def update(self, batch: Batch) -> Learned:
        """One update."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class ActorCritic(Agent, Protocol):
    """An agent whose update falls apart into two."""

    @property
    def critic(self) -> nn.Module: ...

    def update_critic(self, batch: Batch) -> Learned: ...

    def update_policy(self, batch: Batch) -> Learned: ...


class AgentConfig(Protocol):
    def build(
        self, spec: EnvSpec, *, gamma: float, total_updates: int, seed: int, device: torch.device
    ) -> Agent:
        """`total_updates` is the length of the learning-rate schedules."""
        ...
