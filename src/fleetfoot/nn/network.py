"""The contract of a network body: features in, outputs out, singly or as an ensemble."""

from __future__ import annotations

from typing import ClassVar, Protocol

import torch
from torch import Tensor, nn


class Network(nn.Module):
    """[B, in] -> [B, out], or [E, B, out] for an ensemble of E.

    With `fresh`, a network that has BatchNorms normalises by the rows it is given, and appends to the list what its
    running statistics become (`nn/batch_norm.py`). To all others it makes no difference.
    """

    batch_statistics: ClassVar[bool] = False
    learned_inputs = False  # does the input need gradients, as behind learned embeddings of tasks?

    def __call__(self, x: Tensor, fresh: list[Tensor] | None = None) -> Tensor:
        given = (x, fresh) if self.batch_statistics else (x,)
        out: Tensor = super().__call__(*given)
        return out

    def with_frozen(self, frozen: Network, x: Tensor, fresh: list[Tensor]) -> tuple[Tensor, Tensor]:
        """In training mode on all rows: the outputs of this network for the first half of them, and for the second half
        those of another one of its kind, through which no gradient flows. A network may compute both at once."""
        half = x.shape[-2] // 2
        with torch.no_grad():
            of_frozen = frozen(x, [])
        return self(x, fresh)[..., :half, :], of_frozen[..., half:, :]

    def constrain_(self) -> None:
        """Bring the weights back to where the architecture wants them, after every optimiser step."""


class NetworkConfig(Protocol):
    """The part of an agent that names a network."""

    def build(self, inputs: int, outputs: int, ensemble_size: int | None = None) -> Network: ...
