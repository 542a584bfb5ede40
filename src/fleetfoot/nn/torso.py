"""Torsos: from what the environment shows, whatever its shape, to flat features."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor, nn

from fleetfoot.config import part
from fleetfoot.errors import UserError
from fleetfoot.nn.mlp import Activation, hidden_layers


class Torso(nn.Module):
    """[B, *shape] -> [B, size]."""

    size: int

    def __call__(self, x: Tensor) -> Tensor:
        out: Tensor = super().__call__(x)
        return out


class TorsoConfig(Protocol):
    """The part of an agent that turns observations into features."""

    def build(self, shape: tuple[int, ...]) -> Torso: ...


@part
class MLPTorsoConfig:
    """Hidden layers shared by all heads, for vectors. Without any, the heads see the vector itself."""

    hidden: tuple[int, ...] = (128,)
    """Features of each hidden layer."""
    layer_norm: bool = False
    """LayerNorm between each hidden layer and its activation."""
    activation: tuple[Activation, ...] = ("relu",)
    """relu, elu or tanh: one for all hidden layers, or one for each."""

    def build(self, shape: tuple[int, ...]) -> Torso:
        if len(shape) != 1:
            raise UserError(
                f"an MLP torso reads vectors, not observations of shape {shape}; use NatureCNNConfig for images."
            )
        return MLPTorso(self, shape[0])


class MLPTorso(Torso):
    """The torso of `MLPTorsoConfig`."""

    def __init__(self, cfg: MLPTorsoConfig, inputs: int):
        super().__init__()
        self.body = hidden_layers(inputs, cfg.hidden, cfg.layer_norm, cfg.activation, None)
        self.size = cfg.hidden[-1] if cfg.hidden else inputs

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x)
        return out
