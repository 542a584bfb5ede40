"""Explorers for discrete actions: the largest q-value, and now and then any action."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fleetfoot.config import at_least, part
from fleetfoot.data import EnvSpec
from fleetfoot.errors import UserError
from fleetfoot.explore.drawing import Drawing, RandomChoice, check_rungs


@part
class EpsilonAnnealConfig:
    """Epsilon-greedy with one epsilon for all environments, which falls linearly and then stays constant
    (DQN, Gorila)."""

    start: float = 1.0
    """Share of random actions at the start."""
    end: float = 0.1
    """Share of random actions at the end."""
    over_vec_steps: int = 10_000
    """Vec steps over which the share falls, counted from the end of `random_vec_steps`."""
    random_vec_steps: int = 0
    """Vec steps of uniformly random actions at the start."""

    def __post_init__(self) -> None:
        at_least(self, "explorer", over_vec_steps=1, random_vec_steps=0)
        if not (0.0 <= self.start <= 1.0 and 0.0 <= self.end <= 1.0):
            raise UserError(
                "explorer.start and end are shares of random actions and lie between 0 and 1, "
                f"not {self.start} and {self.end}."
            )

    def build(self, spec: EnvSpec, *, seed: int, device: torch.device) -> EpsilonAnneal:
        return EpsilonAnneal(self, RandomChoice(spec, self.random_vec_steps, seed, device))


class EpsilonAnneal(Drawing[RandomChoice]):
    """Random actions with a probability that falls over time, the same in all environments."""

    def __init__(self, cfg: EpsilonAnnealConfig, random: RandomChoice):
        self.cfg, self.random = cfg, random
        self.vec_steps = 0  # since the random start

    def epsilon(self) -> float:
        """The share of random actions at the coming vec step."""
        progress = min(1.0, self.vec_steps / self.cfg.over_vec_steps)
        return self.cfg.start + progress * (self.cfg.end - self.cfg.start)

    def explore(self, output: Tensor) -> Tensor:
        epsilon = self.epsilon()
        self.vec_steps += 1
        return self.random.greedy_but(output, epsilon)

    def skip(self, vec_steps: int) -> None:
        self.vec_steps += self.random.skip(vec_steps)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"vec_steps": self.vec_steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.vec_steps = state["vec_steps"]


@part
class EpsilonLadderConfig:
    """Epsilon-greedy, with a constant epsilon for each environment (Ape-X).

    epsilon_i = epsilon^(1 + i / (total - 1) * alpha), i from 0. A ladder of one rung is `epsilon` itself.
    """

    epsilon: float = 0.4
    """Share of random actions in the first environment, which explores most."""
    alpha: float = 7.0
    """The last environment has epsilon^(1 + alpha)."""
    first: int = 0
    """The rung of this explorer's first environment, if several workers share one ladder."""
    total: int | None = None
    """Rungs of the whole ladder; None: as many as there are environments here."""
    random_vec_steps: int = 0
    """Vec steps of uniformly random actions at the start."""

    def __post_init__(self) -> None:
        at_least(self, "explorer", alpha=0, first=0, random_vec_steps=0)
        if not 0.0 <= self.epsilon <= 1.0:
            raise UserError(f"explorer.epsilon must lie between 0 and 1, not {self.epsilon}.")

    def build(self, spec: EnvSpec, *, seed: int, device: torch.device) -> EpsilonLadder:
        total = check_rungs(self.first, self.total, spec)
        rungs = ladder(self.epsilon, self.alpha, total)[self.first : self.first + spec.num_envs]
        random = RandomChoice(spec, self.random_vec_steps, seed, device)
        return EpsilonLadder(rungs.to(device, torch.float32), random)


def ladder(epsilon: float, alpha: float, total: int) -> Tensor:
    """The epsilons of Ape-X, [total] float64, from the most curious to the least."""
    height = torch.arange(total, dtype=torch.float64) / max(1, total - 1)
    return epsilon ** (1.0 + alpha * height)


class EpsilonLadder(Drawing[RandomChoice]):
    """Random actions with a constant probability that each environment has of its own."""

    def __init__(self, epsilon: Tensor, random: RandomChoice):
        self.epsilon, self.random = epsilon, random  # [N]

    def explore(self, output: Tensor) -> Tensor:
        return self.random.greedy_but(output, self.epsilon)


@part
class GreedyConfig:
    """Always the action with the largest q-value, for actors that only evaluate."""

    random_vec_steps: int = 0
    """Vec steps of uniformly random actions at the start."""

    def __post_init__(self) -> None:
        at_least(self, "explorer", random_vec_steps=0)

    def build(self, spec: EnvSpec, *, seed: int, device: torch.device) -> EpsilonLadder:
        """A ladder of which every rung is zero."""
        nowhere = torch.zeros(spec.num_envs, device=device)
        return EpsilonLadder(nowhere, RandomChoice(spec, self.random_vec_steps, seed, device))
