"""An actor's local buffer: rows wait until their window is complete, and leave with their first priority.

Ape-X computes it from values that the actor has anyway: q of the action it took, and the value of the observation n
steps on, on which it has acted too by then. Only the last observation of a truncated episode, on which nobody
acts, is looked at for this purpose alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fleetfoot.agents.contract import InitialPriority
from fleetfoot.data import Obs, Transition
from fleetfoot.ops.nstep import fold


class Remembering(nn.Module):
    """A behaviour network that keeps its last output."""

    behaviour_output: Tensor | None = None

    def __init__(self, behaviour: nn.Module):
        super().__init__()
        self.behaviour = behaviour

    def forward(self, obs: Obs) -> Tensor:
        self.behaviour_output = self.behaviour(obs)
        return self.behaviour_output

    @torch.no_grad()
    def take(self, obs: Obs) -> Tensor:
        """What it says about `obs`, on which it has just acted; asked only where it was not (random steps)."""
        behaviour_output = self(obs) if self.behaviour_output is None else self.behaviour_output
        self.behaviour_output = None
        return behaviour_output


class Line(NamedTuple):
    step: Transition
    q: Tensor  # [E, V] of the actions taken
    value: Tensor  # [V] of the observations
    last_value: Tensor  # [V] of the last observations of truncated episodes, 0 elsewhere


class Ready(NamedTuple):
    step: Transition
    td_error: Tensor  # [V] absolute


class LocalBuffer:
    """Gives back each vec step n steps later, with the errors of its rows."""

    def __init__(
        self,
        appraise: InitialPriority,
        behaviour: Callable[[Obs], Tensor],
        *,
        n_step: int,
        gamma: float,
        bootstrap_truncated: bool,
    ):
        self.appraise, self.behaviour = appraise, behaviour
        self.n_step, self.gamma, self.bootstrap_truncated = n_step, gamma, bootstrap_truncated
        self.waiting: deque[Line] = deque()

    @torch.no_grad()
    def add(self, step: Transition, behaviour_output: Tensor) -> Ready | None:
        """`behaviour_output`: what the behaviour network gave for `step.obs`."""
        q, value = self.appraise(step.obs, step.action, behaviour_output)
        last_value = torch.zeros_like(value)
        if self.bootstrap_truncated and bool(
            step.truncated.any()
        ):  # on the CPU: nothing to wait for
            behaviour_output = self.behaviour(step.next_obs)
            _, last_value = self.appraise(step.next_obs, step.action, behaviour_output)
            last_value = torch.where(step.truncated, last_value, 0.0)
        self.waiting.append(Line(step, q, value, last_value))
        if len(self.waiting) <= self.n_step:
            return None
        ready = Ready(self.waiting[0].step, self._error())
        self.waiting.popleft()
        return ready

    def _error(self) -> Tensor:
        """Of the oldest line, whose window and the value after it are complete."""
        *window, after = self.waiting
        ended = torch.stack([s.step.terminated | s.step.truncated for s in window], 1)  # [V, n]
        terminated = torch.stack([s.step.terminated for s in window], 1)
        folded = fold(
            reward=torch.stack([s.step.reward for s in window], 1),
            terminated=terminated if self.bootstrap_truncated else ended,
            ended=ended,
            exists=torch.ones_like(ended),
            gamma=self.gamma,
        )
        last = (folded.length - 1).unsqueeze(1)
        last_value = torch.stack([s.last_value for s in window], 1).gather(1, last).squeeze(1)
        value = torch.where(folded.ended, last_value, after.value)
        target = self.appraise.reward_scale * folded.reward + folded.discount * value
        return (target - window[0].q).abs().mean(0)
