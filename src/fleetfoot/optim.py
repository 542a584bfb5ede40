"""Steppers: from a loss to changed weights. The seam where gradients may cross to other processes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from fleetfoot.part import UserError, part


class Stepper(Protocol):
    def __call__(self, loss: Tensor) -> Tensor:
        """Change the weights by one step down `loss`; returns the norm of the gradient."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


@part
class AdamWConfig:
    """AdamW with decoupled weight decay and a cosine learning rate from `lr` to `lr_end`."""

    lr: float = 3e-4
    lr_end: float = 3e-4
    weight_decay: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    max_grad_norm: float | None = None
    """Clip the gradient to this norm."""

    def build(
        self,
        parameters: Iterable[nn.Parameter],
        total_steps: int,
        constrain_: Callable[[], None] = lambda: None,
    ) -> LocalStepper:
        """`constrain_` runs after each step, for weights that must stay on a manifold."""
        if not (self.lr > 0 and self.lr_end > 0 and self.weight_decay >= 0):
            raise UserError(
                "learning rates must be above 0 and weight decay at least 0, not "
                f"{self.lr}, {self.lr_end} and {self.weight_decay}."
            )
        return LocalStepper(self, list(parameters), total_steps, constrain_)


class LocalStepper:
    """Gradient, clipping, AdamW, schedule: all in this process, nothing waits for the device."""

    def __init__(
        self,
        cfg: AdamWConfig,
        parameters: list[nn.Parameter],
        total_steps: int,
        constrain_: Callable[[], None],
    ):
        self.cfg, self.parameters, self.total_steps = cfg, parameters, total_steps
        self.constrain_ = constrain_
        self.steps = 0
        self.lr = torch.tensor(cfg.lr, device=parameters[0].device)
        self.optimizer = torch.optim.AdamW(
            parameters,
            lr=self.lr,
            betas=(cfg.beta1, cfg.beta2),
            eps=cfg.eps,
            weight_decay=cfg.weight_decay,
            fused=True,
        )

    def __call__(self, loss: Tensor) -> Tensor:
        gradients = torch.autograd.grad(loss, self.parameters)
        norm = torch.nn.utils.get_total_norm(gradients)
        if self.cfg.max_grad_norm is not None:
            torch._foreach_mul_(gradients, (self.cfg.max_grad_norm / (norm + 1e-6)).clamp(max=1.0))
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.constrain_()
        self.steps += 1
        self._schedule()
        return norm

    def _schedule(self) -> None:
        if self.cfg.lr_end != self.cfg.lr:
            self.lr.fill_(cosine(self.cfg.lr, self.cfg.lr_end, self.steps / self.total_steps))

    def state_dict(self) -> dict[str, Any]:
        state = self.optimizer.state_dict()["state"]
        return {"adamw": state, "steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        whole = self.optimizer.state_dict()
        self.optimizer.load_state_dict({**whole, "state": state["adamw"]})
        for group in self.optimizer.param_groups:
            group["lr"] = self.lr  # loading made copies; the schedule writes to this very tensor
        self.steps = state["steps"]
        self._schedule()


def cosine(start: float, end: float, progress: float) -> float:
    """Half a cosine wave from `start` (progress 0) to `end` (progress 1 and beyond)."""
    return end + 0.5 * (start - end) * (1.0 + math.cos(math.pi * min(1.0, progress)))
