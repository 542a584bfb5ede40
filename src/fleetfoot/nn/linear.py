"""The affine map of the library: one, or E of them as one batched product."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from fleetfoot.ops.affine import affine


class Linear(nn.Module):
    """x @ weight + bias, [B, in] -> [B, out]. With `ensemble_size` E: [E, B, in], or a shared [B, in], -> [E, B, out].

    Weights are stored input-first, so a batched ensemble is one `baddbmm`. Initialised like torch's own Linear. With
    `relu` a ReLU follows, which on a GPU is part of the product.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        ensemble_size: int | None = None,
        bias: bool = True,
        relu: bool = False,
    ):
        super().__init__()
        lead = () if ensemble_size is None else (ensemble_size,)
        self.relu = relu
        self.weight = nn.Parameter(torch.empty(*lead, inputs, outputs))
        self.bias = nn.Parameter(torch.empty(*lead, outputs)) if bias else None
        bound = 1.0 / math.sqrt(inputs)
        with torch.no_grad():
            self.weight.uniform_(-bound, bound)
            if self.bias is not None:
                self.bias.uniform_(-bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        return affine(x, self.weight, self.bias, self.relu)


class LayerNorm(nn.Module):
    """Layer normalisation over the last axis, with a gain and bias per ensemble member."""

    def __init__(self, width: int, ensemble_size: int | None = None, eps: float = 1e-6):
        super().__init__()
        lead = () if ensemble_size is None else (ensemble_size, 1)
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(*lead, width))
        self.bias = nn.Parameter(torch.zeros(*lead, width))

    def forward(self, x: Tensor) -> Tensor:
        normed = nn.functional.layer_norm(x, x.shape[-1:], eps=self.eps)
        return torch.addcmul(self.bias, normed, self.weight)


@torch.no_grad()
def orthogonal_(weight: Tensor, gain: float = 1.0) -> None:
    """Orthogonal initialisation of [in, out], or of each member of [E, in, out]."""
    for matrix in weight if weight.dim() == 3 else (weight,):
        nn.init.orthogonal_(matrix, gain)
