"""Full resets: networks, single numbers and optimisers as they were when learning began."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn


class Restartable(Protocol):
    def restart_(self) -> None:
        """Forget every step made."""
        ...


class ResetPoint:
    """Remembers the parameters of `modules`; `restore_` brings them back and restarts the `steppers`.

    Make it once everything is built and nothing has been learned. Every reset returns to these same weights. Buffers
    (statistics of observations) stay as they are, but for those that follow from the weights. All is written in place:
    recordings of an update stay valid.
    """

    def __init__(self, modules: Iterable[nn.Module], steppers: Sequence[Restartable]):
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


def due(at: Sequence[int], before: int, now: int) -> bool:
    """Has a count that went from `before` to `now` reached one of the numbers `at`?"""
    return any(before < number <= now for number in at)
