"""Single numbers that are learned, such as weights that are adjusted so that something stays near its target."""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor, nn

from fleetfoot.config import part
from fleetfoot.errors import UserError


class LearnedScalar(nn.Module):
    """() -> the number."""

    def __call__(self) -> Tensor:
        value: Tensor = super().__call__()
        return value


class Temperature(LearnedScalar):
    """alpha = exp(log_alpha): above zero, whatever the optimiser does."""

    def __init__(self, start: float):
        super().__init__()
        self.log_alpha = nn.Parameter(torch.tensor(math.log(start)))

    def forward(self) -> Tensor:
        return self.log_alpha.exp()


class LearnedScalarConfig(Protocol):
    """The part of an agent that names a learned number."""

    def build(self, offset: float = 0.0) -> LearnedScalar:
        """A number above zero, less a constant `offset`."""
        ...


@part
class ExpConfig:
    """exp(x) - offset: above -offset, without an upper end (DAC)."""

    start: float = 1.0
    """Initial exp(x)."""

    def build(self, offset: float = 0.0) -> LearnedScalar:
        if self.start <= 0.0:
            raise UserError(f"exp(x) must start above 0, not at {self.start}.")
        return Exp(self, offset)


class Exp(LearnedScalar):
    """The exponential of a parameter."""

    def __init__(self, cfg: ExpConfig, offset: float):
        super().__init__()
        self.offset = offset
        self.raw = nn.Parameter(torch.tensor(math.log(cfg.start)))

    def forward(self) -> Tensor:
        return self.raw.exp() - self.offset


@part
class SquashedConfig:
    """exp(low + (high - low) (1 + tanh(x)) / 2) - offset: between two ends (BRO)."""

    start: float = 1.0
    """Initial exp(...)."""
    low: float = -10.0
    """Logarithm of the smallest value of exp(...)."""
    high: float = 7.5
    """Logarithm of the largest value of exp(...)."""

    def build(self, offset: float = 0.0) -> LearnedScalar:
        ends = math.exp(self.low), math.exp(self.high)
        if not ends[0] < self.start < ends[1]:
            raise UserError(
                f"the number must start between {ends[0]:g} and {ends[1]:g}, not at {self.start}."
            )
        return Squashed(self, offset)


class Squashed(LearnedScalar):
    """The exponential of a parameter that stays between two limits."""

    def __init__(self, cfg: SquashedConfig, offset: float):
        super().__init__()
        self.low, self.reach, self.offset = cfg.low, 0.5 * (cfg.high - cfg.low), offset
        share = (math.log(cfg.start) - cfg.low) / self.reach - 1.0
        self.raw = nn.Parameter(torch.tensor(math.atanh(share)))

    def forward(self) -> Tensor:
        return (self.low + self.reach * (1.0 + torch.tanh(self.raw))).exp() - self.offset
