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
    reads, so it may be compiled, recorded and repeated with other weights. The gradient takes u and v for constants.
    """

    PER_CHANGE = 3  # iterations after each change of the weights
    u: Tensor
    v: Tensor

    def __init__(
        self,
        inputs: int,
        outputs: int,
        members: int | None = None,
        bias: bool = True,
        relu: bool = False,
    ):
        super().__init__(inputs, outputs, members, bias, relu)
        lead = () if members is None else (members,)
        self.register_buffer("u", F.normalize(torch.randn(*lead, inputs), dim=-1))
        self.register_buffer("v", torch.zeros(*lead, outputs))
        for _ in range(10):
            self.iterate_()

    @torch.no_grad()
    def iterate_(self) -> None:
        for _ in range(self.PER_CHANGE):
            v = F.normalize((self.u.unsqueeze(-2) @ self.weight).squeeze(-2), dim=-1)
            u = F.normalize((self.weight @ v.unsqueeze(-1)).squeeze(-1), dim=-1)
            self.v.copy_(v)
            self.u.copy_(u)

    def normalized(self) -> Tensor:
        sigma = self.u.unsqueeze(-2) @ self.weight @ self.v.unsqueeze(-1)  # [..., 1, 1]
        return self.weight / sigma

    def forward(self, x: Tensor) -> Tensor:
        return affine(x, self.normalized(), self.bias, self.relu)
