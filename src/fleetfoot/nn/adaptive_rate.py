"""A learning rate that follows how far each step moves the policy."""

from __future__ import annotations

import torch
from torch import Tensor, nn

FACTOR = 1.5
LOWEST, HIGHEST = 1e-5, 1e-2


class AdaptiveRate(nn.Module):
    """Divided by 1.5 where the divergence from the old policy is above twice its target, and multiplied by it where the
    divergence is below half of it (as rsl_rl does)."""

    lr: Tensor

    def __init__(self, lr: float, target_kl: float):
        super().__init__()
        self.target_kl = target_kl
        self.register_buffer("lr", torch.tensor(lr))

    @torch.no_grad()
    def update(self, kl: Tensor) -> Tensor:
        """The rate after a divergence `kl`, one for each set of weights. At zero, or nearly, nothing has moved yet."""
        slower = kl > 2.0 * self.target_kl
        faster = (kl < 0.5 * self.target_kl) & (kl > 1e-5 * self.target_kl)
        factor = torch.where(slower, 1.0 / FACTOR, torch.where(faster, FACTOR, 1.0))
        self.lr.copy_((self.lr * factor).clamp(LOWEST, HIGHEST))
        return self.lr
