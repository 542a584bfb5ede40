"""Spectral normalisation (Miyato et al. 2018, arXiv 1802.05957) of one weight, or of a stack of them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fleetfoot.nn.linear import Linear
from fleetfoot.ops.affine import affine


class SpectralLinear(Linear):
    """x @ (weight / sigma) + bias, where sigma = u . weight v is the largest singular value of `weight`.

    u and v are its singular vectors by power iteration. `iterate_` goes on with it and belongs after every change of
    the weights, in a target network as well: its weights are averages, and so it has vectors of its own. `forward` only
    reads, so it may be compiled, captured and repeated with other weights. The gradient takes u and v for constants.

    Weights that start orthogonal have singular values which are all the same, and from there on many that are close:
    one iteration after each change, as is usual, leaves sigma too small by ten percent and more. Here there are 4,096,
    at the price of thirteen small products: the matrix that is iterated is squared again and again.
    """

    SQUARINGS = 12
    u: Tensor
    v: Tensor

    def __init__(
        self,
        inputs: int,
        outputs: int,
        ensemble_size: int | None = None,
        bias: bool = True,
        relu: bool = False,
    ):
        super().__init__(inputs, outputs, ensemble_size, bias, relu)
        lead = () if ensemble_size is None else (ensemble_size,)
        self.register_buffer("u", torch.randn(*lead, inputs))
        self.register_buffer("v", torch.randn(*lead, outputs))
        self.iterate_()

    @torch.no_grad()
    def iterate_(self) -> None:
        weight = self.weight
        inputs, outputs = weight.shape[-2:]
        with torch.autocast(weight.device.type, enabled=False):  # bf16 is too coarse for powers
            if inputs <= outputs:
                u = _unit(_power(weight @ weight.mT, self.SQUARINGS) @ self.u.unsqueeze(-1))
                v = _unit(weight.mT @ u)
            else:
                v = _unit(_power(weight.mT @ weight, self.SQUARINGS) @ self.v.unsqueeze(-1))
                u = _unit(weight @ v)
        self.u.copy_(u.squeeze(-1))
        self.v.copy_(v.squeeze(-1))

    def normalized(self) -> Tensor:
        # A sum and no product of matrices, which autocast would round to bf16.
        sigma = (self.u.unsqueeze(-1) * self.weight * self.v.unsqueeze(-2)).sum(
            (-2, -1), keepdim=True
        )
        return self.weight / sigma

    def forward(self, x: Tensor) -> Tensor:
        return affine(x, self.normalized(), self.bias, self.relu)


def _power(matrix: Tensor, squarings: int) -> Tensor:
    """The matrix to the power of 2^squarings, but for its scale, which would leave the range of floats."""
    for _ in range(squarings):
        matrix = matrix / torch.linalg.matrix_norm(matrix, keepdim=True)
        matrix = matrix @ matrix
    return matrix


def _unit(column: Tensor) -> Tensor:
    return F.normalize(column, dim=-2)
