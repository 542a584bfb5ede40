"""Task embeddings for multi-task agents."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class TaskEmbedding(nn.Module):
    """One learned vector per task, at most `max_norm` long.

    The bound is kept by `constrain_` after each optimiser step, not inside `forward`, so reading never writes.
    """

    def __init__(self, tasks: int, size: int = 32, max_norm: float = 1.0):
        super().__init__()
        self.max_norm = max_norm
        self.weight = nn.Parameter(torch.randn(tasks, size))
        self.constrain_()

    def forward(self, task: Tensor) -> Tensor:
        return self.weight[task]

    @torch.no_grad()
    def constrain_(self) -> None:
        norm = torch.linalg.vector_norm(self.weight, dim=-1, keepdim=True)
        self.weight.mul_((self.max_norm / (norm + 1e-7)).clamp(max=1.0))
