"""A memory of whole stretches of experience, for models that learn to predict several steps.

A part of the agent that learns the model, and of its state: `observe` hands it every vec step. It is a module whose
tensors stay where they are and whose counter is on the device, so that windows can be drawn inside a compiled or
recorded update, and for several seeds at once.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from fleetfoot.data import Discrete, EnvSpec, Transition


class StoredRows(NamedTuple):
    """Stretches of L transitions, time first, as they were stored."""

    obs: Tensor  # [L + 1, B, ...] before each transition, and after the last
    action: Tensor  # [L, B] or [L, B, A]
    reward: Tensor  # [L, B]
    terminated: Tensor  # [L, B] bool
    counts: Tensor  # [L, B] bool: this transition belongs to the episode of the first one
    known: Tensor  # [L, B] bool: it does, and the observation after it is the true one


class StoredWindows(nn.Module):
    """The last vec steps of all environments, [lines, N, ...].

    Each observation is stored once: the next one of a row is that of the line after it. Where an episode ended it is
    gone, and the window says so (`known`).
    """

    obs: Tensor
    action: Tensor
    reward: Tensor
    terminated: Tensor
    ended: Tensor
    count: Tensor

    def __init__(self, spec: EnvSpec, capacity: int):
        """`capacity`: transitions of all environments together."""
        super().__init__()
        self.lines, self.num_envs = max(2, capacity // spec.num_envs), spec.num_envs
        rows = self.lines, spec.num_envs
        discrete = isinstance(spec.action, Discrete)
        action = () if isinstance(spec.action, Discrete) else (spec.action.size,)
        kind = torch.int64 if discrete else torch.float32
        self.register_buffer("obs", torch.zeros(*rows, *spec.obs_shape, dtype=spec.obs_dtype))
        self.register_buffer("action", torch.zeros(*rows, *action, dtype=kind))
        self.register_buffer("reward", torch.zeros(rows))
        self.register_buffer("terminated", torch.zeros(rows, dtype=torch.bool))
        self.register_buffer("ended", torch.zeros(rows, dtype=torch.bool))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))  # vec steps ever stored

    @torch.no_grad()
    def append(self, step: Transition) -> None:
        """Store one vec step, in the place of the oldest."""
        line = (self.count % self.lines).view(1)
        values = {
            "obs": step.obs.actor,
            "action": step.action,
            "reward": step.reward,
            "terminated": step.terminated,
            "ended": step.terminated | step.truncated,
        }
        for name, value in values.items():
            tensor = getattr(self, name)
            tensor.index_copy_(0, line, value.unsqueeze(0).to(tensor.dtype))
        self.count.add_(1)

    @torch.no_grad()
    def mark_break(self) -> None:
        """The next vec step does not follow from the last one."""
        self.ended[(self.count - 1) % self.lines] = (
            True  # with nothing stored: a line that is written over
        )

    def draw(self, uniform: Tensor, length: int) -> StoredRows:
        """A stretch of `length` transitions for each number [B] on [0, 1), all of them equally likely."""
        stored = self.count.clamp(max=self.lines)
        starts = stored - length  # the line after the last transition holds its next observation
        pick = (uniform.double() * (starts.clamp(min=1) * self.num_envs)).long()  # [B]
        first, column = self.count - stored + pick // self.num_envs, pick % self.num_envs
        steps = torch.arange(length + 1, device=first.device).unsqueeze(-1)
        line = (first + steps) % self.lines  # [L + 1, B]
        rows, before = line[:-1], torch.zeros_like(line[:1], dtype=torch.bool)
        ended = self.ended[rows, column]
        over = torch.cat([before, ended[:-1]]).cumsum(0) > 0
        counts = ~over & (starts > 0)
        return StoredRows(
            self.obs[line, column],
            self.action[rows, column],
            self.reward[rows, column],
            self.terminated[rows, column],
            counts,
            counts & ~ended,
        )
