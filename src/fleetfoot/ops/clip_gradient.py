"""The identity, with a bound on what flows back through it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class _ClipGradient(torch.autograd.Function):
    generate_vmap_rule = True  # several seeds may be computed as one

    @staticmethod
    def forward(x: Tensor, bound: float) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, ctx.bound = inputs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0].clamp(-ctx.bound, ctx.bound), None


def clip_gradient(x: Tensor, bound: float) -> Tensor:
    """x itself; each element of its gradient is clipped to [-bound, bound]."""
    out: Tensor = _ClipGradient.apply(x, bound)  # type: ignore[no-untyped-call]
    return out
