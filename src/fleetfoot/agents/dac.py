"""DAC: dual actor-critic. One actor is cautious, learns values and is evaluated; the other is optimistic and explores.

Nauman & Cygan, "Decoupled Actor-Critic", later "On the Theory of Risk-Aware Agents", arXiv 2310.19527. Soft
actor-critic with R, d the folded reward and discount, alpha the temperature, Q_mean and Q_spread the mean and half the
distance of the two critics, (mu, sigma) the policy's Gaussian before tanh and (mu_o, sigma_o) the optimist's:

    (1)  y = R + d (Q_mean - b_target Q_spread - alpha log pi'),   a', log pi' ~ policy(s'), target critics;
         b_target = 1: the smaller of the two
    (2)  critic loss = sum_heads mean_batch (Q - y)^2
    (3)  critic_target <- (1 - tau) critic_target + tau critic
    (4)  policy loss = mean_batch [alpha log pi(a|s) - (Q_mean - b_low Q_spread)],   a ~ policy(s)
    (5)  optimist loss = -mean_batch [Q_mean + b_up Q_spread](s, a_o) + min(w, 20) KL,   a_o ~ tanh N(mu_o, f sigma_o),
         KL = mean_batch KL(N(mu_o, sigma_o) || N(mu, sigma)), measured without the factor f
    (6)  temperature loss = alpha (entropy - H*),   H* = target_entropy_per_action * A
    (7)  b_up = exp(x) - b_low,   loss (b_up + b_low) (KL / A - KL*) - min(b_up, 0.001 - b_low)
    (8)  w = exp(x'),   loss -w (KL / A - KL*)
    (9)  every `renew_every` env steps optimist, b_up, w and their optimisers begin anew. Then, at the start and after
         (10) the optimist is a copy of the policy (`renew="copy"`), or has its own first weights
    (10) at the env steps `resets`: every weight, target, scalar and optimiser as it began; the replay stays

One update is (1) to (8) in this order. b_up may be negative: a milder pessimism.

Deviations: [1] `renew="copy"` is what the paper describes; the published code means to copy, but leaves random weights.
[2] Resets, and `renew="initial"`, return to the same initial weights each time. [3] Rewards may be scaled, observations
normalised (both off, as published). [4] The floor of b_up in (7) moves with b_low; in the published code it is -0.999,
whatever b_low is.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from fleetfoot.agents.checks import (
    check_above_zero,
    check_soft_policy,
    check_tau,
    flat_actions,
)
from fleetfoot.agents.state import Stateful
from fleetfoot.config import part
from fleetfoot.data import Batch, EnvSpec, Loss, Obs, Transition, UpdateResult
from fleetfoot.errors import UserError
from fleetfoot.nn.encode import ObsNorms, QNetwork
from fleetfoot.nn.freeze import frozen
from fleetfoot.nn.gaussian import ORTHOGONAL, Gaussian, Greedy
from fleetfoot.nn.mlp import MLPConfig
from fleetfoot.nn.network import NetworkConfig
from fleetfoot.nn.optimist import Independent, IndependentConfig, OptimistConfig, OptimisticPolicy
from fleetfoot.nn.reset import ResetPoint, Resets
from fleetfoot.nn.scalar import ExpConfig, LearnedScalarConfig, Temperature
from fleetfoot.ops.ensemble import bound
from fleetfoot.ops.gaussian_kl import gaussian_kl
from fleetfoot.ops.polyak import polyak_, target_copy
from fleetfoot.ops.squash import squashed_sample
from fleetfoot.optim import AdamConfig
from fleetfoot.rng import random_streams, seeded_init

Metrics = dict[str, Tensor]
RESETS = (50_001, *(250_000 * i + 1 for i in range(1, 7)), 2_000_001, 2_500_001)
ACTOR = MLPConfig(hidden=(256, 256, 256), start="orthogonal")
CRITIC = MLPConfig(hidden=(256, 256, 256), layer_norm=True, start="orthogonal")
PLAIN = AdamConfig(lr=3e-4)


@part
class DACConfig:
    """DAC: a pessimistic actor that is evaluated and an optimistic one that collects."""

    pessimism: float = 1.0
    """Multiple of the critics' spread that the policy's loss subtracts from their mean (b_low); 1: the
    smaller critic."""
    target_pessimism: float = 1.0
    """The same for targets (b_target)."""
    tau: float = 0.005
    """Step of the target critic towards the critic after every update."""
    reward_scale: float = 1.0
    """Factor on rewards."""
    alpha: float = 1.0
    """Initial temperature."""
    target_entropy_per_action: float = -0.5
    """Entropy that the temperature is adjusted to, per action component."""
    log_std_min: float = -10.0
    """Lower bound of the log standard deviation before tanh."""
    log_std_max: float = 2.0
    """Upper bound of the log standard deviation before tanh."""
    optimist: OptimistConfig = IndependentConfig(net=ACTOR)
    """The actor that explores."""
    std_factor: float = 1.25
    """Factor on the optimist's standard deviation when it acts."""
    kl_target: float = 0.5
    """Target KL divergence of the optimist from the policy, per action component (KL*)."""
    optimism: LearnedScalarConfig = ExpConfig(start=0.5)
    """exp(x) in b_up = exp(x) - b_low, and its initial value."""
    optimism_margin: float = 0.001
    """When b_up comes this close to -b_low, where its gradient vanishes, it is pushed up again."""
    kl_weight: LearnedScalarConfig = ExpConfig(start=1.0)
    """Learned weight of the KL divergence in the optimist's loss (w), and its initial value."""
    max_kl_weight: float = 20.0
    """Upper bound of w in the optimist's loss."""
    renew: Literal["copy", "initial"] = "copy"
    """How the optimist starts, and restarts: as a copy of the policy, or with new weights."""
    renew_every: int = 25_000
    """Env steps between two renewals of the optimist; 0: never."""
    resets: tuple[int, ...] = RESETS
    """Env steps before whose updates everything but the replay is reset."""
    normalize_obs: bool = False
    """Normalise observations by their running mean and standard deviation."""
    task_embedding: int = 32
    """Size of the learned embedding of each task, in multi-task sets."""
    policy_net: NetworkConfig = ACTOR
    """Network of the policy."""
    critic_net: NetworkConfig = CRITIC
    """Network of each critic."""
    policy_optim: AdamConfig = PLAIN
    """Optimiser of the policy."""
    critic_optim: AdamConfig = PLAIN
    """Optimiser of the critics."""
    optimist_optim: AdamConfig = PLAIN
    """Optimiser of the optimist."""
    alpha_optim: AdamConfig = PLAIN
    """Optimiser of the temperature."""
    adjuster_optim: AdamConfig = AdamConfig(lr=3e-5, beta1=0.5)
    """Optimiser of b_up and w."""

    def build(
        self, spec: EnvSpec, *, gamma: float, total_updates: int, seed: int, device: torch.device
    ) -> DAC:
        check_tau(self.tau)
        check_soft_policy(self)
        check_above_zero(self, "std_factor", "kl_target")
        same_net = (
            isinstance(self.optimist, IndependentConfig) and self.optimist.net == self.policy_net
        )
        if self.renew == "copy" and not same_net:
            raise UserError(
                "agent.renew copies the policy into the optimist, so agent.optimist must be an IndependentConfig "
                "with the policy's network; use --agent.renew initial otherwise."
            )
        return DAC(self, spec, total_updates, seed, device)


