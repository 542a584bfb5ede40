"""Projections of weights: of the weights of each output unit to length one, of vectors to the root of their size."""

from __future__ import annotations

import torch
from torch import Tensor


@torch.no_grad()
def unit_columns_(weight: Tensor) -> None:
    """weight [..., in, out]: the weights of each output become unit length."""
    length = torch.linalg.vector_norm(weight, dim=-2, keepdim=True)
    weight.div_(length.clamp(min=1e-8))


@torch.no_grad()
def root_length_(*vectors: Tensor) -> None:
    """Vectors [..., d], rescaled together so that they have, as one vector, length root(d)."""
    squares = torch.stack([vector.square().sum(-1, keepdim=True) for vector in vectors]).sum(0)
    factor = vectors[0].shape[-1] ** 0.5 * (squares + 1e-8).rsqrt()
    for vector in vectors:
        vector.mul_(factor)
