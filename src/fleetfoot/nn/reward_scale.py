"""Reward normalisation by the spread of returns, for all environments together or for each task; the value ranges that
are made with it."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from fleetfoot.data import EnvSpec
from fleetfoot.errors import UserError
from fleetfoot.ops import categorical

Bound = float | Literal["auto"]
AUTO_RANGE = 5.0  # what rewards are scaled into where nobody gives a range; the number itself does not matter


class RewardScale(nn.Module):
    """Divide rewards by max(std(G), max|G| / g_max), where G is the running discounted return of each environment.

    G <- gamma (1 - terminated) G + r, kept per environment. It goes on where the clock ends an episode, as values do
    there: with episodes that are short beside 1 / (1 - gamma), a sum over one of them is far below the values that are
    learned, and no range made for it would hold them. Its statistics are kept per task, over all environments of that
    task; without tasks there is one. g_max is what the value support can hold.
    """

    returns: Tensor
    mean: Tensor
    variance: Tensor
    count: Tensor
    largest: Tensor
    divisor: Tensor

    def __init__(self, num_envs: int, tasks: int, gamma: float, g_max: float):
        super().__init__()
        self.gamma, self.g_max = gamma, g_max
        self.register_buffer("returns", torch.zeros(num_envs, dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(tasks, dtype=torch.float64))
        self.register_buffer("variance", torch.zeros(tasks, dtype=torch.float64))
        self.register_buffer("count", torch.zeros(tasks, dtype=torch.float64))
        self.register_buffer("largest", torch.zeros(tasks, dtype=torch.float64))
        self.register_buffer("divisor", torch.ones(tasks))

    @staticmethod
    def into(v_min: float, v_max: float, spec: EnvSpec, gamma: float) -> RewardScale:
        """Of one set of environments, for critics whose values lie between the two bounds."""
        if not gamma < 1.0:
            raise UserError(
                "rewards are scaled by the returns here, and with --gamma 1 those of episodes that a time limit ends "
                "grow forever; give a gamma below 1."
            )
        g_max = min(abs(v_min), abs(v_max))
        return RewardScale(spec.num_envs, max(1, len(spec.tasks)), gamma, g_max)

    @torch.no_grad()
    def update(self, reward: Tensor, terminated: Tensor, task: Tensor | None) -> None:
        """Take in one vec step: reward [N], terminated [N] bool, task [N] or None."""
        if task is None:
            task = torch.zeros_like(terminated, dtype=torch.int64)
        self.returns.mul_(self.gamma).add_(reward)
        rows = torch.zeros_like(self.count).index_add_(0, task, torch.ones_like(self.returns))
        sums = torch.zeros_like(self.count).index_add_(0, task, self.returns)
        present = rows > 0
        batch_mean = sums / rows.clamp(min=1)
        off = (self.returns - batch_mean[task]).square()
        squares = torch.zeros_like(self.count).index_add_(0, task, off)
        total = self.count + rows
        delta = batch_mean - self.mean
        merged = self.variance * self.count + squares
        merged += delta.square() * self.count * rows / total.clamp(min=1)
        self.mean += torch.where(present, delta * rows / total.clamp(min=1), 0.0)
        self.variance.copy_(torch.where(present, merged / total.clamp(min=1), self.variance))
        self.count.copy_(total)
        self.largest.scatter_reduce_(0, task, self.returns.abs(), "amax")
        self.returns.mul_(~terminated)
        spread = torch.maximum(self.variance.sqrt(), self.largest / self.g_max)
        self.divisor.copy_(torch.where((self.count > 0) & (spread > 0), spread, 1.0))

    def forward(self, reward: Tensor, task: Tensor | None) -> Tensor:
        """Rewards [B] (or folded returns) in the units that the critic learns."""
        return reward / (self.divisor[0] if task is None else self.divisor[task])

    def undo(self, value: Tensor, task: Tensor | None) -> Tensor:
        """Values [B] of the critic in units of the environment's reward."""
        return value * (self.divisor[0] if task is None else self.divisor[task])


def value_support(
    v_min: Bound,
    v_max: Bound,
    num_atoms: int,
    spec: EnvSpec,
    *,
    gamma: float,
    normalize_reward: bool,
    device: torch.device,
) -> tuple[Tensor, RewardScale | None]:
    """The atoms [K] of a categorical critic, and the scale of the rewards that it learns from; None: as they are.

    With "auto" for both bounds, rewards are scaled so that returns fit. What is stored stays raw and is scaled when it
    is learned from, so all rows of a batch, and all steps of a return, have the same scale, however it has changed.
    """
    if v_min == "auto" or v_max == "auto":
        v_min, v_max, normalize_reward = -AUTO_RANGE, AUTO_RANGE, True
    z = categorical.support(v_min, v_max, num_atoms, device)
    if not normalize_reward:
        return z, None
    return z, RewardScale.into(v_min, v_max, spec, gamma).to(device)
