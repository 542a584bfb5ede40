"""Steppers: from a loss to changed weights. The seam where gradients may cross to other processes.

Above 300 lines: the settings of every optimiser stand beside the stepper that all of them build.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from fleetfoot.config import part
from fleetfoot.errors import UserError
from fleetfoot.ops.optimizers import (
    PlainSGD,
    RootScaled,
    adam_,
    laid_out_like,
    per_seed,
    with_adam_state,
)
from fleetfoot.ops.schedules import cosine, linear


class Stepper(Protocol):
    """Turns a loss into changed weights."""

    def __call__(self, loss: Tensor) -> Tensor:
        """Change the weights by one step down `loss`; returns the norm of the gradient."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class OptimConfig(Protocol):
    """The part of an agent that names an optimiser."""

    def build(self, module: nn.Module, total_steps: int) -> LocalStepper:
        """A stepper of all parameters of `module`.

        `total_steps` is the length of the learning-rate schedule. A module whose weights must stay on a manifold has a
        method `constrain_`, which runs after each step.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class _Scheduled(ABC):
    """What all optimisers share: a learning rate, an optional schedule, optional clipping."""

    lr: float
    """Learning rate."""
    lr_end: float | None = None
    """Final learning rate, at the end of the run, and not above `lr`; None: constant."""
    schedule: Literal["cosine", "linear"] = "cosine"
    """How the learning rate gets there: half a cosine, or a straight line."""
    max_grad_norm: float | None = None
    """Clip the gradient to this norm."""

    @abstractmethod
    def optimizer(self, parameters: list[nn.Parameter], lr: Tensor) -> torch.optim.Optimizer:
        """The rule itself. `lr` is a tensor on the parameters' device, which the schedule writes to."""

    def check(self) -> None:
        """UserError for settings that cannot work."""
        if not (self.lr > 0 and (self.lr_end is None or self.lr_end >= 0)):
            raise UserError(
                f"learning rates must start above 0 and end at 0 or above, not at {self.lr} and {self.lr_end}."
            )
        if self.max_grad_norm is not None and not self.max_grad_norm > 0:
            raise UserError(f"max_grad_norm must be above 0, not {self.max_grad_norm}.")

    def build(self, module: nn.Module, total_steps: int) -> LocalStepper:
        """A stepper of all parameters of `module`; see `OptimConfig`."""
        self.check()
        return LocalStepper(self, module, max(1, total_steps))


@dataclass(frozen=True, kw_only=True)
class _Adam(_Scheduled):
    """What Adam and AdamW share."""

    beta1: float = 0.9
    """Decay of the running mean of gradients."""
    beta2: float = 0.999
    """Decay of the running mean of squared gradients."""
    eps: float = 1e-8
    """Added to the root of that mean in the denominator."""

    def check(self) -> None:
        super().check()
        if not (0.0 <= self.beta1 < 1.0 and 0.0 <= self.beta2 < 1.0 and self.eps >= 0.0):
            raise UserError(
                f"beta1 and beta2 must be at least 0 and below 1, and eps 0 or more, not {self.beta1}, "
                f"{self.beta2} and {self.eps}."
            )

    def options(self, lr: Tensor) -> dict[str, Any]:
        options = {"lr": lr, "betas": (self.beta1, self.beta2), "eps": self.eps, "fused": True}
        return options | {"capturable": lr.is_cuda}


@part
class AdamWConfig(_Adam):
    """AdamW: Adam with decoupled weight decay."""

    lr: float = 3e-4
    """Learning rate."""
    weight_decay: float = 0.1
    """Each step shrinks every weight by the fraction lr * weight_decay."""

    def check(self) -> None:
        super().check()
        if self.weight_decay < 0:
            raise UserError(f"weight_decay must be 0 or more, not {self.weight_decay}.")

    def optimizer(self, parameters: list[nn.Parameter], lr: Tensor) -> torch.optim.Optimizer:
        options = self.options(lr) | {"weight_decay": self.weight_decay}
        return with_adam_state(torch.optim.AdamW(parameters, **options))


@part
class AdamConfig(_Adam):
    """Adam, without weight decay."""

    lr: float = 1e-4
    """Learning rate."""

    def optimizer(self, parameters: list[nn.Parameter], lr: Tensor) -> torch.optim.Optimizer:
        return with_adam_state(torch.optim.Adam(parameters, **self.options(lr)))


@part
class SGDConfig(_Scheduled):
    """Plain gradient descent, without momentum."""

    lr: float = 3e-4
    """Learning rate."""

    def optimizer(self, parameters: list[nn.Parameter], lr: Tensor) -> torch.optim.Optimizer:
        return PlainSGD(parameters, {"lr": lr})


@part
class RMSPropConfig(_Scheduled):
    """Centred RMSProp: the gradient divided by its running standard deviation (DQN, Ape-X)."""

    lr: float = 6.25e-5
    """Learning rate."""
    decay: float = 0.95
    """Decay of the running means of the gradient and of its square."""
    eps: float = 1.5e-7
    """Keeps the denominator away from zero."""
    eps_inside: bool = True
    """Add eps to the variance, as in the published systems; False: to its root, as in torch."""
    centred: bool = True
    """False: divide by the root of the mean square."""

    def check(self) -> None:
        super().check()
        if not 0.0 < self.decay < 1.0:
            raise UserError(f"decay must lie between 0 and 1, not {self.decay}.")

    def optimizer(self, parameters: list[nn.Parameter], lr: Tensor) -> torch.optim.Optimizer:
        return RootScaled(
            parameters,
            lr,
            decay=self.decay,
            centred=self.centred,
            eps=self.eps,
            eps_inside=self.eps_inside,
        )


