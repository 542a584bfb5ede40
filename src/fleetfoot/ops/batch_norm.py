"""Batch normalisation, perhaps with a ReLU and a sum behind it, of one network or of the E members of an ensemble.

Statistics run over the rows of a batch and are computed in float32, whatever the dtype of the features. Nothing is
written: what running statistics become is part of the result. On a GPU the compiler fuses all of it with what stands
around it; FlashSAC's own network has kernels instead (`ops/flash_net.py`).

Shapes: x [B, d] with weight and the like [d], or x [E, B, d] with [E, d]; x [B, d] may also be the same for all
members, and then the result is [E, B, d]. The result has the dtype of x.
"""

from __future__ import annotations

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
    features, rows = x.float(), x.shape[-2]
    normalise = _in_parts if features.is_cuda else _in_one
    out, batch_mean, batch_variance = normalise(features, weight, bias, eps)
    with torch.no_grad():
        unbiased = batch_variance * (rows / (rows - 1))
        new_mean = torch.lerp(mean, batch_mean, momentum)
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


def _in_parts(
    features: Tensor, weight: Tensor, bias: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The result, and mean and variance of the rows; for compilers, which fuse the parts."""
    variance, mean = torch.var_mean(features, -2, correction=0, keepdim=True)
    scale = weight.unsqueeze(-2) * (variance + eps).rsqrt()
    out = torch.addcmul(bias.unsqueeze(-2), features - mean, scale)
    return out, mean.squeeze(-2), variance.squeeze(-2)


def _in_one(
    features: Tensor, weight: Tensor, bias: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The same in torch's own operation, which on a CPU takes half the time forward and backward. It knows no members:
    they lie side by side, as more features. It loses precision where a mean is far from zero, so that goes first; no
    gradient follows from that, since a shift of all rows changes nothing."""
    shift = features.detach().mean(-2, keepdim=True)
    shape = (*weight.shape[:-1], *features.shape[-2:])  # [B, d] or [E, B, d]
    flat = (features - shift).expand(shape).movedim(-2, 0).flatten(1)  # [B, E d]
    out, _, root = torch.native_batch_norm(
        flat, weight.flatten(), bias.flatten(), None, None, True, 0.0, eps
    )
    mean = shift.squeeze(-2).expand_as(weight)
    variance = (root.detach().pow(-2) - eps).clamp(min=0.0)  # root: 1 / sqrt(variance + eps)
    return out.reshape(-1, *weight.shape).movedim(0, -2), mean, variance.view_as(weight)


def _finished(out: Tensor, dtype: torch.dtype, relu: bool, plus: Tensor | None) -> Tensor:
    out = F.relu(out) if relu else out
    return (out if plus is None else out + plus).to(dtype)
