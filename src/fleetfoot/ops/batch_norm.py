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
    if features.is_cuda:
        batch_variance, batch_mean = torch.var_mean(features, -2, correction=0, keepdim=True)
        centred = features - batch_mean
    else:  # there `var_mean` takes several times as long
        batch_mean = features.mean(-2, keepdim=True)
        centred = features - batch_mean
        batch_variance = centred.square().mean(-2, keepdim=True)
    scale = weight.unsqueeze(-2) * (batch_variance + eps).rsqrt()
    out = torch.addcmul(bias.unsqueeze(-2), centred, scale)
    with torch.no_grad():
        unbiased = batch_variance.squeeze(-2) * (rows / (rows - 1))
        new_mean = torch.lerp(mean, batch_mean.squeeze(-2), momentum)
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
