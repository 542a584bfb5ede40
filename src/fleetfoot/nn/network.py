"""The contract of a network body: features in, outputs out, singly or as an ensemble."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor, nn


class Network(nn.Module):
    """[B, in] -> [B, out], or [E, B, out] for an ensemble of E."""

    def __call__(self, x: Tensor) -> Tensor:
        out: Tensor = super().__call__(x)
        return out

    def constrain_(self) -> None:
        """Bring the weights back to where the architecture wants them, after every optimiser step."""


class NetworkConfig(Protocol):
    def build(self, inputs: int, outputs: int, ensemble_size: int | None = None) -> Network: ...
