"""Do values match the returns of the policy, and do they generalise to held-out rows?"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

MIN_DIVISOR = 1e-8  # metrics must be finite


@torch.no_grad()
def monte_carlo(
    reward: Tensor, terminated: Tensor, truncated: Tensor, next_value: Tensor, gamma: float
) -> Tensor:
    """Discounted returns [T, N] of the episodes in a rollout, all arguments [T, N].

    G_t = r_t + gamma * (0 where terminated, next_value_t where truncated or where the rollout ends, else G_t+1).
    """
    returns = torch.empty_like(reward)
    following = next_value[-1]  # the return after step t
    for t in reversed(range(len(reward))):
        following = torch.where(truncated[t], next_value[t], following)
        following = reward[t] + gamma * torch.where(terminated[t], 0.0, following)
        returns[t] = following
    return returns


@torch.no_grad()
def overestimation(q: Tensor, returns: Tensor, counted: Tensor) -> Tensor:
    """mean(q - returns) / mean |returns| where `counted` (bool) is true; positive: the values are too high."""
    rows = counted.sum().clamp(min=1)
    error = torch.where(counted, q - returns, 0.0).sum() / rows
    size = torch.where(counted, returns.abs(), 0.0).sum() / rows
    return error / size.clamp(min=MIN_DIVISOR)


class Overfitting(NamedTuple):
    """The critic's error on held-out rows beside that on training rows."""

    ratio: Tensor  # held out / training
    difference: Tensor  # held out - training


@torch.no_grad()
def overfitting(training: Tensor, held_out: Tensor) -> Overfitting:
    """The TD loss on held-out rows, compared with the loss on training rows."""
    return Overfitting(held_out / training.clamp(min=MIN_DIVISOR), held_out - training)
