"""BRO: bigger, regularised, optimistic. Sample-efficient soft actor-critic on one environment.

Nauman et al. 2024, arXiv 2405.16158. Soft actor-critic with wide normalised critics (`nn/bronet.py`), weight decay,
full resets, quantile critics, no pessimism, and a second, optimistic actor that explores. With R, d the folded reward
and discount, theta [K] the quantiles of a critic, alpha the temperature, Q_mean and Q_spread the mean and half the
distance of the two critics, (mu, sigma) the policy's Gaussian before tanh and (mu_o, sigma_o) the optimist's:

    (1)  a', log pi' ~ policy(s'),   theta' = Q_mean - pessimism * Q_spread of the target critics, per quantile
    (2)  y_j = R + d (theta'_j - alpha log pi')
    (3)  critic loss = sum_heads mean_batch sum_i mean_j |tau_i - 1{y_j < theta_i}| Huber(y_j - theta_i);
         without quantiles: sum_heads mean_batch (Q - y)^2
    (4)  critic_target <- (1 - tau) critic_target + tau critic
    (5)  policy loss = mean_batch [alpha log pi(a|s) - (Q_mean - pessimism * Q_spread)],   a ~ policy(s)
    (6)  optimist loss = -mean_batch [Q_mean + omega Q_spread](s, a_o) + lambda KL,   a_o ~ tanh N(mu_o, f sigma_o),
         KL = mean_batch KL(N(mu_o, sigma_o) || N(mu, sigma)), by default with mu_o = mu + net(s, mu), sigma_o = sigma
    (7)  temperature loss = alpha (entropy - H*),   H* = target_entropy_per_action * A
    (8)  omega loss = omega (KL / A - KL*),   lambda loss = -lambda (KL / A - KL*)
    (9)  at the env steps `resets`: every weight, target, scalar and optimiser as it began; the replay stays

One update is (1) to (8) in this order. The spread in (1), (5) and (6) is taken per quantile, and then averaged. The
optimist explores with sampled actions, the greedy policy is evaluated. Without an `optimist` (BRO minimal), the policy
explores, and (6) and (8) fall away.

Deviations: [1] observations may be normalised, and rewards scaled (both off, as published). [2] A constant is left out
of the omega loss, which has the same gradient. [3] All resets return to the same initial weights; so does the published
code, which starts each time from the same seed.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from fleetfoot import diagnose
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
from fleetfoot.nn.bronet import BroNetConfig
from fleetfoot.nn.encode import ObsNorms, QNetwork
from fleetfoot.nn.freeze import frozen
from fleetfoot.nn.gaussian import ORTHOGONAL, Gaussian, Greedy, Sampled
from fleetfoot.nn.network import NetworkConfig
from fleetfoot.nn.optimist import DeltaConfig, Optimist, OptimistConfig, OptimisticPolicy
from fleetfoot.nn.reset import ResetPoint, Resets
from fleetfoot.nn.scalar import LearnedScalarConfig, SquashedConfig, Temperature
from fleetfoot.ops import quantile
from fleetfoot.ops.ensemble import bound
from fleetfoot.ops.gaussian_kl import gaussian_kl
from fleetfoot.ops.polyak import polyak_, target_copy
from fleetfoot.ops.squash import squashed_sample
from fleetfoot.optim import AdamConfig, AdamWConfig
from fleetfoot.rng import RandomStream, random_streams, seeded_init

Metrics = dict[str, Tensor]
RESETS = (15_001, 50_001, 250_001, 500_001, 750_001, 1_000_001, 1_500_001, 2_000_001)
DECAYED = AdamWConfig(weight_decay=1e-4)


@part
class BROConfig:
    """BRO: wide regularised critics, an optimistic second actor and resets."""

    quantiles: int | None = 100
    """Quantiles of each critic (K); None: plain values, learned with the squared error."""
    pessimism: float = 0.0
    """Multiple of the critics' spread that targets and policy subtract from their mean."""
    tau: float = 0.005
    """Step of the target critic towards the critic after every update."""
    reward_scale: float = 1.0
    """Factor on rewards; the temperature and the Huber loss expect about 1 per step."""
    alpha: float = 1.0
    """Initial temperature."""
    target_entropy_per_action: float = -0.5
    """Entropy that the temperature is adjusted to, per action component."""
    log_std_min: float = -10.0
    """Lower bound of the log standard deviation before tanh."""
    log_std_max: float = 2.0
    """Upper bound of the log standard deviation before tanh."""
    optimist: OptimistConfig | None = DeltaConfig()
    """The actor that explores; None: the policy itself."""
    std_factor: float = 0.75
    """Factor on the optimist's standard deviation when it acts."""
    kl_target: float = 0.05
    """Target KL divergence of the optimist from the policy, per action component (KL*)."""
    optimism: LearnedScalarConfig = SquashedConfig(start=1.0)
    """Learned weight of the critics' spread in the optimist's loss (omega), and its initial value."""
    kl_weight: LearnedScalarConfig = SquashedConfig(start=0.25)
    """Learned weight of the KL divergence in the optimist's loss (lambda), and its initial value."""
    resets: tuple[int, ...] = RESETS
    """Env steps before whose updates everything but the replay is reset."""
    normalize_obs: bool = False
    """Normalise observations by their running mean and standard deviation."""
    task_embedding: int = 32
    """Size of the learned embedding of each task, in multi-task sets."""
    policy_net: NetworkConfig = BroNetConfig(width=256, blocks=1)
    """Network of the policy."""
    critic_net: NetworkConfig = BroNetConfig(width=512, blocks=2)
    """Network of each critic."""
    policy_optim: AdamWConfig = DECAYED
    """Optimiser of the policy."""
    critic_optim: AdamWConfig = DECAYED
    """Optimiser of the critics."""
    optimist_optim: AdamWConfig = DECAYED
    """Optimiser of the optimist."""
    alpha_optim: AdamConfig = AdamConfig(lr=3e-4, beta1=0.5)
    """Optimiser of the temperature."""
    adjuster_optim: AdamConfig = AdamConfig(lr=3e-5, beta1=0.5)
    """Optimiser of omega and lambda."""

    def build(
        self, spec: EnvSpec, *, gamma: float, total_updates: int, seed: int, device: torch.device
    ) -> BRO:
        if self.quantiles is not None and self.quantiles < 1:
            raise UserError(f"agent.quantiles must be at least 1, not {self.quantiles}.")
        check_tau(self.tau)
        check_soft_policy(self)
        check_above_zero(self, "std_factor", "kl_target")
        return BRO(self, spec, total_updates, seed, device)


