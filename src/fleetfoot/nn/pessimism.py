"""How far below the mean of its critics a learner values an action: mean - beta * spread.

q [E, B] are the values of E critics. beta is pessimism, with the sign of `ops/ensemble.py`: for two critics beta 0 is
their mean and beta 1 the smaller of the two (clipped double Q-learning, "CDQL"). Where beta comes from:

    FixedBound      a number
    LearnedBound    the gap between targets and predictions: on the rows the critics learn from (dual TD-learning, GPL:
                    Cetin & Celiktutan, arXiv 2110.03375) or on rows held out from them (VPL: Nauman et al., arXiv
                    2403.01014)
    BanditBound     a two-armed bandit that is paid in returns of training episodes (TOP: Moskovitz et al., arXiv
                    2102.03765)

An agent with any of them values actions by `bound(q)`, in targets and in the policy loss alike. What else it has to do
depends on `bound.learns_from`: for "batch" and "held_out", after each critic update one step down `bound.loss` on such
rows and then `bound.follow_`; for "returns", a call of `bound.observe` after each vec step; for "nothing", nothing.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal, Protocol, TypeAlias

import torch
from torch import Tensor, nn

from fleetfoot.config import part
from fleetfoot.errors import UserError
from fleetfoot.ops import ensemble

Source: TypeAlias = Literal["nothing", "batch", "held_out", "returns"]
LEAST = 1e-3  # the least beta of a softplus


class Bound(nn.Module):
    """[E, B] -> [B]."""

    learns_from: Source = "nothing"
    level: Tensor  # beta, a single number: a buffer or a parameter

    def beta(self) -> Tensor:
        return self.level.detach()

    def spread(self, q: Tensor) -> Tensor:
        """How far the critics disagree, [E, B] -> [B]."""
        return ensemble.spread(q)

    def forward(self, q: Tensor) -> Tensor:
        return q.mean(0) - self.beta() * self.spread(q)

    def loss(
        self, gap: Tensor, slope: Tensor, weight: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """What beta goes down, and the means of both arguments. All of them are constants but beta.

        gap [B] = y - mean_i Q_i(s, a), where the target y was made with the beta of now; slope [B] = -dy / dbeta =
        discount * spread of the target critics at (s', a'); weight [B]: of each row, 1 where there is none.
        """
        raise NotImplementedError(f"{type(self).__name__} does not learn from rows")

    def check_rows(self, count: int) -> None:
        """UserError where `loss` cannot learn from so few rows."""

    def follow_(self, slope: Tensor) -> None:
        """Take in the mean slope that `loss` found."""

    def observe(self, reward: Tensor, ended: Tensor, uniform: Tensor) -> None:
        """Take in one vec step: reward [N], ended [N] bool, and a random number from [0, 1)."""

    def constrain_(self) -> None:
        """Keep beta in its range, after each optimiser step."""

    def restart_(self) -> None:
        """Forget what `follow_` took in."""


class BoundConfig(Protocol):
    """The part of an agent that turns the critics' values into one."""

    def build(self, num_envs: int) -> Bound: ...


@part
class FixedBoundConfig:
    """A constant beta."""

    beta: float = 1.0
    """0: the mean of the critics; 1: with two critics, the smaller (clipped double Q)."""

    def build(self, num_envs: int) -> Bound:
        return FixedBound(self)


class FixedBound(Bound):
    """The bound of `FixedBoundConfig`: beta does not change."""

    def __init__(self, cfg: FixedBoundConfig):
        super().__init__()
        self.register_buffer("level", torch.tensor(float(cfg.beta)))


