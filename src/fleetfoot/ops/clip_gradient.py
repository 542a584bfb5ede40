"""The identity, with a bound on what flows back through it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class _ClipGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bound: float) -> Tensor:
        ctx.bound = bound
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0].clamp(-ctx.bound, ctx.bound), None


def clip_gradient(x: Tensor, bound: float) -> Tensor:
    """x itself; each element of its gradient is clipped to [-bound, bound]."""
    out: Tensor = _ClipGradient.apply(x, bound)  # type: ignore[no-untyped-call]
    return out
