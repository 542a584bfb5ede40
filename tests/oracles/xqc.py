"""XQC's network out of torch's own layers."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oracles.layers import Copies


class PlainXQC(nn.Module):
    """`source` is an XQCNet, `member` one of its ensemble_size (None: it has none)."""

    def __init__(self, source: Any, member: int | None):
        super().__init__()
        copies = Copies(member, eps=1e-3)
        linear, norm = copies.linear, copies.norm
        self.first = norm(source.norm)
        self.hidden = nn.ModuleList(
            nn.ModuleList([linear(layer.w), norm(layer.norm)]) for layer in source.layers
        )
        self.head = linear(source.head)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        hidden: Any = self.hidden
        for dense, norm in hidden:
            x = F.relu(norm(dense(x)))
        out: Tensor = self.head(x)
        return out

    @torch.no_grad()
    def project(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear):
                for row in module.weight:
                    row /= row.norm()

    def tensors(self) -> list[Tensor]:
        """Weights (as the library stores them) and running statistics, in a fixed order."""
        found: list[Any] = []
        hidden: Any = self.hidden
        for layer in (self.first, *(m for each in hidden for m in each), self.head):
            if isinstance(layer, nn.BatchNorm1d):
                found += [layer.weight, layer.bias, layer.running_mean, layer.running_var]
            else:
                found += [layer.weight.T] + ([] if layer.bias is None else [layer.bias])
        return [t.detach() for t in found]


def tensors_of(source: Any, member: int | None) -> list[Tensor]:
    """The same of an XQCNet."""
    layers = [source.norm, *(m for layer in source.layers for m in (layer.w, layer.norm))]
    found = []
    for layer in [*layers, source.head]:
        found += [layer.weight] + ([] if layer.bias is None else [layer.bias])
        if hasattr(layer, "variance"):
            found += [layer.mean, layer.variance]
    return [(t if member is None else t[member]).detach() for t in found]
