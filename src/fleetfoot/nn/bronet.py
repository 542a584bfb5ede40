"""BroNet: the residual network of BRO (Nauman et al. 2024, arXiv 2405.16158), normalised after every dense layer.

    x <- relu(LN(W x + b))                          to the width of the network
    x <- x + LN(W2 relu(LN(W1 x + b1)) + b2)        once per block; what leaves a block is not activated
    W x + b                                         the output layer

All weights start orthogonal with gain sqrt(2), all biases at zero. LayerNorm with eps 1e-6.
"""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor, nn

from fleetfoot.config import part
from fleetfoot.errors import UserError
from fleetfoot.nn.linear import LayerNorm, Linear, orthogonal_
from fleetfoot.nn.network import Network

GAIN = math.sqrt(2.0)


@part
class BroNetConfig:
    """BroNet: dense layers with LayerNorm and residual blocks (BRO)."""

    width: int = 512
    """Features of each layer."""
    blocks: int = 2
    """Residual blocks."""
    head_gain: float = GAIN
    """Gain of the output layer's orthogonal initialisation."""
    head_bias: bool = True
    """The output layer has a bias."""

    def build(self, inputs: int, outputs: int, ensemble_size: int | None = None) -> Network:
        if self.width < 1 or self.blocks < 0:
            raise UserError(
                f"a BroNet has a width of 1 or more and 0 or more blocks, not {self.width} and {self.blocks}."
            )
        return BroNet(self, inputs, outputs, ensemble_size)


def dense(
    inputs: int, outputs: int, ensemble_size: int | None, gain: float = GAIN, bias: bool = True
) -> Linear:
    """An affine map with orthogonal weights and no offset at the start."""
    layer = Linear(inputs, outputs, ensemble_size, bias=bias)
    orthogonal_(layer.weight, gain)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


class Block(nn.Module):
    """Two dense layers with LayerNorm, added to what enters them."""

    def __init__(self, width: int, ensemble_size: int | None):
        super().__init__()
        self.w1, self.norm1 = dense(width, width, ensemble_size), LayerNorm(width, ensemble_size)
        self.w2, self.norm2 = dense(width, width, ensemble_size), LayerNorm(width, ensemble_size)

    def forward(self, x: Tensor) -> Tensor:
        inner = F.relu(self.norm1(self.w1(x)))
        out: Tensor = x + self.norm2(self.w2(inner))
        return out


class BroNet(Network):
    """The network of `BroNetConfig`."""

    def __init__(self, cfg: BroNetConfig, inputs: int, outputs: int, ensemble_size: int | None):
        super().__init__()
        self.embed, self.norm = (
            dense(inputs, cfg.width, ensemble_size),
            LayerNorm(cfg.width, ensemble_size),
        )
        self.blocks = nn.Sequential(*(Block(cfg.width, ensemble_size) for _ in range(cfg.blocks)))
        self.head = dense(cfg.width, outputs, ensemble_size, cfg.head_gain, cfg.head_bias)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.embed(x)))
        out: Tensor = self.head(self.blocks(x))
        return out
