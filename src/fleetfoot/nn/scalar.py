"""Single numbers that are learned."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class Temperature(nn.Module):
    """alpha = exp(log_alpha): above zero, whatever the optimiser does."""

    def __init__(self, start: float):
        super().__init__()
        self.log_alpha = nn.Parameter(torch.tensor(math.log(start)))

    def __call__(self) -> Tensor:
        alpha: Tensor = super().__call__()
        return alpha

    def forward(self) -> Tensor:
        return self.log_alpha.exp()
