"""Plain multi-layer perceptrons and what regularises them, and their SimNorm variant."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from fleetfoot.config import part
from fleetfoot.errors import UserError
from fleetfoot.nn.linear import LayerNorm, Linear, orthogonal_
from fleetfoot.nn.network import Network
from fleetfoot.nn.spectral import SpectralLinear

Activation: TypeAlias = Literal["relu", "leaky_relu", "elu", "silu", "tanh", "crelu"]
Start: TypeAlias = Literal["torch", "orthogonal"]


class CReLU(nn.Module):
    """[relu(x), relu(-x)]: twice as wide as its input, and half of it is always active (arXiv 2303.07507)."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x.relu(), (-x).relu()], dim=-1)


ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "elu": nn.ELU,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
    "crelu": CReLU,
}


def hidden_layers(
    inputs: int,
    hidden: tuple[int, ...],
    layer_norm: bool,
    activation: tuple[Activation, ...],
    ensemble_size: int | None,
    spectral_norm: bool = False,
) -> nn.Sequential:
    """Linear layer, LayerNorm if asked for, activation: once per width. One activation serves all layers."""
    names = activation * len(hidden) if len(activation) == 1 else activation
    unknown = [name for name in activation if name not in ACTIVATIONS]
    if unknown or (hidden and len(names) != len(hidden)):
        raise UserError(
            f"activation must be one of {', '.join(ACTIVATIONS)}, or one for each of {len(hidden)} hidden layers, "
            f"not {', '.join(activation) or 'none'}."
        )
    kind = SpectralLinear if spectral_norm else Linear
    layers: list[nn.Module] = []
    for (width_in, width), name in zip(pairwise((inputs, *hidden)), names, strict=False):
        if name == "crelu" and width % 2:
            raise UserError(f"crelu gives two features per unit, so widths are even, not {width}.")
        # Widths count features: a layer with CReLU has half as many units, and the next layer sees as much as ever.
        units = width // 2 if name == "crelu" else width
        at_once = name == "relu" and not layer_norm
        layers.append(kind(width_in, units, ensemble_size, relu=at_once))
        if layer_norm:
            layers.append(LayerNorm(units, ensemble_size))
        if not at_once:
            layers.append(ACTIVATIONS[name]())
    return nn.Sequential(*layers)


def _head(inputs: int, outputs: int, ensemble_size: int | None, std: float | None) -> Linear:
    head = Linear(inputs, outputs, ensemble_size)
    if std is not None and head.bias is not None:
        nn.init.normal_(head.weight, 0.0, std)
        nn.init.zeros_(head.bias)
    return head


@part
class MLPConfig:
    """Hidden layers with ReLU, no normalisation: FastTD3's networks. Other activations by name."""

    hidden: tuple[int, ...] = (1024, 512, 256)
    """Features of each hidden layer."""
    layer_norm: bool = False
    """LayerNorm between each hidden layer and its activation."""
    activation: tuple[Activation, ...] = ("relu",)
    """relu, leaky_relu, elu, silu, tanh or crelu: one for all hidden layers, or one each. `hidden` counts features
    after the activation; crelu makes two per unit, so a layer then has half as many units."""
    head_std: float | None = None
    """Initialise the output layer with N(0, head_std^2) and zero bias, instead of torch's default."""
    spectral_norm: bool = False
    """Divide the weights of each hidden layer by their largest singular value."""
    start: Start = "torch"
    """Initialisation. orthogonal: all weights orthogonal with gain sqrt 2, all biases zero."""

    def build(self, inputs: int, outputs: int, ensemble_size: int | None = None) -> Network:
        return MLP(self, inputs, outputs, ensemble_size)


class MLP(Network):
    """The network of `MLPConfig`."""

    def __init__(self, cfg: MLPConfig, inputs: int, outputs: int, ensemble_size: int | None):
        super().__init__()
        self.cfg = cfg
        self.body = hidden_layers(
            inputs, cfg.hidden, cfg.layer_norm, cfg.activation, ensemble_size, cfg.spectral_norm
        )
        self.head = _head((inputs, *cfg.hidden)[-1], outputs, ensemble_size, cfg.head_std)
        if cfg.start == "orthogonal":
            for layer in self.body:
                if isinstance(layer, Linear):
                    start_orthogonal_(layer)
            if cfg.head_std is None:
                start_orthogonal_(self.head)
        self.constrain_()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(x))
        return out

    def constrain_(self) -> None:
        for layer in self.body:
            if isinstance(layer, SpectralLinear):
                layer.iterate_()


@torch.no_grad()
def start_orthogonal_(layer: Linear) -> None:
    orthogonal_(layer.weight, math.sqrt(2.0))
    if layer.bias is not None:
        layer.bias.zero_()


@part
class SimNormMLPConfig:
    """An MLP whose last hidden layer is a set of soft one-hot codes (SimNorm / SEM, arXiv 2204.00616, 2510.13704).

    Linear(-> groups * group_size), LayerNorm, softmax inside each group, then the output layer.
    """

    hidden: tuple[int, ...] = (1024, 512)
    """Features of each hidden layer before the codes."""
    groups: int = 8
    """Codes in the last hidden layer."""
    group_size: int = 64
    """Features of each code, which sum to 1."""
    temperature: float = 1.0
    """Divides the logits of each code before its softmax."""
    head_std: float | None = None
    """Initialise the output layer with N(0, head_std^2) and zero bias, instead of torch's default."""

    def build(self, inputs: int, outputs: int, ensemble_size: int | None = None) -> Network:
        return SimNormMLP(self, inputs, outputs, ensemble_size)


class SimNormMLP(Network):
    """The network of `SimNormMLPConfig`."""

    def __init__(self, cfg: SimNormMLPConfig, inputs: int, outputs: int, ensemble_size: int | None):
        super().__init__()
        self.cfg = cfg
        codes = cfg.groups * cfg.group_size
        self.body = MLP(MLPConfig(hidden=cfg.hidden), inputs, codes, ensemble_size)
        self.norm = LayerNorm(codes, ensemble_size, eps=1e-5)
        self.head = _head(codes, outputs, ensemble_size, cfg.head_std)

    def forward(self, x: Tensor) -> Tensor:
        codes = self.norm(self.body(x))
        grouped = codes.unflatten(-1, (self.cfg.groups, self.cfg.group_size))
        soft = torch.softmax(grouped / self.cfg.temperature, dim=-1).flatten(-2)
        out: Tensor = self.head(soft)
        return out
