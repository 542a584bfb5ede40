"""Optimisers that read their learning rate on the device, so that nothing waits for a GPU."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class PlainSGD(torch.optim.Optimizer):
    """weight <- weight - lr g."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            by = torch._foreach_mul([parameter.grad for parameter in group["params"]], group["lr"])
            torch._foreach_sub_(group["params"], by)


class RootScaled(torch.optim.Optimizer):
    """weight <- weight - lr g / root(S): S is the running mean of g^2 (RMSProp) or, without `decay`, its sum (AdaGrad).

    Unlike torch's own, it cannot take the root of a variance that rounding made negative, and its AdaGrad is made of
    operations that round once per number: the same weights however they are split over the shards of a server.
    """

    def __init__(
        self,
        parameters: list[nn.Parameter],
        lr: Tensor,
        *,
        decay: float | None,
        centred: bool,
        eps: float,
        eps_inside: bool,
    ):
        super().__init__(parameters, {"lr": lr})
        self.decay, self.centred, self.eps, self.eps_inside = decay, centred, eps, eps_inside
        for parameter in parameters:
            self.state[parameter]["square"] = torch.zeros_like(parameter)
            if centred:
                self.state[parameter]["mean"] = torch.zeros_like(parameter)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            parameters = group["params"]
            gradients = [parameter.grad for parameter in parameters]
            by = torch._foreach_div(gradients, self._root(parameters, gradients))
            torch._foreach_mul_(by, group["lr"])
            torch._foreach_sub_(parameters, by)

    def _root(self, parameters: list[Tensor], gradients: list[Tensor]) -> list[Tensor]:
        square = [self.state[parameter]["square"] for parameter in parameters]
        fresh = torch._foreach_mul(gradients, gradients)
        if self.decay is None:
            torch._foreach_add_(square, fresh)
        else:
            torch._foreach_lerp_(square, fresh, 1.0 - self.decay)
        spread = [s.clone() for s in square]
        if self.centred:
            mean = [self.state[parameter]["mean"] for parameter in parameters]
            torch._foreach_lerp_(mean, gradients, 1.0 - (self.decay or 0.0))
            torch._foreach_addcmul_(spread, mean, mean, value=-1.0)
            torch._foreach_clamp_min_(spread, 0.0)
        if self.eps_inside:
            torch._foreach_add_(spread, self.eps)
        torch._foreach_sqrt_(spread)
        if not self.eps_inside:
            torch._foreach_add_(spread, self.eps)
        return spread


def adam_(adam: torch.optim.Optimizer, gradients: list[Tensor]) -> None:
    """A step of torch's AdamW, or of its Adam without weight decay, in operations that a compiler can merge."""
    group = adam.param_groups[0]
    weights, lr, (beta1, beta2) = group["params"], group["lr"], group["betas"]
    mean, square, steps = (
        [adam.state[weight][name] for weight in weights]
        for name in ("exp_avg", "exp_avg_sq", "step")
    )
    torch._foreach_add_(steps, 1)
    torch._foreach_lerp_(mean, gradients, 1.0 - beta1)
    torch._foreach_mul_(square, beta2)
    torch._foreach_addcmul_(square, gradients, gradients, 1.0 - beta2)
    # In float32, 1 - 0.999 is off in the fifth digit.
    step = steps[0].double()
    size = (lr / (1.0 - beta1**step)).float()
    root = torch._foreach_div(torch._foreach_sqrt(square), (1.0 - beta2**step).sqrt().float())
    torch._foreach_add_(root, group["eps"])
    by = torch._foreach_mul(torch._foreach_div(mean, root), size)
    if group["weight_decay"]:
        torch._foreach_mul_(weights, 1.0 - lr * group["weight_decay"])
    torch._foreach_sub_(weights, by)


def with_adam_state(adam: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """The same Adam with the state that torch makes at its first step, so that it can be saved, shared and restarted
    before."""
    for group in adam.param_groups:
        for parameter in group["params"]:
            adam.state[parameter] = {
                "step": torch.zeros((), device=parameter.device),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }
    return adam


def laid_out_like(parameter: Tensor, gradient: Tensor) -> Tensor:
    """The gradient in the memory order of its parameter.

    Fused optimisers take nothing else, and compiled convolutions return gradients with the channels last.
    """
    if gradient.stride() == parameter.stride():
        return gradient
    return torch.empty_like(parameter).copy_(gradient)


def per_seed(numbers: Tensor, like: Tensor) -> Tensor:
    """One number for all, or for each seed [S], to be multiplied with [S, ...]."""
    return numbers.view((*numbers.shape, *[1] * (like.dim() - numbers.dim())))
