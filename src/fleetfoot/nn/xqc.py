"""The networks of XQC (Palenicek et al. 2026, arXiv 2509.25174): a plain MLP, batch-normalised, with unit weights.

    input      x <- BN(x)
    layer      x <- relu(BN(W x))
    head       W_out x + b

The weights of each output unit have length 1, also those of the head, and `constrain_` restores it after an optimiser
step. Scale and shift of a BatchNorm are free, as is the bias of the head; no other layer has one. Because a BatchNorm
follows, in training mode the length of a hidden unit's weights means nothing to what the network computes, up to its
epsilon. It only sets how far a step of the optimiser turns them, and the projection keeps that constant. For the same
reason the shift of the first BatchNorm changes nothing in that mode; it is here because the authors have it.

What differs from FlashSAC's (`nn/flash.py`): no residual stream and no RMSNorm, layers of one width, a first layer with
a BatchNorm and ReLU of its own, free scales and shifts, and a larger epsilon.
"""

from __future__ import annotations

from torch import Tensor, nn

from fleetfoot.config import at_least, part
from fleetfoot.nn.batch_norm import BatchNorm
from fleetfoot.nn.flash import UnitLinear
from fleetfoot.nn.network import Network
from fleetfoot.ops.project import unit_columns_

EPS = 1e-3  # a hundred times that of FlashSAC


@part
class XQCNetConfig:
    """XQC's network: layers with BatchNorm and weights of unit length, without residuals."""

    width: int = 512
    """Features of each layer."""
    layers: int = 4
    """Hidden layers."""

    def __post_init__(self) -> None:
        at_least(self, "net", width=1, layers=1)

    def build(self, inputs: int, outputs: int, ensemble_size: int | None = None) -> Network:
        return XQCNet(self, inputs, outputs, ensemble_size)


class Layer(nn.Module):
    """relu(BN(W x))."""

    def __init__(self, inputs: int, width: int, ensemble_size: int | None):
        super().__init__()
        self.w = UnitLinear(inputs, width, ensemble_size)
        self.norm = BatchNorm(width, ensemble_size, eps=EPS, relu=True)

    def forward(self, x: Tensor, fresh: list[Tensor] | None) -> Tensor:
        out: Tensor = self.norm(self.w(x), fresh)
        return out


class XQCNet(Network):
    """The network of `XQCNetConfig`."""

    batch_statistics = True

    def __init__(self, cfg: XQCNetConfig, inputs: int, outputs: int, ensemble_size: int | None):
        super().__init__()
        widths = [inputs] + [cfg.width] * cfg.layers
        self.norm = BatchNorm(inputs, ensemble_size, eps=EPS)
        self.layers = nn.ModuleList(
            Layer(before, cfg.width, ensemble_size) for before in widths[:-1]
        )
        self.head = UnitLinear(cfg.width, outputs, ensemble_size, bias=True)
        self.constrain_()

    def forward(self, x: Tensor, fresh: list[Tensor] | None = None) -> Tensor:
        x = self.norm(x, fresh)
        for layer in self.layers:
            x = layer(x, fresh)
        out: Tensor = self.head(x)
        return out

    def constrain_(self) -> None:
        for module in self.modules():
            if isinstance(module, UnitLinear):
                unit_columns_(module.weight)
