"""The n-step fold: raw rows in, `reward`, `discount` and the length of each window out."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Folded(NamedTuple):
    """Windows of n steps, each folded into one."""

    reward: Tensor  # [B] discounted sum of the rewards inside the window
    discount: Tensor  # [B] gamma^m, or zero where the window ends with a true termination
    length: Tensor  # [B] int64, m: how many steps the window really has
    ended: Tensor  # [B] bool, an episode ended at the window's last step


def fold(reward: Tensor, terminated: Tensor, ended: Tensor, exists: Tensor, gamma: float) -> Folded:
    """Fold windows of at most n steps.

    reward [B, n] float; terminated, ended [B, n] bool (ended = terminated or truncated); exists
    [B, n] bool is False for
    steps not recorded yet (beyond the newest row), and True for column 0. A window stops after the first ended step or
    before the first missing one, whichever comes first: it never mixes episodes and never crosses the write head.
    """
    n = reward.shape[1]
    if n == 1:  # the common case, without the bookkeeping
        one = torch.ones_like(ended[:, 0], dtype=torch.int64)
        discount = gamma * (~terminated[:, 0]).to(reward.dtype)
        return Folded(reward[:, 0], discount, one, ended[:, 0])
    before = torch.cumsum(ended, dim=1) - ended.long()  # ends strictly before each step
    inside = (before == 0) & exists
    powers = gamma ** torch.arange(n, device=reward.device, dtype=reward.dtype)
    length = inside.sum(1)
    last = (length - 1).unsqueeze(1)
    terminal = terminated.gather(1, last).squeeze(1)
    discount = gamma * powers.gather(0, last.squeeze(1)) * (~terminal).to(reward.dtype)
    return Folded(
        torch.where(inside, reward * powers, 0.0).sum(1),
        discount,
        length,
        ended.gather(1, last).squeeze(1),
    )