@part
class LearnedBoundConfig:
    """Beta is learned so that targets and predictions agree."""

    beta: float = 1.0
    """Initial beta."""
    learns_from: Literal["batch", "held_out"] = "held_out"
    """Rows the critics learn from (GPL), or rows they never see (VPL)."""
    form: Literal["unbiased", "bias", "mse"] = "unbiased"
    """unbiased: how much the critics overestimate rows, in units of the spread; bias: half the square of the
    mean gap, as if predictions were true and targets wrong; mse: half the mean squared gap, which noise in
    rewards affects too."""
    normalize: bool = True
    """Divide the gap by a running mean of the slope, so that the loss does not depend on the scale of rewards."""
    kind: Literal["free", "softplus"] = "free"
    """free: beta itself is learned and may be negative; softplus: beta = log(1 + exp(x)) > 0, and x is learned."""
    beta_min: float = -2.0
    """Smallest beta."""
    beta_max: float = 5.0
    """Largest beta."""

    def build(self, num_envs: int) -> Bound:
        if not self.beta_min <= self.beta <= self.beta_max:
            raise UserError(
                f"bound.beta ({self.beta}) must lie between beta_min ({self.beta_min}) and beta_max ({self.beta_max})."
            )
        if self.kind == "softplus" and self.beta < LEAST:
            raise UserError(f"bound.beta must be at least {LEAST} for a softplus, not {self.beta}.")
        return LearnedBound(self)


