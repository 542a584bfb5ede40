"""Which rows to learn from."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fleetfoot.generators import generator_state, restore_generator


class Drawn(NamedTuple):
    age: Tensor  # [B] int64
    column: Tensor  # [B] int64
    weight: Tensor  # [B] importance weight


class Uniform:
    """Every row of every environment is equally likely."""

    def __init__(self, columns: int, seed: int, device: torch.device):
        self.columns, self.device = columns, device
        self.generator = torch.Generator(device).manual_seed(seed)

    def draw(self, rows: int, size: int) -> Drawn:
        # float64: float32 has too few steps to reach every row of a large ring equally often.
        u = torch.rand(2, rows, generator=self.generator, device=self.device, dtype=torch.float64)
        age, column = (u[0] * size).long(), (u[1] * self.columns).long()
        return Drawn(age, column, torch.ones(rows, device=self.device))

    def state_dict(self) -> dict[str, Any]:
        return {"generator": generator_state(self.generator)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        restore_generator(self.generator, state["generator"])
