"""VPL: validation pessimism learning. SAC that learns, on rows held out, how far to mistrust its critics.

Nauman, Ostaszewski & Cygan, "A Case for Validation Buffer in Pessimistic Actor-Critic", arXiv 2403.01014. With R, d the
folded reward and discount, alpha the temperature, Q_mean and Q_spread the mean and half the distance of two critics:

    (1)  a', log pi' ~ policy(s'),   y_beta = R + d (Q_mean - beta Q_spread - alpha log pi'),   target critics
    (2)  critic loss = sum_i mean_batch (Q_i(s, a) - y_beta)^2
    (3)  critic_target <- (1 - tau) critic_target + tau critic
    (4)  policy loss = mean_batch [alpha log pi(a|s) - (Q_mean - beta' Q_spread)(s, a)],   a ~ policy(s),
         beta' = beta, or `policy_beta`
    (5)  temperature loss = alpha (H - H*),   H = -mean_batch log pi(a|s),   H* = target_entropy_per_action * A
    (6)  beta loss = 1/2 (mean_held_out [gap + beta d Q_spread])^2 / (running mean of d Q_spread)^2, with the constant
         gap = y_beta - Q_mean(s, a): beta goes to -gap / (d Q_spread), what held-out rows are overrated by, in spreads

all six in every update, in this order. Rows that are held out (`replay/held_out.py`) serve (6) and nothing else. beta 1
is clipped double Q-learning.

Why (6). Let U be the error of Q_mean and e(s, a) = Q_mean - y_beta what a prediction is above its target. Then
U(s, a) = e(s, a) + E [d (U - beta Q_spread)(s', a')], a value with the reward e - d beta Q_spread. It is zero on
average if E [e] = beta E [d Q_spread] on the rows that the policy meets. On rows that critics learn from, e is zero
whatever beta is; rows held out show what e is where nobody learned.

What is the paper's, and what is reconstruction. Only the abstract and the introduction of the paper were at hand, and
no code. From there: a small buffer of transitions that the critic never learns from, on which pessimism is adjusted all
the time, so that the error of the critic's targets becomes small. Everything else is ours:

    [1] (6), its derivation, two other forms of it (`bound.form`: bias, mse), its normalisation, the free or softplus
        beta and its range.
    [2] Q_mean(s, a) of the critics themselves, against y of the target critics. (6) multiplies the means of two halves
        of the held-out rows, since the square of one mean is too large by its variance.
    [3] The share of 1/16 and its choice by whole episodes.
    [4] Plain gradient steps for beta, so that it moves by lr times its distance from where (6) leads: a running mean
        over 1 / lr updates. Adam would undo the normalisation: it moves beta at full speed however small that distance,
        and after updates without held-out rows up to 16 times faster than that.
    [5] Resets return to the same initial weights and the first beta; the replay keeps all rows in their sets.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from fleetfoot import diagnose
from fleetfoot.agents.checks import check_soft_policy, check_tau, flat_actions
from fleetfoot.agents.state import Stateful
from fleetfoot.config import part
from fleetfoot.data import Batch, EnvSpec, Loss, Obs, Transition, UpdateResult
from fleetfoot.errors import UserError
from fleetfoot.nn.encode import ObsNorms, QNetwork
from fleetfoot.nn.freeze import frozen
from fleetfoot.nn.gaussian import ORTHOGONAL, Gaussian, Greedy, Sampled
from fleetfoot.nn.mlp import MLPConfig
from fleetfoot.nn.network import NetworkConfig
from fleetfoot.nn.pessimism import FixedBoundConfig, LearnedBoundConfig
from fleetfoot.nn.reset import ResetPoint, Resets
from fleetfoot.nn.scalar import Temperature
from fleetfoot.ops.polyak import polyak_, target_copy
from fleetfoot.optim import AdamConfig, AdamWConfig, SGDConfig
from fleetfoot.rng import RandomStream, random_streams, seeded_init

NET = MLPConfig(hidden=(256, 256), start="orthogonal")


@part
class VPLConfig:
    """VPL: SAC whose pessimism is learned from the errors of its critics."""

    bound: LearnedBoundConfig | FixedBoundConfig = LearnedBoundConfig()
    """Where beta comes from: held-out rows; with learns_from="batch", the rows that the critics learn from
    (for comparison); or a fixed number."""
    policy_beta: float | None = None
    """Pessimism of the policy's loss; None: beta."""
    reset_every_updates: int = 0
    """Updates after which all weights, beta and optimisers are reset while the replay is kept; 0: never."""
    tau: float = 0.005
    """Step of the target critic towards the critic after every update."""
    alpha: float = 1.0
    """Initial temperature."""
    target_entropy_per_action: float = -0.5
    """Entropy that the temperature is adjusted to, per action component."""
    log_std_min: float = -10.0
    """Lower bound of the log standard deviation before tanh."""
    log_std_max: float = 2.0
    """Upper bound of the log standard deviation before tanh."""
    normalize_obs: bool = False
    """Normalise observations by their running mean and standard deviation."""
    task_embedding: int = 32
    """Size of the learned embedding of each task, in multi-task sets."""
    policy_net: NetworkConfig = NET
    """Network of the policy."""
    critic_net: NetworkConfig = NET
    """Network of each critic."""
    policy_optim: AdamConfig | AdamWConfig = AdamConfig(lr=3e-4)
    """Optimiser of the policy."""
    critic_optim: AdamConfig | AdamWConfig = AdamConfig(lr=3e-4)
    """Optimiser of the critics."""
    alpha_optim: AdamConfig = AdamConfig(lr=3e-4)
    """Optimiser of the temperature."""
    bound_optim: SGDConfig | AdamConfig = SGDConfig(lr=3e-4)
    """Optimiser of beta."""

    def build(
        self, spec: EnvSpec, *, gamma: float, total_updates: int, seed: int, device: torch.device
    ) -> VPL:
        check_tau(self.tau)
        check_soft_policy(self)
        if self.reset_every_updates < 0:
            raise UserError("agent.reset_every_updates must be 0 or more.")
        return VPL(self, spec, total_updates, seed, device)


