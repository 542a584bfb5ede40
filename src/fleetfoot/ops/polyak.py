"""Slowly following copies of networks."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import nn

M = TypeVar("M", bound=nn.Module)


def target_copy(network: M, *shared: nn.Module) -> M:
    """A copy of `network` for `polyak_` to update.

    `shared`, parts of it, are the same modules in both: statistics of observations are not averaged.
    """
    return copy.deepcopy(network, {id(module): module for module in shared}).requires_grad_(False)


@torch.no_grad()
def average_(target: nn.Module, source: nn.Module, tau: float) -> None:
    """target <- (1 - tau) target + tau source, as one fused step. Only parameters are averaged."""
    torch._foreach_lerp_(list(target.parameters()), list(source.parameters()), tau)


@torch.no_grad()
def polyak_(target: nn.Module, source: nn.Module, tau: float) -> None:
    """`average_`, and then the target's `constrain_`, if it has one, which does what it does for the source after an
    optimiser step: the average of two points on a sphere lies inside it, and singular vectors (`nn/spectral.py`)
    follow from the weights.
    """
    average_(target, source, tau)
    constrain_: Callable[[], None] = getattr(target, "constrain_", lambda: None)
    constrain_()
