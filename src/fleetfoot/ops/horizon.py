"""Returns over a fixed number of steps of a rollout."""

from __future__ import annotations

import torch
from torch import Tensor


def horizon_returns(
    reward: Tensor, discount: Tensor, ended: Tensor, next_value: Tensor, horizon: int
) -> tuple[Tensor, Tensor]:
    """Discounted rewards of the next `horizon` steps of each row, and the value of what follows them; [T, ...] each.

    A return stops early, and takes the value of what followed, at the end of the rollout and where an episode was cut.
    Second: the number of steps after which each one takes a value. After a termination nothing follows, so such a
    return is exact for any number of steps, and `horizon` is given.
    """
    last = torch.zeros_like(ended)
    last[-1] = True
    stops = ended | last
    returns, steps = next_value, torch.zeros_like(reward, dtype=torch.int64)
    for count in range(1, horizon + 1):
        # Of the row after: what `count - 1` steps from there on gave.
        later = torch.where(stops, next_value, returns.roll(-1, 0)) if count > 1 else next_value
        returns = reward + discount * later
        more = torch.where(stops, 0, steps.roll(-1, 0)) if count > 1 else steps
        steps = torch.where(discount == 0.0, count, 1 + more)
    return returns, steps
