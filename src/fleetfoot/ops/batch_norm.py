"""Batch normalisation, perhaps with a ReLU behind it, of one network or of E members at once.

Statistics run over the rows of a batch and are computed in float32, whatever the dtype of the features. Nothing is
written: who keeps running statistics takes them from what is returned.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def batch_norm(
    x: Tensor, weight: Tensor, bias: Tensor, eps: float, relu: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalise x by its own rows: x [B, d] with weight and bias [d], or x [E, B, d] with [E, d]; x [B, d] may also be
    the same for all members, and then the result is [E, B, d].

    Returns the result in the dtype of x, and the mean and the (biased) variance of the rows, [d] or [E, d], through
    which no gradient flows.
    """
    if torch.compiler.is_compiling():
        features = x.float()
        variance, mean = torch.var_mean(features, -2, correction=0, keepdim=True)
        scale = weight.unsqueeze(-2) * (variance + eps).rsqrt()
        out = torch.addcmul(bias.unsqueeze(-2), features - mean, scale)
        out = F.relu(out) if relu else out
        mean, variance = mean.detach(), variance.detach()
    else:
        out, mean, variance, _ = _BatchNorm.apply(x.float(), weight, bias, eps, relu)  # type: ignore[no-untyped-call]
    return out.to(x.dtype), mean.squeeze(-2), variance.squeeze(-2)


class _BatchNorm(torch.autograd.Function):
    """The same with its backward pass by hand, which touches memory half as often as autograd's own."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Tensor, weight: Tensor, bias: Tensor, eps: float, relu: bool
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        mean = x.mean(-2, keepdim=True)  # not `var_mean`, which takes several times as long
        centred = x - mean
        variance = (centred * centred).mean(-2, keepdim=True)
        scale = weight.unsqueeze(-2) * (variance + eps).rsqrt()
        out = torch.addcmul(bias.unsqueeze(-2), centred, scale)
        return out.relu_() if relu else out, mean, variance, centred

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        x, weight, _, ctx.eps, ctx.relu = inputs
        ctx.members = weight.dim() - 1 > x.dim() - 2  # and one x for all of them
        out, mean, variance, centred = output
        ctx.mark_non_differentiable(mean, variance, centred)
        ctx.save_for_backward(weight, variance, centred, out)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        weight, variance, centred, out = ctx.saved_tensors
        if ctx.relu:
            gradient = torch.where(out > 0, gradient, 0.0)
        rate = (variance + ctx.eps).rsqrt()
        total = gradient.sum(-2, keepdim=True)
        along = (gradient * centred).sum(-2, keepdim=True) * rate
        x_gradient = None
        if ctx.needs_input_grad[0]:
            rows = centred.shape[-2]
            x_gradient = torch.addcmul(gradient - total / rows, centred, along * rate / -rows)
            x_gradient = x_gradient * (weight.unsqueeze(-2) * rate)
            x_gradient = x_gradient.sum(0) if ctx.members else x_gradient
        return x_gradient, along.squeeze(-2), total.squeeze(-2), None, None


def fixed_norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    variance: Tensor,
    eps: float,
    relu: bool = False,
) -> Tensor:
    """Normalise x by a mean and a variance that are given. Shapes as in `batch_norm`."""
    scale = weight * (variance + eps).rsqrt()
    out = torch.addcmul(bias.unsqueeze(-2), x.float() - mean.unsqueeze(-2), scale.unsqueeze(-2))
    return (F.relu(out) if relu else out).to(x.dtype)
