"""Single numbers that are adjusted while learning so that something stays near its target."""

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


class AdjusterConfig(Protocol):
    def build(self) -> LearnedScalar: ...


@part
class ExpConfig:
    """exp(x) - offset: above -offset, without an upper end (DAC)."""

    start: float = 1.0
    offset: float = 0.0

    def build(self) -> LearnedScalar:
        if self.start + self.offset <= 0.0:
            raise UserError(f"the number starts above {-self.offset}, not at {self.start}.")
        return Exp(self)


class Exp(LearnedScalar):
    def __init__(self, cfg: ExpConfig):
        super().__init__()
        self.offset = cfg.offset
        self.raw = nn.Parameter(torch.tensor(math.log(cfg.start + cfg.offset)))

    def forward(self) -> Tensor:
        return self.raw.exp() - self.offset


@part
class SquashedConfig:
    """exp(low + (high - low) (1 + tanh(x)) / 2) - offset: between two ends (BRO)."""

    start: float = 1.0
    low: float = -10.0
    high: float = 7.5
    offset: float = 0.0

    def build(self) -> LearnedScalar:
        ends = math.exp(self.low) - self.offset, math.exp(self.high) - self.offset
        if not ends[0] < self.start < ends[1]:
            raise UserError(
                f"the number starts between {ends[0]:g} and {ends[1]:g}, not at {self.start}."
            )
        return Squashed(self)


class Squashed(LearnedScalar):
    def __init__(self, cfg: SquashedConfig):
        super().__init__()
        self.low, self.reach, self.offset = cfg.low, 0.5 * (cfg.high - cfg.low), cfg.offset
        share = (math.log(cfg.start + cfg.offset) - cfg.low) / self.reach - 1.0
        self.raw = nn.Parameter(torch.tensor(math.atanh(share)))

    def forward(self) -> Tensor:
        return (self.low + self.reach * (1.0 + torch.tanh(self.raw))).exp() - self.offset
