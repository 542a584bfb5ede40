"""An actor's local buffer: rows wait until their n-step window is complete, and leave with their first priority.

Ape-X computes that priority from values that the actor has anyway: q of the action taken, and the value of the
observation n steps later, on which it has acted by then. Only the last observation of a truncated episode, on which
nobody acts, costs another pass through the network.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fleetfoot.agents.contract import InitialPriority
from fleetfoot.data import Obs, Transition
from fleetfoot.ops.nstep import fold
from fleetfoot.replay.replay import ReplayConfig


class Recorder(nn.Module):
    """A behaviour network that remembers its last output."""

    behaviour_output: Tensor | None = None

    def __init__(self, behaviour: nn.Module):
        super().__init__()
        self.behaviour = behaviour

    def forward(self, obs: Obs) -> Tensor:
        self.behaviour_output = self.behaviour(obs)
        return self.behaviour_output

    def take(self, obs: Obs) -> Tensor:
        """Its output for `obs`, from acting on it; computed now if the actions were random and nobody asked it."""
        output = self.behaviour(obs) if self.behaviour_output is None else self.behaviour_output
        self.behaviour_output = None
        return output


class Line(NamedTuple):
    """One vec step that waits for the end of its windows."""

    step: Transition
    q: Tensor  # [E, V] of the actions taken
    value: Tensor  # [V] of the observations
    last_value: Tensor  # [V] of the last observations of truncated episodes, 0 elsewhere


class LocalBuffer:
    """Returns each vec step n steps later, together with the errors of its rows."""

    def __init__(
        self, initial_priority: InitialPriority, acting: Recorder, cfg: ReplayConfig, gamma: float
    ):
        """`acting`: chooses the actions of the steps that are added; `cfg`: says how the replay folds windows."""
        self.initial_priority, self.acting, self.gamma = initial_priority, acting, gamma
        self.n_step, self.bootstrap_truncated = cfg.n_step, cfg.bootstrap_truncated
        self.lines: deque[Line] = deque()

    @torch.no_grad()
    def add(self, step: Transition) -> tuple[Transition, Tensor] | None:
        """Take in a vec step; returns the one of n steps ago and its absolute errors [V], once there is one."""
        q, value = self.initial_priority(step.obs, step.action, self.acting.take(step.obs))
        last_value = torch.zeros_like(value)
        if self.bootstrap_truncated and step.truncated.any():  # on the CPU, so nothing waits
            output = self.acting.behaviour(step.next_obs)
            _, values = self.initial_priority(step.next_obs, step.action, output)
            last_value = torch.where(step.truncated, values, 0.0)
        self.lines.append(Line(step, q, value, last_value))
        if len(self.lines) <= self.n_step:
            return None
        td_error = self._oldest_td_error()
        return self.lines.popleft().step, td_error

    def _oldest_td_error(self) -> Tensor:
        *window, after = self.lines
        ended = torch.stack([x.step.terminated | x.step.truncated for x in window], 1)  # [V, n]
        terminated = torch.stack([x.step.terminated for x in window], 1)
        folded = fold(
            reward=torch.stack([x.step.reward for x in window], 1),
            terminated=terminated if self.bootstrap_truncated else ended,
            ended=ended,
            exists=torch.ones_like(ended),
            gamma=self.gamma,
        )
        last = (folded.length - 1).unsqueeze(1)
        last_value = torch.stack([x.last_value for x in window], 1).gather(1, last).squeeze(1)
        value = torch.where(folded.ended, last_value, after.value)
        target = self.initial_priority.reward_scale * folded.reward + folded.discount * value
        return (target - window[0].q).abs().mean(0)