@part
class AdaGradConfig(_Scheduled):
    """AdaGrad: the gradient divided by the root of the sum of all squares so far (Gorila)."""

    lr: float = 1e-2
    """Learning rate."""
    eps: float = 1e-10
    """Added to the root in the denominator."""

    def optimizer(self, parameters: list[nn.Parameter], lr: Tensor) -> torch.optim.Optimizer:
        return RootScaled(parameters, lr, decay=None, centred=False, eps=self.eps, eps_inside=False)


def unchanged(gradients: list[Tensor]) -> list[Tensor]:
    return gradients


class LocalStepper:
    """Gradient, clipping, optimiser, schedule: all in this process, nothing waits for the device.

    `gradients` and `apply` are the two halves of a step. Whoever has something to do between them (a way to a server
    and back) calls them one after the other; `reduce` is what a plain call does between them.
    """

    def __init__(self, cfg: _Scheduled, module: nn.Module, total_steps: int):
        self.cfg, self.total_steps = cfg, total_steps
        self.parameters = parameters = list(module.parameters())
        self.constrain_: Callable[[], None] = getattr(module, "constrain_", lambda: None)
        # On the device, like the rate that depends on it: a step that was captured once can be repeated.
        self.steps = torch.zeros((), dtype=torch.float64, device=parameters[0].device)
        self.lr = torch.tensor(cfg.lr, device=parameters[0].device)
        # What happens to a gradient before it is applied. Set from outside where several GPUs share one.
        self.reduce: Callable[[list[Tensor]], list[Tensor]] = unchanged

    @cached_property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimiser, made when it is first needed.

        Torch loads its compiler with the first one of a process, which takes about a second, and actors and evaluators
        never make a step.
        """
        return self.cfg.optimizer(self.parameters, self.lr)

    def __call__(self, loss: Tensor) -> Tensor:
        return self.apply(self.reduce(self.gradients(loss)))

    def gradients(self, loss: Tensor) -> list[Tensor]:
        """The gradient of `loss`, one tensor per parameter and in their order. Changes nothing."""
        return list(torch.autograd.grad(loss, self.parameters))

    def apply(self, gradients: list[Tensor]) -> Tensor:
        """Change the weights by one step down these gradients; overwrites them, returns their norm before clipping."""
        norm = self.clip_(gradients)
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = laid_out_like(parameter, gradient)
        self._step(self.optimizer.step)
        self.optimizer.zero_grad(set_to_none=True)
        self.constrain_()
        self._schedule(self.steps.add_(1))
        return norm

    @property
    def compilable(self) -> bool:
        """Does `apply_in_plain_operations` serve as well as `apply`?

        Not on several GPUs: their weights stay equal because all round alike, and each compiles code of its own.
        """
        return type(self.cfg) in (AdamConfig, AdamWConfig) and self.reduce is unchanged

    @torch.no_grad()
    def apply_in_plain_operations(self, gradients: list[Tensor]) -> Tensor:
        """What `apply` does, for a compiler: a few kernels on a GPU instead of a hundred."""
        norm = torch.stack([self._squares(gradient) for gradient in gradients]).sum(0).sqrt()
        if (factor := self.clip_factor(norm)) is not None:
            gradients = [gradient * per_seed(factor, gradient) for gradient in gradients]
        self._step(partial(adam_, self.optimizer, gradients))
        self.constrain_()
        # On a CPU torch (2.13) forgets what compiled code adds to a single float64, unless it is one of a list.
        torch._foreach_add_([self.steps], 1)
        self._schedule(self.steps)
        return norm

    def _step(self, step: Callable[[], None]) -> None:
        step()

    def _squares(self, gradient: Tensor) -> Tensor:
        return gradient.square().sum()

    def set_lr(self, lr: Tensor) -> None:
        """A learning rate that the agent chooses by itself, for the steps to come; not together with a schedule."""
        self.lr.copy_(lr)

    def clip_(self, gradients: list[Tensor]) -> Tensor:
        """Scale the gradient down to the largest norm allowed; returns its norm before that."""
        norm = torch.nn.utils.get_total_norm(gradients)
        if (factor := self.clip_factor(norm)) is not None:
            torch._foreach_mul_(gradients, factor)
        return norm

    def clip_factor(self, norm: Tensor) -> Tensor | None:
        """By how much a gradient of this norm is scaled; None: never."""
        if self.cfg.max_grad_norm is None:
            return None
        return (self.cfg.max_grad_norm / (norm + 1e-6)).clamp(max=1.0)

    def _schedule(self, steps: Tensor) -> None:
        end = self.cfg.lr_end
        if end is not None and end != self.cfg.lr:
            way = cosine if self.cfg.schedule == "cosine" else linear
            self.lr.copy_(way(self.cfg.lr, end, steps / self.total_steps))

    @torch.no_grad()
    def restart_(self) -> None:
        """Forget every step made: running means and the schedule begin anew, in place. The weights stay."""
        for state in self.optimizer.state.values():
            for value in state.values():
                value.zero_()
        self.steps.zero_()
        self._schedule(self.steps)

    def state_dict(self) -> dict[str, Any]:
        state = self.optimizer.state_dict()["state"]
        return {"optimizer": state, "steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        whole = self.optimizer.state_dict()
        # A state that was saved before the first step may be empty: what it lacks stays as it is.
        merged = whole["state"] | state["optimizer"]
        self.optimizer.load_state_dict({**whole, "state": merged})
        for group in self.optimizer.param_groups:
            group["lr"] = self.lr  # loading made copies; the schedule writes to this very tensor
        self.steps.copy_(state["steps"])
        self._schedule(self.steps)
