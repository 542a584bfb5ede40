"""Which rows to learn from."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor


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
        # Two draws rather than one over size * columns: float32 would not reach every row of a large ring.
        age = torch.randint(size, (rows,), generator=self.generator, device=self.device)
        column = torch.randint(self.columns, (rows,), generator=self.generator, device=self.device)
        return Drawn(age, column, torch.ones(rows, device=self.device))

    def state_dict(self) -> dict[str, Any]:
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.generator.set_state(state["generator"])