class VPL(Stateful):
    """The agent; the equations are at the top of this file."""

    compiled_methods: ClassVar = ("critic_loss", "policy_loss", "alpha_loss", "bound_loss")
    periods = ()
    state_attrs = (
        *("policy", "critic", "critic_target", "alpha", "bound"),
        *("step_policy", "step_critic", "step_alpha", "step_bound"),
        *("critic_noise", "policy_noise", "bound_noise", "resets"),
    )

    def __init__(
        self, cfg: VPLConfig, spec: EnvSpec, total_updates: int, seed: int, device: torch.device
    ):
        self.cfg, self.device, self.updates = cfg, device, 0
        self.action_size = flat_actions("VPL", spec)
        self.target_entropy = cfg.target_entropy_per_action * self.action_size
        self.critic_noise, self.policy_noise, self.bound_noise = random_streams(seed, 3, device)
        bounds = {"log_std": (cfg.log_std_min, cfg.log_std_max), "head_gains": ORTHOGONAL}
        with seeded_init(seed):
            self.norms = ObsNorms(spec, cfg.normalize_obs)
            encoder = self.norms.encoder("actor", cfg.task_embedding)
            self.gaussian = Gaussian(encoder, cfg.policy_net, self.action_size, **bounds)
            encoder = self.norms.encoder("critic", cfg.task_embedding)
            self.critic = QNetwork(encoder, cfg.critic_net, self.action_size, 1, 2).to(device)
        self.policy, self.behaviour = Greedy(self.gaussian.to(device)), Sampled(self.gaussian)
        self.critic_target = target_copy(self.critic, self.norms.critic)
        self.alpha = Temperature(cfg.alpha).to(device)
        self.bound = cfg.bound.build(spec.num_envs).to(device)
        self.step_critic = cfg.critic_optim.build(self.critic, total_updates)
        self.step_policy = cfg.policy_optim.build(self.gaussian, total_updates)
        self.step_alpha = cfg.alpha_optim.build(self.alpha, total_updates)
        self.step_bound = None
        if self.bound.learns_from != "nothing":
            self.step_bound = cfg.bound_optim.build(self.bound, total_updates)
        self.resets = None
        if cfg.reset_every_updates:
            modules = [self.gaussian, self.critic, self.critic_target, self.alpha, self.bound]
            steppers = [self.step_critic, self.step_policy, self.step_alpha, self.step_bound]
            point = ResetPoint(modules, [self.bound, *(step for step in steppers if step)])
            self.resets = Resets(point, every=cfg.reset_every_updates)

    def observe(self, fresh: Transition) -> None:
        self.norms.update(fresh.obs)
        if self.resets is not None:
            self.resets.restore_if_due_(self.updates)

    def update(self, batch: Batch) -> UpdateResult:
        apart, batch = batch.held_out, batch._replace(held_out=None)
        rows = len(batch.reward)
        noise = self.critic_noise.normal(rows, self.action_size)
        critic_loss = self.critic_loss(batch, noise)
        grad_norm = self.step_critic(critic_loss.loss)
        metrics = critic_loss.metrics | {"critic/grad_norm": grad_norm}
        polyak_(self.critic_target, self.critic, self.cfg.tau)  # (3)
        with frozen(self.critic):
            noise = self.policy_noise.normal(rows, self.action_size)
            policy_loss = self.policy_loss(batch.obs, noise)
            grad_norm = self.step_policy(policy_loss.loss)
            metrics |= policy_loss.metrics | {"policy/grad_norm": grad_norm}
        self.step_alpha(self.alpha_loss(metrics["policy/entropy"]))
        if self.step_bound is not None:
            rows_for_beta = batch if self.bound.learns_from == "batch" else apart
            if rows_for_beta is None:
                raise UserError(
                    "VPL learns its pessimism from held-out rows: use --replay.sampler "
                    "HeldOutUniformConfig, or a bound that learns from the batch."
                )
            self.bound.check_rows(len(rows_for_beta.reward))
            noise = self.bound_noise.normal(len(rows_for_beta.reward), self.action_size)
            bound_loss = self.bound_loss(rows_for_beta, noise)
            metrics |= bound_loss.metrics
            self.step_bound(bound_loss.loss)
            self.bound.follow_(bound_loss.aux["slope"])
        metrics |= {"bound/beta": self.bound.beta().clone(), "policy/alpha": self.alpha().detach()}
        self.updates += 1
        return UpdateResult(metrics, critic_loss.td_error)

    def critic_loss(self, batch: Batch, noise: Tensor) -> Loss:
        """The loss (2)."""
        target, _ = self.target(batch, noise)  # [B]
        q = self.critic(batch.obs, batch.action).float().squeeze(-1)  # [E, B]
        loss = (batch.weight * (q - target).square()).mean(-1).sum()  # (2)
        q = q.detach()
        gap = target - q.mean(0)
        metrics = {
            "critic/loss": loss.detach(),
            "critic/q": q.mean(),
            "critic/spread": self.bound.spread(q).mean(),
            "critic/gap": gap.mean(),
        }
        return Loss(loss, metrics, {"td_error": gap.abs()})

    @torch.no_grad()
    def target(self, batch: Batch, noise: Tensor) -> tuple[Tensor, Tensor]:
        """(1), and -d target / d beta; [B] both."""
        action, log_prob = self.gaussian.sample(batch.next_obs, noise)
        q = self.critic_target(batch.next_obs, action).float().squeeze(-1)  # [E, B]
        value = self.bound(q) - self.alpha() * log_prob
        return batch.reward + batch.discount * value, batch.discount * self.bound.spread(q)

    def policy_loss(self, obs: Obs, noise: Tensor) -> Loss:
        """The loss (4)."""
        action, log_prob = self.gaussian.sample(obs, noise)
        q = self.critic(obs, action).float().squeeze(-1)
        beta = self.cfg.policy_beta
        value = self.bound(q) if beta is None else q.mean(0) - beta * self.bound.spread(q)
        loss = (self.alpha().detach() * log_prob - value).mean()  # (4)
        entropy = -log_prob.detach().mean()
        return Loss(loss, {"policy/loss": loss.detach(), "policy/entropy": entropy})

    def alpha_loss(self, entropy: Tensor) -> Tensor:
        return self.alpha() * (entropy - self.target_entropy)  # (5)

    def bound_loss(self, rows: Batch, noise: Tensor) -> Loss:
        """The loss (6). Nothing but beta gets a gradient. aux: the mean slope, -d target / d beta."""
        target, slope = self.target(rows, noise)
        with torch.no_grad():
            q = self.critic(rows.obs, rows.action).float().squeeze(-1)  # [E, B]
        loss, gap, slope = self.bound.loss(target - q.mean(0), slope, rows.weight)
        return Loss(loss, {"bound/loss": loss.detach(), "bound/gap": gap}, {"slope": slope})

    def diagnose(self, batch: Batch, held_out: Batch | None) -> dict[str, Tensor]:
        critic, policy = self.critic, self.gaussian
        return diagnose.actor_critic(critic, policy, batch, held_out, self._examine)

    def _examine(self, rows: Batch) -> Tensor:
        """The loss (2), as an update would find it, with noise that no update draws."""
        noise = RandomStream(self.updates, self.device).normal(len(rows.reward), self.action_size)
        return VPL.critic_loss(self, rows, noise).loss  # not the compiled one

    @torch.no_grad()
    def q(self, obs: Obs, action: Tensor) -> Tensor:
        q: Tensor = self.bound(self.critic(obs, action).float().squeeze(-1))
        return q