class DAC(Stateful):
    """The agent; the equations are at the top of this file."""

    compiled_methods: ClassVar = ("critic_loss", "policy_loss", "optimist_loss")
    periods = ()
    state_attrs = (
        *("policy", "critic", "critic_target", "alpha", "optimist", "optimism", "kl_weight"),
        *("step_critic", "step_policy", "step_alpha", "step_optimist", "step_adjusters"),
        *("critic_noise", "policy_noise", "optimist_noise", "renewals", "resets"),
    )
    counter_attrs = ("updates", "env_steps")

    def __init__(
        self, cfg: DACConfig, spec: EnvSpec, total_updates: int, seed: int, device: torch.device
    ):
        self.cfg, self.action_size = cfg, flat_actions("DAC", spec)
        self.updates = self.env_steps = 0
        self.critic_noise, self.policy_noise, self.optimist_noise = random_streams(seed, 3, device)
        log_std = (cfg.log_std_min, cfg.log_std_max)
        bounds = {"log_std": log_std, "head_gains": ORTHOGONAL}
        with seeded_init(seed):
            self.norms = ObsNorms(spec, cfg.normalize_obs)
            encoder = self.norms.encoder("actor", cfg.task_embedding)
            self.gaussian = Gaussian(encoder, cfg.policy_net, self.action_size, **bounds)
            encoder = self.norms.encoder("critic", cfg.task_embedding)
            self.critic = QNetwork(encoder, cfg.critic_net, self.action_size, 1, 2).to(device)
            encoder = self.norms.encoder("actor", cfg.task_embedding)
            self.optimist = cfg.optimist.build(encoder, self.action_size, log_std).to(device)
        self.policy = Greedy(self.gaussian.to(device))
        self._copy_policy()
        self.behaviour = OptimisticPolicy(self.gaussian, self.optimist, cfg.std_factor)
        self.critic_target = target_copy(self.critic, self.norms.critic)
        self.alpha = Temperature(cfg.alpha).to(device)
        self.optimism = cfg.optimism.build(offset=cfg.pessimism).to(device)
        self.kl_weight = cfg.kl_weight.build().to(device)
        adjusters = nn.ModuleList([self.optimism, self.kl_weight])
        self.step_critic = cfg.critic_optim.build(self.critic, total_updates)
        self.step_policy = cfg.policy_optim.build(self.gaussian, total_updates)
        self.step_optimist = cfg.optimist_optim.build(self.optimist, total_updates)
        self.step_alpha = cfg.alpha_optim.build(self.alpha, total_updates)
        self.step_adjusters = cfg.adjuster_optim.build(adjusters, total_updates)
        optimistic = [self.optimist, self.optimism, self.kl_weight]
        modules = [self.gaussian, self.critic, self.critic_target, self.alpha, *optimistic]
        renewed = [self.step_optimist, self.step_adjusters]
        steppers = [self.step_critic, self.step_policy, self.step_alpha, *renewed]
        self.renewals = Resets(ResetPoint(optimistic, renewed), every=cfg.renew_every)
        self.resets = Resets(ResetPoint(modules, steppers), at=cfg.resets)

    def observe(self, fresh: Transition) -> None:
        self.norms.update(fresh.obs)
        self.env_steps += fresh.reward.shape[0]
        if self.renewals.restore_if_due_(self.env_steps - 1):  # (9)
            self._copy_policy()
        self.resets.restore_if_due_(self.env_steps)  # (10)

    def _copy_policy(self) -> None:
        """The optimist begins, and begins anew, as the policy, or with weights of its own."""
        if self.cfg.renew == "copy":
            assert isinstance(self.optimist, Independent)
            polyak_(self.optimist.gaussian, self.gaussian, 1.0)

    def update(self, batch: Batch) -> UpdateResult:
        result = self.update_critic(batch)
        return result.with_metrics(self.update_actors(batch.obs))

    def update_critic(self, batch: Batch) -> UpdateResult:
        noise = self.critic_noise.normal(batch.reward.shape[0], self.action_size)
        loss = self.critic_loss(batch, noise)
        grad_norm = self.step_critic(loss.loss)
        self.updates += 1
        polyak_(self.critic_target, self.critic, self.cfg.tau)  # (3)
        return UpdateResult(loss.metrics | {"critic/grad_norm": grad_norm}, loss.td_error)

    def update_actors(self, obs: Obs) -> Metrics:
        shape = (obs.actor.shape[0], self.action_size)
        with frozen(self.critic):
            loss = self.policy_loss(obs, self.policy_noise.normal(*shape))
            metrics = loss.metrics | {"policy/grad_norm": self.step_policy(loss.loss)}
            loss = self.optimist_loss(obs, self.optimist_noise.normal(*shape))
            grad_norm = self.step_optimist(loss.loss)
            metrics = metrics | loss.metrics | {"optimist/grad_norm": grad_norm}
        self.step_alpha(self.alpha_loss(metrics["policy/entropy"]))
        self.step_adjusters(self.adjuster_loss(metrics["optimist/kl"]))
        return metrics

    def critic_loss(self, batch: Batch, noise: Tensor) -> Loss:
        """The loss (2)."""
        target = self.target(batch, noise)  # [B]
        q = self.critic(batch.obs, batch.action).float().squeeze(-1)  # [2, B]
        loss = (batch.weight * (q - target).square()).mean(-1).sum()  # (2)
        q = q.detach()
        spread = 0.5 * (q[0] - q[1]).abs().mean()
        metrics = {"critic/loss": loss.detach(), "critic/q": q.mean(), "critic/spread": spread}
        return Loss(loss, metrics, {"td_error": (q.mean(0) - target).abs()})

    @torch.no_grad()
    def target(self, batch: Batch, noise: Tensor) -> Tensor:
        action, log_prob = self.gaussian.sample(batch.next_obs, noise)
        q = self.critic_target(batch.next_obs, action).float().squeeze(-1)
        soft = bound(q, self.cfg.target_pessimism) - self.alpha() * log_prob
        return self.cfg.reward_scale * batch.reward + batch.discount * soft  # (1)

    def policy_loss(self, obs: Obs, noise: Tensor) -> Loss:
        """The loss (4)."""
        action, log_prob = self.gaussian.sample(obs, noise)
        q = bound(self.critic(obs, action).float().squeeze(-1), self.cfg.pessimism)
        loss = (self.alpha().detach() * log_prob - q).mean()  # (4)
        metrics = {"policy/loss": loss, "policy/entropy": -log_prob.mean()}
        metrics |= {"policy/alpha": self.alpha()}
        return Loss(loss, {name: value.detach() for name, value in metrics.items()})

    def optimist_loss(self, obs: Obs, noise: Tensor) -> Loss:
        """The loss (5). The policy is only read."""
        with torch.no_grad():
            near_mean, near_log_std = self.gaussian(obs)
        mean, log_std = self.optimist(obs, near_mean, near_log_std)
        action, _ = squashed_sample(mean, log_std + math.log(self.cfg.std_factor), noise)
        upper, weight = self.optimism().detach(), self.kl_weight().detach()
        q = bound(self.critic(obs, action).float().squeeze(-1), -upper)
        kl = gaussian_kl(mean, log_std, near_mean, near_log_std).mean()
        loss = -q.mean() + weight.clamp(max=self.cfg.max_kl_weight) * kl  # (5)
        metrics = {"optimist/kl": kl, "optimist/optimism": upper, "optimist/kl_weight": weight}
        return Loss(loss, {name: value.detach() for name, value in metrics.items()})

    def alpha_loss(self, entropy: Tensor) -> Tensor:
        target = self.cfg.target_entropy_per_action * self.action_size
        return self.alpha() * (entropy - target)  # (6)

    def adjuster_loss(self, kl: Tensor) -> Tensor:
        """Above its target, the divergence lowers b_up and raises w."""
        excess = kl / self.action_size - self.cfg.kl_target
        upper = self.optimism()
        upper_loss = (upper + self.cfg.pessimism) * excess
        floor = self.cfg.optimism_margin - self.cfg.pessimism
        upper_loss = upper_loss - upper.clamp(max=floor)  # (7)
        return upper_loss - self.kl_weight() * excess  # (7) + (8)
