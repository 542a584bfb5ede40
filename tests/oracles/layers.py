"""Torch's own layers with the weights of ours: of one network, or of one member of an ensemble."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


class Copies:
    """`member` is one of the ensemble (None: there is none), `eps` that of the BatchNorms."""

    def __init__(self, member: int | None, eps: float):
        self.member, self.eps = member, eps

    def own(self, tensor: Tensor) -> Tensor:
        return (tensor if self.member is None else tensor[self.member]).detach().clone()

    def linear(self, layer: Any) -> nn.Linear:
        inputs, outputs = layer.weight.shape[-2:]
        made = nn.Linear(inputs, outputs, bias=layer.bias is not None)
        made.weight.data = self.own(layer.weight).T.contiguous()
        if layer.bias is not None:
            made.bias.data = self.own(layer.bias)
        return made

    def norm(self, layer: Any) -> nn.BatchNorm1d:
        made = nn.BatchNorm1d(layer.weight.shape[-1], eps=self.eps, momentum=0.01)
        made.weight.data, made.bias.data = self.own(layer.weight), self.own(layer.bias)
        made.running_mean, made.running_var = self.own(layer.mean), self.own(layer.variance)
        return made
