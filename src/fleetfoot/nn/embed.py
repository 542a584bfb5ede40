"""Task embeddings for multi-task agents."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Embedding(nn.Module):
    """Task ids [B] -> vectors [B, size]."""

    size: int

    def constrain_(self) -> None:
        """Bring the vectors back to where they belong, after every optimiser step."""


class TaskEmbedding(Embedding):
    """One learned vector per task, at most 1 long.

    The bound is kept by `constrain_` after each optimiser step, not inside `forward`, so reading never writes.
    """

    def __init__(self, tasks: int, size: int = 32):
        super().__init__()
        self.size = size
        self.weight = nn.Parameter(torch.randn(tasks, size))
        self.constrain_()

    def forward(self, task: Tensor) -> Tensor:
        return self.weight[task]

    @torch.no_grad()
    def constrain_(self) -> None:
        norm = torch.linalg.vector_norm(self.weight, dim=-1, keepdim=True)
        self.weight.mul_((1.0 / (norm + 1e-7)).clamp(max=1.0))


class UnitEmbedding(Embedding):
    """One learned direction per task: what is read has length one, whatever the optimiser does (BRC)."""

    def __init__(self, tasks: int, size: int = 32):
        super().__init__()
        self.size = size
        self.weight = nn.Parameter(F.normalize(torch.randn(tasks, size), dim=-1))

    def forward(self, task: Tensor) -> Tensor:
        return F.normalize(self.weight, dim=-1)[task]


class Borrowed(Embedding):
    """Another network's vectors, to read: no gradient goes back to them."""

    def __init__(self, table: Embedding):
        super().__init__()
        self.size, self.table = table.size, table

    def forward(self, task: Tensor) -> Tensor:
        vectors: Tensor = self.table(task)
        return vectors.detach()
