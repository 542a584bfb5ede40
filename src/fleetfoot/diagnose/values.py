"""Values: are they what the policy earns, and do they hold on rows that nobody learned from?"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

SMALLEST = 1e-8  # divisors are at least this, since a log takes finite numbers alone


@torch.no_grad()
def monte_carlo(
    reward: Tensor, terminated: Tensor, truncated: Tensor, next_value: Tensor, gamma: float
) -> Tensor:
    """Discounted returns [T, N] of the episodes in a rollout, all arguments [T, N].

    G_t = r_t + gamma * (0 where terminated, next_value_t where truncated or where the rollout ends, else G_t+1).
    """
    returns = torch.empty_like(reward)
    ahead = next_value[-1]
    for t in reversed(range(len(reward))):
        ahead = torch.where(truncated[t], next_value[t], ahead)
        ahead = reward[t] + gamma * torch.where(terminated[t], 0.0, ahead)
        returns[t] = ahead
    return returns


@torch.no_grad()
def overestimation(q: Tensor, returns: Tensor, counted: Tensor) -> Tensor:
    """mean(q - returns) / mean |returns| over the entries that are `counted` (bool); above zero: too high."""
    rows = counted.sum().clamp(min=1)
    error = torch.where(counted, q - returns, 0.0).sum() / rows
    size = torch.where(counted, returns.abs(), 0.0).sum() / rows
    return error / size.clamp(min=SMALLEST)


class Overfitting(NamedTuple):
    """The critic's error on held-out rows beside that on training rows."""

    ratio: Tensor  # held out / training
    difference: Tensor  # held out - training


@torch.no_grad()
def overfitting(training: Tensor, held_out: Tensor) -> Overfitting:
    """The TD loss on rows that were held out, against the loss on rows that may be learned from."""
    return Overfitting(held_out / training.clamp(min=SMALLEST), held_out - training)