class LearnedBound(Bound):
    """Its loss is, over (slope's running mean + 1e-6)^2:

        unbiased   1/2 mean[gap + beta * slope]^2: the gap to targets without pessimism. Its minimum is -gap / slope
        bias       1/2 mean[gap]^2, where beta lowers the target of each row by beta * slope
        mse        1/2 mean[gap^2], likewise

    In the first form the gap is a constant, because critics follow their targets: a larger beta lowers both, and on
    rows they learn from the gap stays near zero. In the other two the predictions are constants and the gap falls with
    beta, so that beta sums up gaps until they vanish.

    The square of a mean over few rows is too large by the variance of that mean. The first two forms are therefore the
    product of the means of two independent halves of the rows, which is right on average; so is its gradient, one
    factor from each half.
    """

    RATE: ClassVar = 0.01  # of the running mean
    EPS: ClassVar = 1e-6
    running_slope: Tensor

    def __init__(self, cfg: LearnedBoundConfig):
        super().__init__()
        self.cfg = cfg
        self.learns_from = cfg.learns_from
        self.level = nn.Parameter(torch.tensor(self._raw(cfg.beta)))
        self.register_buffer("running_slope", torch.zeros(()))  # zero: none so far

    def _raw(self, beta: float) -> float:
        """What is learned, for a beta."""
        if self.cfg.kind == "free":
            return float(beta)
        return math.log(math.expm1(max(beta, LEAST)))

    def _now(self) -> Tensor:
        return self.level if self.cfg.kind == "free" else nn.functional.softplus(self.level)

    def beta(self) -> Tensor:
        return self._now().detach()

    def loss(
        self, gap: Tensor, slope: Tensor, weight: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        weight = torch.ones_like(gap) if weight is None else weight
        weight = weight / weight.mean().clamp(min=1 / len(weight))  # also where all are zero
        gap, slope = gap.detach(), slope.detach()
        mean_gap, mean_slope = (weight * gap).mean(), (weight * slope).mean()
        now = self._now()
        change = now if self.cfg.form == "unbiased" else now.detach() - now  # zero, with a gradient
        moving = gap + change * slope
        if self.cfg.form == "mse":
            loss = 0.5 * (weight * moving.square()).mean()
        else:
            half = len(gap) // 2
            moving = weight * moving
            loss = 0.5 * moving[:half].mean() * moving[half:].mean()
        if self.cfg.normalize:
            running = self.running_slope
            loss = loss / (torch.where(running > 0, running, mean_slope) + self.EPS).square()
        return loss, mean_gap, mean_slope

    def check_rows(self, count: int) -> None:
        if count < 2 and self.cfg.form != "mse":
            raise UserError(
                f"beta is learned from two halves of the rows, of which there are {count}: raise --batch-size, or use "
                "--agent.bound.form mse."
            )

    @torch.no_grad()
    def follow_(self, slope: Tensor) -> None:
        running = self.running_slope
        new = torch.where(running > 0, torch.lerp(running, slope, self.RATE), slope)
        running.copy_(torch.where(slope > 0, new, running))  # zero: there were no rows

    @torch.no_grad()
    def constrain_(self) -> None:
        low, high = self._raw(self.cfg.beta_min), self._raw(self.cfg.beta_max)
        self.level.copy_(self.level.clamp(low, high))  # `clamp_` is slow for several seeds at once

    @torch.no_grad()
    def restart_(self) -> None:
        self.running_slope.zero_()


@part
class BanditBoundConfig:
    """Exponential weights over a few betas, one of which is used from the end of one training episode to the
    next."""

    betas: tuple[float, ...] = (1.0, 0.0)
    """The arms. TOP writes mean + beta * spread, so these are its -1 (pessimism) and 0 (optimism)."""
    lr: float = 0.1
    """Step size of the weight of the arm that was used."""
    decay: float = 0.9
    """Share of that weight that stays after each episode."""
    window: int = 5
    """Episodes over which changes of the return are normalised."""

    def build(self, num_envs: int) -> Bound:
        if len(self.betas) < 2 or self.window < 2:
            raise UserError("a bandit needs at least two betas and a window of at least 2.")
        return BanditBound(self, num_envs)


class BanditBound(Bound):
    """When an episode ends, with R its return (the mean, where several end at once) and R' that of the one before:

        x = R - R',   f = (x - mean of the last `window` x) / their standard deviation (this x is one of them)
        w_arm <- decay * w_arm,   then   w_arm <- w_arm + lr * f / max(exp(w_arm), 1e-4),   for the arm that was in use
        next arm ~ softmax(w)

    The spread is TOP's: sqrt(sum_i (q_i - mean)^2 + 1e-4).
    """

    learns_from: Source = "returns"
    betas: Tensor
    weights: Tensor
    arm: Tensor
    returns: Tensor
    last_return: Tensor
    changes: Tensor
    episodes: Tensor

    def __init__(self, cfg: BanditBoundConfig, num_envs: int):
        super().__init__()
        self.cfg = cfg
        self.register_buffer("betas", torch.tensor(cfg.betas))
        self.register_buffer("level", torch.tensor(cfg.betas[0]))
        self.register_buffer("weights", torch.zeros(len(cfg.betas)))
        self.register_buffer("arm", torch.zeros((), dtype=torch.int64))
        self.register_buffer("returns", torch.zeros(num_envs))  # of the episodes under way
        self.register_buffer("last_return", torch.zeros(()))
        self.register_buffer("changes", torch.zeros(cfg.window))  # newest last
        self.register_buffer("episodes", torch.zeros((), dtype=torch.int64))

    def spread(self, q: Tensor) -> Tensor:
        return ((q - q.mean(0)).square().sum(0) + 1e-4).sqrt()

    @torch.no_grad()
    def observe(self, reward: Tensor, ended: Tensor, uniform: Tensor) -> None:
        returns = self.returns + reward
        count = ended.sum()
        now = count > 0
        episode_return = torch.where(ended, returns, 0.0).sum() / count.clamp(min=1)
        change = episode_return - self.last_return
        # The first return has none before it: it is remembered and moves no weight.
        known = now & (self.episodes > 0)
        changes = torch.cat([self.changes[1:], change.reshape(1)])
        place = torch.arange(self.cfg.window, device=reward.device)
        valid = place >= self.cfg.window - self.episodes.clamp(max=self.cfg.window)
        filled = valid.sum().clamp(min=1)
        mean = torch.where(valid, changes, 0.0).sum() / filled
        std = (torch.where(valid, changes - mean, 0.0).square().sum() / filled).sqrt()
        feedback = (change - mean) / (std + 1e-4)
        decayed = self.cfg.decay * self.weights
        paid = decayed + self.cfg.lr * feedback / decayed.exp().clamp(min=1e-4)
        used = torch.arange(len(self.betas), device=reward.device) == self.arm
        weights = torch.where(known & used, paid, self.weights)
        arm = (uniform >= weights.softmax(0).cumsum(0)[:-1]).sum()
        arm = torch.where(now, arm, self.arm)
        self.weights.copy_(weights)
        self.arm.copy_(arm)
        self.level.copy_(self.betas.index_select(0, arm.reshape(1)).squeeze(0))
        self.changes.copy_(torch.where(known, changes, self.changes))
        self.last_return.copy_(torch.where(now, episode_return, self.last_return))
        self.episodes.add_(now)
        self.returns.copy_(torch.where(ended, 0.0, returns))
