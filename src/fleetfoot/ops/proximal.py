"""The pieces of PPO's loss (Schulman et al. 2017, arXiv 1707.06347)."""

from __future__ import annotations

import torch
from torch import Tensor


def clipped_gain(ratio: Tensor, advantage: Tensor, clip: float) -> Tensor:
    """min(ratio A, clip(ratio, 1 - clip, 1 + clip) A): what a row gains, as long as its ratio is near 1."""
    return torch.minimum(ratio * advantage, ratio.clamp(1.0 - clip, 1.0 + clip) * advantage)


def clipped_error(value: Tensor, old: Tensor, wanted: Tensor, clip: float | None) -> Tensor:
    """The squared error of a value, or that of the nearest one within `clip` of the old value: the larger of both."""
    error = (value - wanted).square()
    if clip is None:
        return error
    near = old + (value - old).clamp(-clip, clip)
    return torch.maximum(error, (near - wanted).square())


def outside(ratio: Tensor, clip: float) -> Tensor:
    """The share of ratios that are more than `clip` away from 1."""
    return ((ratio - 1.0).abs() > clip).float().mean()


def standardized(x: Tensor) -> Tensor:
    return (x - x.mean()) / (x.std(correction=0) + 1e-8)
