"""Slowly following copies of networks."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Protocol, TypeVar

import torch
from torch import nn

M = TypeVar("M", bound=nn.Module)


class Target(Protocol):
    """What `polyak_` asks of a target network."""

    def parameters(self) -> Iterator[nn.Parameter]: ...

    def constrain_(self) -> None: ...


def target_copy(network: M, shared: nn.Module) -> M:
    """A copy of `network` for `polyak_` to update.

    `shared`, a part of it, is the same module in both: statistics of observations are not averaged.
    """
    return copy.deepcopy(network, {id(shared): shared}).requires_grad_(False)


@torch.no_grad()
def average_(target: Target, source: nn.Module, tau: float) -> None:
    """target <- (1 - tau) target + tau source, as one fused step. Only parameters are averaged."""
    torch._foreach_lerp_(list(target.parameters()), list(source.parameters()), tau)


@torch.no_grad()
def polyak_(target: Target, source: nn.Module, tau: float) -> None:
    """`average_`, and then `constrain_`, which does for the target what it does for its source after an optimiser
    step: the average of two points on a sphere lies inside it, and singular vectors (`nn/spectral.py`) follow from the
    weights.
    """
    average_(target, source, tau)
    target.constrain_()
