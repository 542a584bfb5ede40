"""Batch normalisation, perhaps with a ReLU behind it, of one network or of E members at once.

Statistics run over the rows of a batch and are computed in float32, whatever the dtype of the features. Nothing is
written: who keeps running statistics takes them from what is returned.
"""

from __future__ import annotations

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
    features = x.float()
    if features.is_cuda:
        variance, mean = torch.var_mean(features, -2, correction=0, keepdim=True)
        centred = features - mean
    else:  # there `var_mean` takes several times as long
        mean = features.mean(-2, keepdim=True)
        centred = features - mean
        variance = centred.square().mean(-2, keepdim=True)
    scale = weight.unsqueeze(-2) * (variance + eps).rsqrt()
    out = torch.addcmul(bias.unsqueeze(-2), centred, scale)
    out = (F.relu(out) if relu else out).to(x.dtype)
    return out, mean.detach().squeeze(-2), variance.detach().squeeze(-2)


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
