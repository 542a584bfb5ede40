"""What several critics say together.

One sign everywhere: beta is pessimism, the share of the critics' spread that is taken off their mean. Optimism is a
negative beta.
"""

from __future__ import annotations

from torch import Tensor


def spread(q: Tensor) -> Tensor:
    """q [E, ...] -> how far the critics disagree, [...]: their mean distance to their mean, which of two critics is
    half their distance. Its gradient is finite where they agree.
    """
    return (q - q.mean(0)).abs().mean(0)


def bound(q: Tensor, beta: Tensor | float) -> Tensor:
    """q [E, ...] -> mean - beta * spread, [...]. Of two critics, beta = 1 is the smaller and -1 the larger one; what
    lies beyond goes on from there.
    """
    mean = q.mean(0)
    return mean - beta * (q - mean).abs().mean(0)
