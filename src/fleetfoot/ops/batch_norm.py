"""Batch normalisation, perhaps with a ReLU and a sum behind it, of one network or of E ensemble_size at once.

Statistics run over the rows of a batch and are computed in float32, whatever the dtype of the features. Nothing is
written: what running statistics become is part of the result. In code compiled for a GPU all of it is two kernels of
its own each way (`ops/triton/batch_norm.py`); what is written here is their definition, and what runs everywhere else.

Shapes: x [B, d] with weight and the like [d], or x [E, B, d] with [E, d]; x [B, d] may also be the same for all
ensemble_size, and then the result is [E, B, d]. The result has the dtype of x.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def batch_norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    variance: Tensor,
    *,
    momentum: float,
    eps: float,
    relu: bool = False,
    plus: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalise x by its own rows (training mode); `plus` is added at the end.

    `mean` and `variance` are the running ones; what they become, with a share of `momentum` for these rows and their
    unbiased variance, is returned after the result. No gradient flows through them.
    """
    how = in_kernels if x.is_cuda and torch.compiler.is_compiling() else in_torch
    return how(x, weight, bias, mean, variance, plus, momentum, eps, relu)


def in_torch(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    variance: Tensor,
    plus: Tensor | None,
    momentum: float,
    eps: float,
    relu: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The definition."""
    features, rows = x.float(), x.shape[-2]
    if features.is_cuda:
        found_variance, found = torch.var_mean(features, -2, correction=0, keepdim=True)
        centred = features - found
    else:  # there `var_mean` takes several times as long
        found = features.mean(-2, keepdim=True)
        centred = features - found
        found_variance = centred.square().mean(-2, keepdim=True)
    scale = weight.unsqueeze(-2) * (found_variance + eps).rsqrt()
    out = torch.addcmul(bias.unsqueeze(-2), centred, scale)
    with torch.no_grad():
        unbiased = found_variance.squeeze(-2) * (rows / (rows - 1))
        new_mean = torch.lerp(mean, found.squeeze(-2), momentum)
        new_variance = torch.lerp(variance, unbiased, momentum)
    return _finished(out, x.dtype, relu, plus), new_mean, new_variance


def fixed_norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    variance: Tensor,
    *,
    eps: float,
    relu: bool = False,
    plus: Tensor | None = None,
) -> Tensor:
    """Normalise x by the mean and the variance given (evaluation mode)."""
    scale = weight * (variance + eps).rsqrt()
    out = torch.addcmul(bias.unsqueeze(-2), x.float() - mean.unsqueeze(-2), scale.unsqueeze(-2))
    return _finished(out, x.dtype, relu, plus)


def _finished(out: Tensor, dtype: torch.dtype, relu: bool, plus: Tensor | None) -> Tensor:
    out = F.relu(out) if relu else out
    return (out if plus is None else out + plus).to(dtype)


def in_kernels(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    variance: Tensor,
    plus: Tensor | None,
    momentum: float,
    eps: float,
    relu: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The same; an ensemble of one where there are no members."""
    own = [t.view(-1, t.shape[-1]) for t in (weight, bias, mean, variance)]
    single = weight.dim() == 1
    if plus is not None and single:
        plus = plus.unsqueeze(0)
    out, new_mean, new_variance, _, _ = _batch_norm(x, *own, plus, momentum, eps, relu)
    out = out.squeeze(0) if single else out
    return out, new_mean.detach().view_as(mean), new_variance.detach().view_as(variance)


@torch.library.custom_op("fleetfoot::batch_norm", mutates_args=())
def _batch_norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    variance: Tensor,
    plus: Tensor | None,
    momentum: float,
    eps: float,
    relu: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    from fleetfoot.ops.triton.batch_norm import batch_norm as kernel

    return kernel(x, weight, bias, mean, variance, plus, momentum, eps, relu)


@_batch_norm.register_fake
def _(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    variance: Tensor,
    plus: Tensor | None,
    momentum: float,
    eps: float,
    relu: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    out = x.new_empty(weight.shape[0], *x.shape[-2:])
    return out, *(torch.empty_like(mean) for _ in range(4))  # type: ignore[return-value]


@torch.library.custom_op("fleetfoot::batch_norm_backward", mutates_args=())
def _batch_norm_backward(
    gradient: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    rate: Tensor,
    relu: bool,
    to_x: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    from fleetfoot.ops.triton.batch_norm import batch_norm_backward as kernel

    return kernel(gradient, x, weight, bias, mean, rate, relu, to_x)


@_batch_norm_backward.register_fake
def _(
    gradient: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    rate: Tensor,
    relu: bool,
    to_x: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    x_gradient = x.new_empty((weight.shape[0], *x.shape[-2:]) if to_x else (0,))
    return x_gradient, torch.empty_like(weight), torch.empty_like(bias)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, weight, bias, _, _, _, _, _, ctx.relu = inputs
    ctx.save_for_backward(x, weight, bias, *output[3:])


def _backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    x, *others = ctx.saved_tensors
    to_x, to_plus = ctx.needs_input_grad[0], ctx.needs_input_grad[5]
    found = _batch_norm_backward(gradient, x, *others, ctx.relu, to_x)
    x_gradient, weight_gradient, bias_gradient = found
    if to_x and x.dim() == 2:
        x_gradient = x_gradient.sum(0)
    return (
        x_gradient if to_x else None,
        weight_gradient,
        bias_gradient,
        None,
        None,
        gradient if to_plus else None,
        None,
        None,
        None,
    )


_batch_norm.register_autograd(_backward, setup_context=_keep)
