"""One optimiser for the weights of several seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fleetfoot.ops.optimizers import per_seed
from fleetfoot.optim import LocalStepper


class StackedStepper(LocalStepper):
    """Steps down the losses [S] of all seeds. Optimisers act on each number alone, so only the gradient, its norm and
    its clipping have to know of the seeds."""

    def __init__(
        self,
        whole: LocalStepper,
        parts: Sequence[LocalStepper],
        vmapped: Callable[[Callable[..., Any]], Callable[..., Any]],
    ):
        """`whole`: its parameters are [S, ...] by now. `parts`: those of the seeds, whose state becomes a view of its
        share; all have made equally many steps."""
        vars(self).update(vars(whole))
        vars(self).pop("optimizer", None)  # one that was made for the weights of one seed
        self.constrain_ = vmapped(whole.constrain_)
        self.num_seeds = len(parts)
        self.lr_share: Tensor | None = (
            None  # [S] of each seed in the largest rate, where they differ
        )
        self.steps.copy_(parts[0].steps)
        self.lr.copy_(parts[0].lr)
        for part in parts:
            part.steps, part.lr = self.steps, self.lr
        for at, parameter in enumerate(self.parameters):
            states = [part.optimizer.state[part.parameters[at]] for part in parts]
            self._share(parameter, states)

    def _share(self, parameter: Tensor, states: Sequence[dict[str, Tensor]]) -> None:
        state = self.optimizer.state[parameter]
        for name in state:
            of_seeds = [of_seed[name] for of_seed in states]
            if state[name].shape == parameter.shape:
                state[name] = torch.stack(of_seeds)
                shares = list(state[name])
            else:  # the number of steps, which is the same for all
                state[name].copy_(of_seeds[0])
                shares = [state[name]] * self.num_seeds
            for of_seed, share in zip(states, shares, strict=True):
                of_seed[name] = share

    def set_lr(self, lr: Tensor) -> None:
        """[S], a rate for each seed. Optimisers take one for all, so they step with the largest."""
        largest = lr.amax()
        self.lr.copy_(largest)
        self.lr_share = lr / largest

    def _step(self, step: Callable[[], None]) -> None:
        """Steps are proportional to the learning rate, so each seed goes its share of the way."""
        if self.lr_share is None:
            return step()
        before = [parameter.detach().clone() for parameter in self.parameters]
        step()
        with torch.no_grad():
            for parameter, old in zip(self.parameters, before, strict=True):
                share = per_seed(self.lr_share, parameter)
                parameter.copy_(torch.lerp(old, parameter, share))
        return None

    def _squares(self, gradient: Tensor) -> Tensor:
        return gradient.reshape(self.num_seeds, -1).square().sum(1)

    def gradients(self, loss: Tensor) -> list[Tensor]:
        return super().gradients(loss.sum())  # no seed's loss depends on another's weights

    def clip_(self, gradients: list[Tensor]) -> Tensor:
        """The norm of each seed's gradient, [S]."""
        # All in a few launches: most of these tensors are too small to be worth one of their own.
        norms = torch._foreach_norm([g[seed] for seed in range(self.num_seeds) for g in gradients])
        norm: Tensor = torch.linalg.vector_norm(torch.stack(norms).view(self.num_seeds, -1), dim=1)
        if (factor := self.clip_factor(norm)) is not None:
            for gradient in gradients:
                gradient.mul_(per_seed(factor, gradient))
        return norm
