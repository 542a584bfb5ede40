"""Running normalisation of observations, part of the networks that read them."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class RunningNorm(nn.Module):
    """(x - mean) / (std + eps) with the mean and standard deviation of all data ever given to `update`.

    Statistics are merged by Chan's rule in float64, so that a billion rows neither drift nor
    saturate. Reading never writes.
    """

    mean: Tensor
    variance: Tensor
    count: Tensor
    shift: Tensor
    scale: Tensor

    def __init__(self, shape: tuple[int, ...], eps: float = 0.01):
        super().__init__()
        self.eps = eps
        self.register_buffer("mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("variance", torch.ones(shape, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("shift", torch.zeros(shape))  # what `forward` reads: the mean
        self.register_buffer("scale", torch.ones(shape))  # and 1 / (std + eps), in float32

    @torch.no_grad()
    def update(self, x: Tensor) -> None:
        """Take in rows [B, *shape], each once."""
        x = x.double()
        rows = x.shape[0]
        batch_variance, batch_mean = torch.var_mean(x, dim=0, correction=0)
        total = self.count + rows
        delta = batch_mean - self.mean
        # Chan: the squared sums about both means, plus what the distance between the means adds.
        squares = self.variance * self.count + batch_variance * rows
        squares += delta.square() * (self.count * rows / total)
        self.mean += delta * (rows / total)
        self.variance.copy_(squares / total)
        self.count.copy_(total)
        self.shift.copy_(self.mean)
        self.scale.copy_(1.0 / (self.variance.sqrt() + self.eps))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.shift) * self.scale


class Clamped(nn.Module):
    """A normaliser whose results stay within bounds."""

    def __init__(self, norm: nn.Module, bound: float):
        super().__init__()
        self.norm, self.bound = norm, bound

    def forward(self, x: Tensor) -> Tensor:
        normed: Tensor = self.norm(x)
        return normed.clamp(-self.bound, self.bound)


class Identity(nn.Module):
    """Observations as they are, numbers in float32 and pictures in bytes; `update` learns nothing."""

    def update(self, x: Tensor) -> None: ...

    def forward(self, x: Tensor) -> Tensor:
        return x.float() if x.is_floating_point() else x