class BRO(Stateful):
    """The agent; the equations are at the top of this file."""

    compiled_methods: ClassVar = ("critic_loss", "policy_loss", "optimist_loss")
    periods = ()
    state_attrs = (
        *("policy", "critic", "critic_target", "alpha", "optimism", "kl_weight", "optimist"),
        *("step_critic", "step_policy", "step_alpha", "step_optimist", "step_adjusters"),
        *("critic_noise", "policy_noise", "optimist_noise", "resets"),
    )
    counter_attrs = ("updates", "env_steps")

    def __init__(
        self, cfg: BROConfig, spec: EnvSpec, total_updates: int, seed: int, device: torch.device
    ):
        self.cfg, self.action_size = cfg, flat_actions("BRO", spec)
        self.updates = self.env_steps = 0
        self.critic_noise, self.policy_noise, self.optimist_noise = random_streams(seed, 3, device)
        log_std, outputs = (cfg.log_std_min, cfg.log_std_max), cfg.quantiles or 1
        bounds = {"log_std": log_std, "head_gains": ORTHOGONAL}
        self.optimist: Optimist | None = None
        with seeded_init(seed):
            self.norms = ObsNorms(spec, cfg.normalize_obs)
            encoder = self.norms.encoder("actor", cfg.task_embedding)
            self.gaussian = Gaussian(encoder, cfg.policy_net, self.action_size, **bounds)
            encoder = self.norms.encoder("critic", cfg.task_embedding)
            self.critic = QNetwork(encoder, cfg.critic_net, self.action_size, outputs, 2).to(device)
            if cfg.optimist is not None:
                encoder = self.norms.encoder("actor", cfg.task_embedding)
                self.optimist = cfg.optimist.build(encoder, self.action_size, log_std).to(device)
        self.policy = Greedy(self.gaussian.to(device))
        self.behaviour: Sampled | OptimisticPolicy = Sampled(self.gaussian)
        self.critic_target = target_copy(self.critic, self.norms.critic)
        self.alpha = Temperature(cfg.alpha).to(device)
        self.optimism = cfg.optimism.build().to(device)
        self.kl_weight = cfg.kl_weight.build().to(device)
        self.tau_i = quantile.midpoints(outputs, device)
        self.step_critic = cfg.critic_optim.build(self.critic, total_updates)
        self.step_policy = cfg.policy_optim.build(self.gaussian, total_updates)
        self.step_alpha = cfg.alpha_optim.build(self.alpha, total_updates)
        self.step_optimist = self.step_adjusters = None
        modules = [self.gaussian, self.critic, self.critic_target, self.alpha]
        steppers = [self.step_critic, self.step_policy, self.step_alpha]
        if self.optimist is not None:
            self.behaviour = OptimisticPolicy(self.gaussian, self.optimist, cfg.std_factor)
            adjusters = nn.ModuleList([self.optimism, self.kl_weight])
            self.step_optimist = cfg.optimist_optim.build(self.optimist, total_updates)
            self.step_adjusters = cfg.adjuster_optim.build(adjusters, total_updates)
            modules += [self.optimist, self.optimism, self.kl_weight]
            steppers += [self.step_optimist, self.step_adjusters]
        self.resets = Resets(ResetPoint(modules, steppers), at=cfg.resets)

    def observe(self, fresh: Transition) -> None:
        self.norms.update(fresh.obs)
        self.env_steps += fresh.reward.shape[0]
        self.resets.restore_if_due_(self.env_steps)  # (9)

    def update(self, batch: Batch) -> UpdateResult:
        result = self.update_critic(batch)
        return result.with_metrics(self.update_actors(batch.obs))

    def update_critic(self, batch: Batch) -> UpdateResult:
        noise = self.critic_noise.normal(batch.reward.shape[0], self.action_size)
        loss = self.critic_loss(batch, noise)
        grad_norm = self.step_critic(loss.loss)
        self.updates += 1
        polyak_(self.critic_target, self.critic, self.cfg.tau)  # (4)
        return UpdateResult(loss.metrics | {"critic/grad_norm": grad_norm}, loss.td_error)

    def update_actors(self, obs: Obs) -> Metrics:
        shape = (obs.actor.shape[0], self.action_size)
        with frozen(self.critic):
            loss = self.policy_loss(obs, self.policy_noise.normal(*shape))
            metrics = loss.metrics | {"policy/grad_norm": self.step_policy(loss.loss)}
            if self.step_optimist is not None:
                loss = self.optimist_loss(obs, self.optimist_noise.normal(*shape))
                grad_norm = self.step_optimist(loss.loss)
                metrics = metrics | loss.metrics | {"optimist/grad_norm": grad_norm}
        self.step_alpha(self.alpha_loss(metrics["policy/entropy"]))
        if self.step_adjusters is not None:
            self.step_adjusters(self.adjuster_loss(metrics["optimist/kl"]))
        return metrics

    def critic_loss(self, batch: Batch, noise: Tensor) -> Loss:
        """The loss (3)."""
        target = self.target(batch, noise)  # [B, K]
        theta = self.critic(batch.obs, batch.action).float()  # [2, B, K]
        if self.cfg.quantiles is None:
            per_row = (theta - target).square().mean(-1)
        else:
            per_row = quantile.huber_loss(theta, target, self.tau_i)
        loss = (batch.weight * per_row).mean(-1).sum()  # (3)
        q = theta.detach().mean(-1)  # [2, B]
        spread = 0.5 * (q[0] - q[1]).abs().mean()
        metrics = {"critic/loss": loss.detach(), "critic/q": q.mean(), "critic/spread": spread}
        return Loss(loss, metrics, {"td_error": (q.mean(0) - target.mean(-1)).abs()})

    @torch.no_grad()
    def target(self, batch: Batch, noise: Tensor) -> Tensor:
        action, log_prob = self.gaussian.sample(batch.next_obs, noise)
        theta = self.critic_target(batch.next_obs, action).float()
        value = bound(theta, self.cfg.pessimism)  # (1) [B, K]
        soft = value - (self.alpha() * log_prob).unsqueeze(-1)
        reward = self.cfg.reward_scale * batch.reward
        return reward.unsqueeze(-1) + batch.discount.unsqueeze(-1) * soft  # (2)

    def policy_loss(self, obs: Obs, noise: Tensor) -> Loss:
        """The loss (5)."""
        action, log_prob = self.gaussian.sample(obs, noise)
        q = bound(self.critic(obs, action).float(), self.cfg.pessimism).mean(-1)
        loss = (self.alpha().detach() * log_prob - q).mean()  # (5)
        metrics = {"policy/loss": loss, "policy/entropy": -log_prob.mean()}
        metrics |= {"policy/alpha": self.alpha()}
        return Loss(loss, {name: value.detach() for name, value in metrics.items()})

    def optimist_loss(self, obs: Obs, noise: Tensor) -> Loss:
        """The loss (6). The policy is only read."""
        assert self.optimist is not None
        with torch.no_grad():
            near_mean, near_log_std = self.gaussian(obs)
        mean, log_std = self.optimist(obs, near_mean, near_log_std)
        action, _ = squashed_sample(mean, log_std + math.log(self.cfg.std_factor), noise)
        omega, weight = self.optimism().detach(), self.kl_weight().detach()
        q = bound(self.critic(obs, action).float(), -omega).mean(-1)
        kl = gaussian_kl(mean, log_std, near_mean, near_log_std).mean()
        loss = -q.mean() + weight * kl  # (6)
        metrics = {"optimist/kl": kl, "optimist/optimism": omega, "optimist/kl_weight": weight}
        return Loss(loss, {name: value.detach() for name, value in metrics.items()})

    def alpha_loss(self, entropy: Tensor) -> Tensor:
        target = self.cfg.target_entropy_per_action * self.action_size
        return self.alpha() * (entropy - target)  # (7)

    def adjuster_loss(self, kl: Tensor) -> Tensor:
        """Above its target, the divergence lowers omega and raises lambda."""
        excess = kl / self.action_size - self.cfg.kl_target
        return (self.optimism() - self.kl_weight()) * excess  # (8)

    def diagnose(self, batch: Batch, held_out: Batch | None) -> dict[str, Tensor]:
        return diagnose.actor_critic(self.critic, self.gaussian, batch, held_out, self._examine)

    def _examine(self, batch: Batch) -> Tensor:
        """The loss (3), as an update would find it, with noise that no update draws."""
        stream = RandomStream(self.updates, self.tau_i.device)
        noise = stream.normal(len(batch.reward), self.action_size)
        return BRO.critic_loss(self, batch, noise).loss  # not the compiled one

    @torch.no_grad()
    def q(self, obs: Obs, action: Tensor) -> Tensor:
        theta = self.critic(obs, action).float()  # [2, B, K]
        value: Tensor = bound(theta, self.cfg.pessimism).mean(-1)
        return value / self.cfg.reward_scale
