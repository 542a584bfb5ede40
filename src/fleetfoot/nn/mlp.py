"""Plain multi-layer perceptrons, and their SimNorm variant."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from fleetfoot.nn.linear import LayerNorm, Linear
from fleetfoot.nn.network import Network
from fleetfoot.part import part


def _head(inputs: int, outputs: int, members: int | None, std: float | None) -> Linear:
    head = Linear(inputs, outputs, members)
    if std is not None and head.bias is not None:
        nn.init.normal_(head.weight, 0.0, std)
        nn.init.zeros_(head.bias)
    return head


@part
class MLPConfig:
    """Hidden layers with ReLU, no normalisation: FastTD3's networks."""

    hidden: tuple[int, ...] = (1024, 512, 256)
    layer_norm: bool = False
    """LayerNorm between each hidden layer and its ReLU."""
    head_std: float | None = None
    """Start the output layer at N(0, head_std^2) with zero bias, instead of as torch's Linear does."""

    def build(self, inputs: int, outputs: int, members: int | None = None) -> Network:
        return MLP(self, inputs, outputs, members)


class MLP(Network):
    def __init__(self, cfg: MLPConfig, inputs: int, outputs: int, members: int | None):
        super().__init__()
        widths = (inputs, *cfg.hidden)
        layers: list[nn.Module] = []
        for width_in, width_out in pairwise(widths):
            layers.append(Linear(width_in, width_out, members))
            if cfg.layer_norm:
                layers.append(LayerNorm(width_out, members))
            layers.append(nn.ReLU())
        self.body = nn.Sequential(*layers)
        self.head = _head(widths[-1], outputs, members, cfg.head_std)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(x))
        return out


@part
class SimNormMLPConfig:
    """An MLP whose last hidden layer is a set of soft one-hot codes (SimNorm / SEM, arXiv 2204.00616, 2510.13704).

    Linear(-> groups * group_size), LayerNorm, softmax inside each group, then the output layer.
    """

    hidden: tuple[int, ...] = (1024, 512)
    groups: int = 8
    group_size: int = 64
    temperature: float = 1.0
    head_std: float | None = None

    def build(self, inputs: int, outputs: int, members: int | None = None) -> Network:
        return SimNormMLP(self, inputs, outputs, members)


class SimNormMLP(Network):
    def __init__(self, cfg: SimNormMLPConfig, inputs: int, outputs: int, members: int | None):
        super().__init__()
        self.cfg = cfg
        codes = cfg.groups * cfg.group_size
        self.body = MLP(MLPConfig(hidden=cfg.hidden), inputs, codes, members)
        self.norm = LayerNorm(codes, members, eps=1e-5)
        self.head = _head(codes, outputs, members, cfg.head_std)

    def forward(self, x: Tensor) -> Tensor:
        codes = self.norm(self.body(x))
        grouped = codes.unflatten(-1, (self.cfg.groups, self.cfg.group_size))
        soft = torch.softmax(grouped / self.cfg.temperature, dim=-1).flatten(-2)
        out: Tensor = self.head(soft)
        return out
