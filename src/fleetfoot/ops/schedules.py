"""Ways from one number to another over a run."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def cosine(start: float, end: float, progress: Tensor) -> Tensor:
    """Half a cosine wave from `start` (progress 0) to `end` (progress 1 and beyond)."""
    return end + 0.5 * (start - end) * (1.0 + torch.cos(math.pi * progress.clamp(max=1.0)))


def linear(start: float, end: float, progress: Tensor) -> Tensor:
    """A straight line from `start` (progress 0) to `end` (progress 1 and beyond)."""
    return start + (end - start) * progress.clamp(max=1.0)
