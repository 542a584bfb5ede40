"""Slowly following copies of networks."""

from __future__ import annotations

import torch
from torch import nn


@torch.no_grad()
def polyak_(target: nn.Module, source: nn.Module, tau: float) -> None:
    """target <- (1 - tau) target + tau source, parameters only, as one fused step.

    Buffers are not averaged: modules that a target shares with its source (normalisers) must be the same object.
    """
    torch._foreach_lerp_(list(target.parameters()), list(source.parameters()), tau)
