"""Full resets: networks, single numbers and optimisers as they were when learning began."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn


class Restartable(Protocol):
    """What can begin anew: an optimiser's stepper."""

    def restart_(self) -> None:
        """Forget every step made."""
        ...


class ResetPoint:
    """Remembers the parameters of `modules`; `restore_` brings them back and restarts the `steppers`.

    Make it once everything is built and nothing has been learned. Every reset returns to these same weights. Buffers
    (statistics of observations) stay as they are, but for those that follow from the weights. All is written in place:
    recordings of an update stay valid.
    """

    def __init__(self, modules: Iterable[nn.Module], steppers: Iterable[Restartable]):
        self.modules = list(modules)
        self.steppers = list(steppers)
        self.weights = [parameter.detach().clone() for parameter in self._parameters()]

    @torch.no_grad()
    def restore_(self) -> None:
        if self.weights:
            torch._foreach_copy_(self._parameters(), self.weights)
        for module in self.modules:
            getattr(module, "constrain_", lambda: None)()
        for stepper in self.steppers:
            stepper.restart_()

    def _parameters(self) -> list[Tensor]:
        return [parameter for module in self.modules for parameter in module.parameters()]


class Resets:
    """Decides when to return to a `ResetPoint`: where a count (of updates, or of env steps) reaches one of the numbers
    `at`, or a multiple of `every` (0: none)."""

    def __init__(self, point: ResetPoint, *, at: Sequence[int] = (), every: int = 0):
        self.point, self.at, self.every = point, at, every
        self.made = 0  # marks reached so far

    def restore_if_due_(self, count: int) -> bool:
        """To be called with a count that never falls; several marks at once are one reset. Was it due?"""
        reached = sum(mark <= count for mark in self.at)
        reached += count // self.every if self.every else 0
        if reached <= self.made:
            return False
        self.made = reached
        self.point.restore_()
        return True

    def state_dict(self) -> dict[str, Any]:
        return {"made": self.made}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.made = state["made"]
