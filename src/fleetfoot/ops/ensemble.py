"""What two critics say together."""

from __future__ import annotations

from torch import Tensor


def bound(q: Tensor, beta: Tensor | float) -> Tensor:
    """q [2, ...] -> mean + beta * spread, [...], where the spread is half the distance of the two.

    beta = -1 is their minimum, 0 their mean, 1 their maximum; what lies beyond goes on from there.
    """
    mean, spread = q.mean(0), 0.5 * (q[0] - q[1]).abs()
    return mean + beta * spread
