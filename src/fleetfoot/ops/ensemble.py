"""What several critics say together."""

from __future__ import annotations

from torch import Tensor


def bound(q: Tensor, beta: Tensor | float) -> Tensor:
    """q [E, ...] -> mean + beta * spread, [...]; the spread is the critics' mean distance to their mean.

    Of two critics that is half their distance: beta = -1 is their minimum, 1 their maximum; what lies beyond goes on
    from there.
    """
    mean = q.mean(0)
    return mean + beta * (q - mean).abs().mean(0)
