"""A learned model of an environment: what follows an observation and an action, the reward, and whether the task ends.

Observations and actions are vectors [..., D] and [..., A]; discrete actions come as one-hot vectors, and pictures as
the latent vectors of an encoder. Raw numbers go in and come out: the model standardises its inputs and its targets
itself, with running statistics (`observe`). One network gives y; a second one, which reads the predicted next_obs as
well, gives r and c. Ends are usually a matter of where a step leads, and two networks learn both sooner than one.

    (1)  next_obs = obs + mean_change + std_change y   (predict = "delta"),  or  mean + std y   ("absolute")
    (2)  reward = mean_reward + std_reward r,  or the mean of a distribution over `reward_values`,
         or  c' (mean_reward + std_reward r) + (1 - c') rms_end e  with c' from (3): ends have a reward of their own
    (3)  P(the task goes on) = sigmoid(c); a time limit does not end the task, and the model never sees one
    (4)  loss = mean over L steps of |(predicted - true next_obs) / std|^2 / D + reward loss + cross-entropy of (3),

where the model is fed its own predictions (`Windows`): it learns to be right after several steps, and gradients flow
through all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fleetfoot.config import part
from fleetfoot.data import Loss
from fleetfoot.errors import UserError
from fleetfoot.nn.mlp import MLPConfig
from fleetfoot.nn.network import NetworkConfig
from fleetfoot.nn.normalize import RunningNorm


class Prediction(NamedTuple):
    """One imagined step."""

    next_obs: Tensor  # [..., D]
    reward: Tensor  # [...]
    continues: Tensor  # [...] probability that the task goes on


Model = Callable[[Tensor, Tensor], Prediction]
"""(obs, action) -> what follows: a `WorldModel`, or a simulator that stands in for one."""


class Windows(NamedTuple):
    """Stretches of L transitions that follow one another, time first."""

    obs: Tensor  # [B, D] where they begin
    action: Tensor  # [L, B, A]
    next_obs: Tensor  # [L, B, D]
    reward: Tensor  # [L, B]
    terminated: Tensor  # [L, B] bool
    counts: Tensor  # [L, B] bool: this transition belongs to the episode of the first one
    known: Tensor  # [L, B] bool: it does, and `next_obs` is the true one


def windows_of(
    obs: Tensor,
    action: Tensor,
    next_obs: Tensor,
    reward: Tensor,
    terminated: Tensor,
    ended: Tensor,
    *,
    length: int,
) -> Windows:
    """A rollout [T, N, ...] cut into stretches of `length` transitions; what is left at its end is left out."""
    starts = len(reward) // length

    def cut(x: Tensor) -> Tensor:
        """[T, N, ...] -> [L, starts N, ...]"""
        rows = x[: starts * length].view(starts, length, *x.shape[1:])
        return rows.transpose(0, 1).flatten(1, 2)

    cut_ended = cut(ended)
    over = torch.cat([torch.zeros_like(cut_ended[:1]), cut_ended[:-1]]).cumsum(0) > 0
    rest = cut(action), cut(next_obs), cut(reward), cut(terminated)
    return Windows(cut(obs)[0], *rest, ~over, ~over)


class OpenLoop(NamedTuple):
    """How good predictions are that are made from predictions."""

    squares: Tensor  # [L, D] mean squared error after 1..L steps, in standard deviations of the observations
    unchanged: Tensor  # [L, D] the same of a model that says that nothing changes

    @property
    def error(self) -> Tensor:
        """[L], the root of the mean squared error after 1..L steps."""
        return self.squares.mean(-1).sqrt()

    @property
    def unexplained(self) -> Tensor:
        """The share of the changes over the L steps that the model does not predict: 0 to 1, the mean over the numbers
        of an observation. One that jumps now and then, such as a contact, thus counts no more than any other, and one
        that hardly moved (less than a thirtieth of its deviation) counts as if it had moved that much."""
        least = 1e-3 * len(self.squares)
        shares = self.squares.sum(0) / self.unchanged.sum(0).clamp(min=least)
        return shares.clamp(max=1.0).mean()


@part
class WorldModelConfig:
    """A world model of two networks."""

    predict: Literal["delta", "absolute"] = "delta"
    """Predict the change of the observation, or the next observation itself."""
    reward_values: tuple[float, ...] = ()
    """All possible rewards, if there are few: the model predicts their probabilities. None: it predicts a
    number."""
    squash_reward: bool = False
    """Learn sign(r) log(1 + |r|), for tasks with a few rewards far larger than all others."""
    end_reward: bool = False
    """The reward of a step that ends the task is predicted apart from that of all others, for tasks that pay much at
    the end. Unlike a squashed reward, the mean of both is right also where the end is uncertain."""
    linear_beyond: float | None = None
    """Errors of the next observation beyond this many standard deviations count linearly (Huber loss), so
    that features that jump, such as contacts, do not dominate; None: always squared."""
    net: NetworkConfig = MLPConfig(hidden=(128, 128))
    """Network from observation and action to the next observation, and from all three to reward and
    continuation."""

    def __post_init__(self) -> None:
        if self.linear_beyond is not None and not self.linear_beyond > 0.0:
            raise UserError(f"linear_beyond must be above 0, not {self.linear_beyond}.")
        if self.squash_reward and self.reward_values:
            raise UserError("squash_reward is for rewards that are numbers, reward_values for few.")
        if self.end_reward and (self.squash_reward or self.reward_values):
            raise UserError("end_reward goes neither with squash_reward nor with reward_values.")
        if len(self.reward_values) == 1:
            raise UserError("reward_values needs at least two rewards, or none.")

    def build(self, obs_size: int, action_size: int) -> WorldModel:
        return WorldModel(self, obs_size, action_size)


class WorldModel(nn.Module):
    """(obs [..., D], action [..., A]) -> `Prediction`."""

    reward_values: Tensor

    def __init__(self, cfg: WorldModelConfig, obs_size: int, action_size: int):
        super().__init__()
        self.cfg, self.obs_size = cfg, obs_size
        self.obs_norm = RunningNorm((obs_size,), eps=1e-3)
        self.change_norm = RunningNorm((obs_size,), eps=1e-3)
        self.reward_norm = RunningNorm((), eps=1e-3)
        self.register_buffer("reward_values", torch.tensor(cfg.reward_values), persistent=False)
        self.transition = cfg.net.build(obs_size + action_size, obs_size)
        if cfg.end_reward:  # of (reward, 1) where the task ended, and (0, 0) elsewhere
            self.end_norm = RunningNorm((2,))
        outcomes = max(2 if cfg.end_reward else 1, len(cfg.reward_values)) + 1
        self.outcome = cfg.net.build(obs_size + action_size + obs_size, outcomes)

    def observe(self, obs: Tensor, reward: Tensor, next_obs: Tensor, terminated: Tensor) -> None:
        """Take transitions [B, ...] into the statistics, each once."""
        self.obs_norm.update(obs)
        self.change_norm.update(next_obs - obs)
        if self.cfg.end_reward:
            ends = terminated.to(reward.dtype)
            self.end_norm.update(torch.stack([ends * reward, ends], -1))
            reward = torch.where(terminated, self.reward_norm.shift, reward)
        self.reward_norm.update(self._squashed(reward))

    def forward(self, obs: Tensor, action: Tensor) -> Prediction:
        next_obs, reward, continues = self._outputs(obs, action)
        continues = continues.sigmoid()
        return Prediction(next_obs, self._reward(reward, continues), continues)

    def loss(self, windows: Windows) -> Loss:
        """(4), over all transitions that count."""
        obs, norm = windows.obs.float(), self._target_norm
        errors: list[Tensor] = []
        for step in range(len(windows.action)):
            obs, reward, continues = self._outputs(obs, windows.action[step])
            error = self._obs_loss((obs - windows.next_obs[step]) * norm.scale)
            ends = windows.terminated[step].float()
            end_loss = F.binary_cross_entropy_with_logits(continues, 1.0 - ends, reduction="none")
            reward_loss = self._reward_loss(reward, windows.reward[step], windows.terminated[step])
            errors.append(torch.stack([error, reward_loss, end_loss]))
        counts = windows.counts.float()
        weight = torch.stack([windows.known.float(), counts, counts], 1)  # [L, 3, B]
        each = (torch.stack(errors) * weight).sum((0, 2)) / weight.sum((0, 2)).clamp(min=1.0)
        names = ("model/obs_loss", "model/reward_loss", "model/end_loss")
        return Loss(each.sum(), dict(zip(names, each.detach().unbind(), strict=True)))

    @torch.no_grad()
    def open_loop(self, windows: Windows) -> OpenLoop:
        """The errors of predictions made from predictions."""
        first = obs = windows.obs.float()
        error, unchanged = [], []
        for step in range(len(windows.action)):
            obs = self(obs, windows.action[step]).next_obs
            true = windows.next_obs[step]
            error.append(((obs - true) * self.obs_norm.scale).square())
            unchanged.append(((first - true) * self.obs_norm.scale).square())
        known = windows.known.float().unsqueeze(-1)  # [L, B, 1]
        rows = known.sum(1).clamp(min=1.0)

        def mean(squares: list[Tensor]) -> Tensor:
            total: Tensor = (torch.stack(squares) * known).sum(1)
            return total / rows

        return OpenLoop(mean(error), mean(unchanged))

    @property
    def _target_norm(self) -> RunningNorm:
        return self.change_norm if self.cfg.predict == "delta" else self.obs_norm

    def _outputs(self, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(1), and what the second network says of the reward [..., R] and of the continuation [...]."""
        inputs, norm = torch.cat([self.obs_norm(obs), action], -1), self._target_norm
        next_obs = self.transition(inputs).float() / norm.scale + norm.shift
        if self.cfg.predict == "delta":
            next_obs = obs + next_obs
        # Without a gradient: where a step leads is learned from where it led.
        leads_to = self.obs_norm(next_obs.detach())
        out = self.outcome(torch.cat([inputs, leads_to], -1)).float()
        return next_obs, out[..., :-1], out[..., -1]

    def _obs_loss(self, error: Tensor) -> Tensor:
        """[..., D] -> [...]"""
        squares, bound = error.square(), self.cfg.linear_beyond
        if bound is not None:
            size = error.abs()
            squares = torch.where(size > bound, bound * (2.0 * size - bound), squares)
        return squares.mean(-1)

    def _reward(self, out: Tensor, continues: Tensor) -> Tensor:
        """(2)"""
        if self.cfg.reward_values:
            return (out.softmax(-1) * self.reward_values).sum(-1)
        reward = out[..., 0] / self.reward_norm.scale + self.reward_norm.shift
        if self.cfg.end_reward:
            return continues * reward + (1.0 - continues) * out[..., 1] * self._end_unit()
        return reward.sign() * reward.abs().expm1() if self.cfg.squash_reward else reward

    def _end_unit(self) -> Tensor:
        """Root of the mean square of the rewards of ends."""
        norm = self.end_norm
        squares = norm.variance[..., 0] + norm.mean[..., 0].square()
        return (squares / norm.mean[..., 1].clamp(min=1e-6)).sqrt().clamp(min=1e-6).float()

    def _reward_loss(self, out: Tensor, reward: Tensor, ends: Tensor) -> Tensor:
        if self.cfg.reward_values:
            which = (reward.unsqueeze(-1) - self.reward_values).abs().argmin(-1, keepdim=True)
            return -out.log_softmax(-1).gather(-1, which).squeeze(-1)
        wanted: Tensor = self.reward_norm(self._squashed(reward))
        error = out[..., 0] - wanted
        if self.cfg.end_reward:
            error = torch.where(ends, out[..., 1] - reward / self._end_unit(), error)
        return error.square()

    def _squashed(self, reward: Tensor) -> Tensor:
        return reward.sign() * reward.abs().log1p() if self.cfg.squash_reward else reward


@torch.no_grad()
def imagined_returns(
    model: Model,
    obs: Tensor,
    action: Tensor,
    choose: Callable[[Tensor, int], Tensor],
    value: Callable[[Tensor], Tensor],
    *,
    horizon: int,
    gamma: float,
) -> Tensor:
    """[horizon, ...]: the return of `action` in `obs` over 1..horizon imagined steps, with the value of what follows.

    `choose(obs, step)` gives the action of each later step. Whether the task has ended is not drawn: every reward
    counts with the probability that it has not.
    """
    returns = []
    total = torch.zeros(obs.shape[:-1], device=obs.device)
    alive = torch.ones_like(total)
    for step in range(horizon):
        obs, reward, continues = model(obs, action)
        total = total + alive * reward
        alive = alive * gamma * continues
        returns.append(total + alive * value(obs))
        if step + 1 < horizon:
            action = choose(obs, step + 1)
    return torch.stack(returns)
