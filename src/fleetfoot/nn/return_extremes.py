"""Reward scaling by the most extreme returns seen, for all environments together or for each task (BRC)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class ReturnExtremes(nn.Module):
    """Rewards times v_max / (max(G_max, |G_min|) + alpha margin), each task with extremes of its own.

    G_max and G_min are the largest and smallest discounted return from any step of any finished episode on. A truncated
    episode is taken to go on with its mean reward for ever: its returns start from mean(reward) / (1 - gamma), those of
    a terminated one from 0. `alpha margin` is room for entropy that is paid beside the rewards. Until a task has
    finished an episode, its rewards are 0, and without that room until one of its returns was another than 0.

    The rewards of running episodes are kept on the device, the last `window` of each; longer episodes count as if they
    had begun later. Nothing waits for a GPU.
    """

    rewards: Tensor
    steps: Tensor
    lowest: Tensor
    highest: Tensor
    largest: Tensor

    def __init__(
        self, num_envs: int, tasks: int, window: int, *, gamma: float, v_max: float, margin: float
    ):
        super().__init__()
        self.gamma, self.v_max, self.margin = gamma, v_max, margin
        self.register_buffer("rewards", torch.zeros(num_envs, window))  # a ring for each episode
        self.register_buffer("steps", torch.zeros(num_envs, dtype=torch.int64))  # of each episode
        self.register_buffer("lowest", torch.full((tasks,), math.inf, dtype=torch.float64))
        self.register_buffer("highest", torch.full((tasks,), -math.inf, dtype=torch.float64))
        self.register_buffer("largest", torch.full((tasks,), math.inf))  # what `forward` reads

    @torch.no_grad()
    def update(
        self, reward: Tensor, terminated: Tensor, truncated: Tensor, task: Tensor | None
    ) -> None:
        """Take in one vec step, [N] each."""
        window = self.rewards.shape[1]
        self.rewards.scatter_(1, (self.steps % window).unsqueeze(1), reward.unsqueeze(1))
        self.steps.add_(1)
        ended = terminated | truncated
        if not ended.is_cuda and not bool(ended.any()):
            return  # on a GPU nobody looks: the same is done for nothing, which costs less than to wait
        returns, made = self._returns(truncated)
        counts = made & ended.unsqueeze(1)
        low = torch.where(counts, returns, math.inf).amin(1)
        high = torch.where(counts, returns, -math.inf).amax(1)
        if task is None:
            task = torch.zeros_like(self.steps)
        self.lowest.scatter_reduce_(0, task, low, "amin")
        self.highest.scatter_reduce_(0, task, high, "amax")
        self.largest.copy_(torch.maximum(self.highest, self.lowest.abs()))
        self.steps.mul_(~ended)

    def _returns(self, truncated: Tensor) -> tuple[Tensor, Tensor]:
        """What each running episode returns from each of its steps on if it ends now, and which steps there were:
        [N, window], the last step first."""
        window = self.rewards.shape[1]
        back = torch.arange(window, device=self.rewards.device)
        made = back < self.steps.unsqueeze(1)
        column = (self.steps.unsqueeze(1) - 1 - back) % window
        backwards = self.rewards.gather(1, column).double() * made
        mean = backwards.sum(1) / self.steps.clamp(max=window)
        beyond = torch.where(truncated, mean / (1.0 - self.gamma), 0.0)
        after = self.gamma ** (back + 1).double()
        returns = discounted_sums(backwards, self.gamma) + beyond.unsqueeze(1) * after
        return returns, made

    def forward(self, reward: Tensor, task: Tensor | None, alpha: Tensor) -> Tensor:
        """Rewards [B] (or folded returns) in the units that the critic learns, with the temperature as it is now."""
        largest = self.largest[0] if task is None else self.largest[task]
        scale = largest + alpha * self.margin
        return torch.where(scale == 0.0, 0.0, reward * self.v_max / scale)


def discounted_sums(x: Tensor, gamma: float) -> Tensor:
    """y_j = sum over i <= j of gamma^(j - i) x_i, along the last dimension.

    By doubling: after each round an entry holds the sum over twice as many. Unlike a cumulative sum of gamma^-i x_i,
    this cannot overflow, however long the row and small the gamma.
    """
    apart = 1
    while apart < x.shape[-1]:
        x = torch.cat([x[..., :apart], x[..., apart:] + gamma**apart * x[..., :-apart]], dim=-1)
        apart *= 2
    return x
