"""Returns over a fixed number of steps of a rollout."""

from __future__ import annotations

import torch
from torch import Tensor


def horizon_returns(
    reward: Tensor,
    discount: Tensor,
    ended: Tensor,
    next_value: Tensor,
    horizon: int,
    lam: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Discounted rewards of the next `horizon` steps of each row, and the value of what follows them; [T, ...] each.

    A return stops early, and takes the value of what followed, at the end of the rollout and where an episode was cut.
    Second: the number of steps after which each one takes a value. After a termination nothing follows, so such a
    return is exact for any number of steps, and `horizon` is given.

    `lam` < 1: the mean of the returns of 1, 2, ... steps, each with `lam` times the weight of the one before, and the
    last with all that is left.
    """
    last = torch.zeros_like(ended)
    last[-1] = True
    stops = ended | last
    returns, steps = next_value, torch.zeros_like(reward, dtype=torch.int64)
    for count in range(1, horizon + 1):
        # Of the row after: what `count - 1` steps from there on gave.
        later = torch.where(stops, next_value, returns.roll(-1, 0)) if count > 1 else next_value
        if lam != 1.0:
            later = torch.lerp(next_value, later, lam)
        returns = reward + discount * later
        more = torch.where(stops, 0, steps.roll(-1, 0)) if count > 1 else steps
        steps = torch.where(discount == 0.0, count, 1 + more)
    return returns, steps


def lambda_means(returns: Tensor, lam: float) -> Tensor:
    """Of the returns of 1, 2, ... steps, [H, ...], the means for all horizons 1..H: `horizon_returns` says which."""
    means = []
    total = torch.zeros_like(returns[0])
    for step, value in enumerate(returns.unbind()):
        means.append(total + lam**step * value)
        total = total + (1.0 - lam) * lam**step * value
    return torch.stack(means)
