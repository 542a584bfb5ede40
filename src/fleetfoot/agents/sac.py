"""SAC with a slot for each family of regularisers: the bound on its critics, its networks, its plasticity.

Soft actor-critic: Haarnoja et al. 2018, arXiv 1812.05905. The study of 64 combinations: Nauman et al. 2024, arXiv
2403.00514. With R, d the folded reward and discount, alpha the temperature, E = 2 critics Q_i and B(q) the bound on
their values (`nn/pessimism.py`):

    (1)  a', log pi' ~ policy(s'),   y = R + d (B(critic_target(s', a')) - alpha log pi')
    (2)  critic loss = sum_i mean_batch (Q_i(s, a) - y)^2
    (3)  critic_target <- (1 - tau) critic_target + tau critic
    (4)  policy loss = mean_batch [alpha log pi(a|s) - B(critic(s, a))],  a ~ policy(s)
    (5)  temperature loss = alpha (H - H*),  H = -mean_batch log pi(a|s),  H* = target_entropy_per_action * A
    (6)  where the bound learns from the batch: one step down its loss, of gap = y - mean_i Q_i(s, a)

all five or six in every update, in this order. The policy is a tanh-squashed Gaussian; log std = lo + (hi - lo)
(1 + tanh(raw)) / 2.

The slots:

    critic       `bound`: the mean of the critics (beta 0), clipped double Q (beta 1), GPL (learned), TOP (bandit)
    network      `critic_net`: LayerNorm or spectral norm on hidden layers; `critic_optim`: AdamW for weight decay
    plasticity   `plasticity`: Resets or ReDo; `critic_net` with CReLU

Choices where the study could not be read, and deviations:

    [1] Network regularisers and CReLU are applied to the critics alone; `policy_net` can have them too.
    [2] Every reset returns to the same initial weights, of all networks, the temperature and a learned beta, with
        optimisers as new. Replay, statistics of observations and the bandit of TOP are kept.
    [3] ReDo restarts units of the critics; new incoming weights are drawn one unit at a time from the distribution that
        a column of an orthogonal start has.
    [4] GPL's spread is that of the two critics of the batch; the original has ten critics.

Above 300 lines: 64 algorithms.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from fleetfoot import diagnose
from fleetfoot.agents.checks import check_soft_policy, check_tau, flat_actions
from fleetfoot.agents.contract import Traits
from fleetfoot.agents.state import Stateful
from fleetfoot.config import at_least, part
from fleetfoot.data import Batch, EnvSpec, Loss, Obs, Transition, UpdateResult
from fleetfoot.diagnose.units import is_relu
from fleetfoot.errors import UserError
from fleetfoot.nn.encode import ObsNorms, QNetwork
from fleetfoot.nn.freeze import frozen
from fleetfoot.nn.gaussian import ORTHOGONAL, Gaussian, Greedy, Sampled
from fleetfoot.nn.mlp import CReLU, MLPConfig
from fleetfoot.nn.network import NetworkConfig
from fleetfoot.nn.pessimism import BanditBoundConfig, BoundConfig, FixedBoundConfig
from fleetfoot.nn.redo import ReDo
from fleetfoot.nn.reset import ResetPoint, Resets
from fleetfoot.nn.scalar import Temperature
from fleetfoot.ops.polyak import polyak_, target_copy
from fleetfoot.optim import AdamConfig, AdamWConfig
from fleetfoot.rng import RandomStream, random_streams, seeded_init


@part
class ResetsConfig:
    """Reset everything that is learned, but keep the replay."""

    every_updates: int = 2_560_000
    """Updates between two resets."""


@part
class ReDoConfig:
    """Re-initialise dormant units of the critics."""

    every_updates: int = 1_000
    """Updates between two searches for dormant units."""
    tau: float = 0.025
    """A unit is dormant if its activation is at most this share of its layer's mean."""


@part
class SACConfig:
    """SAC with a choice of bound, regularisation and plasticity."""

    bound: BoundConfig = FixedBoundConfig(beta=1.0)
    """How the values of the two critics become one. beta 0: their mean; 1: the smaller."""
    plasticity: ResetsConfig | ReDoConfig | None = None
    """How the networks are kept able to learn; None: no measure."""
    num_critics: int = 2
    """Critic heads (E), batched as one network."""
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
    policy_net: NetworkConfig = MLPConfig(hidden=(256, 256), start="orthogonal")
    """Network of the policy."""
    critic_net: NetworkConfig = MLPConfig(hidden=(256, 256), start="orthogonal")
    """Network of each critic."""
    policy_optim: AdamConfig | AdamWConfig = AdamConfig(lr=3e-4)
    """Optimiser of the policy."""
    critic_optim: AdamConfig | AdamWConfig = AdamConfig(lr=3e-4)
    """Optimiser of the critics. AdamWConfig decays all their weights, including biases and gains, as in
    optax."""
    alpha_optim: AdamConfig = AdamConfig(lr=3e-4)
    """Optimiser of the temperature."""
    bound_optim: AdamConfig = AdamConfig(lr=3e-4, beta1=0.5)
    """Optimiser of a learned beta."""

    @property
    def traits(self) -> Traits:
        redo = isinstance(self.plasticity, ReDoConfig)
        return Traits(
            follows_episodes=isinstance(self.bound, BanditBoundConfig),
            cannot_stack_reason="ReDo looks at the units of one network" if redo else None,
        )

    def build(
        self, spec: EnvSpec, *, gamma: float, total_updates: int, seed: int, device: torch.device
    ) -> SAC:
        check_tau(self.tau)
        check_soft_policy(self)
        at_least(self, "agent", num_critics=2)
        if self.plasticity is not None and self.plasticity.every_updates < 1:
            raise UserError("agent.plasticity.every_updates must be at least 1.")
        return SAC(self, spec, total_updates, seed, device)


def is_hidden(module: nn.Module) -> bool:
    """Does this module give the activations of a hidden layer?"""
    return isinstance(module, CReLU) or is_relu(module)


class SAC(Stateful):
    """The agent; the equations are at the top of this file."""

    compiled_methods: ClassVar[tuple[str, ...]] = (
        "critic_loss",
        "policy_loss",
        "alpha_loss",
        "bound_loss",
        "activity",
    )
    state_attrs = (
        *("policy", "critic", "critic_target", "alpha", "bound"),
        *("step_policy", "step_critic", "step_alpha", "step_bound"),
        *("critic_noise", "policy_noise", "bound_noise", "redo_noise", "resets"),
    )

    def __init__(
        self, cfg: SACConfig, spec: EnvSpec, total_updates: int, seed: int, device: torch.device
    ):
        self.cfg, self.action_size, self.updates = cfg, flat_actions("SAC", spec), 0
        self.target_entropy = cfg.target_entropy_per_action * self.action_size
        streams = random_streams(seed, 4, device)
        self.critic_noise, self.policy_noise, self.bound_noise, self.redo_noise = streams
        bounds = {"log_std": (cfg.log_std_min, cfg.log_std_max), "head_gains": ORTHOGONAL}
        with seeded_init(seed):
            self.norms = ObsNorms(spec, cfg.normalize_obs)
            encoder = self.norms.encoder("actor", cfg.task_embedding)
            self.gaussian = Gaussian(encoder, cfg.policy_net, self.action_size, **bounds)
            encoder = self.norms.encoder("critic", cfg.task_embedding)
            self.critic = QNetwork(encoder, cfg.critic_net, self.action_size, 1, cfg.num_critics)
        self.policy, self.behaviour = Greedy(self.gaussian.to(device)), Sampled(self.gaussian)
        self.critic_target = target_copy(self.critic.to(device), self.norms.critic)
        self.alpha = Temperature(cfg.alpha).to(device)
        self.bound = cfg.bound.build(spec.num_envs).to(device)
        if self.bound.learns_from == "held_out":
            raise UserError('SAC has no held-out rows: agent.bound.learns_from must be "batch".')
        self.step_critic = cfg.critic_optim.build(self.critic, total_updates)
        self.step_policy = cfg.policy_optim.build(self.gaussian, total_updates)
        self.step_alpha = cfg.alpha_optim.build(self.alpha, total_updates)
        self.step_bound = None
        if self.bound.learns_from == "batch":
            self.step_bound = cfg.bound_optim.build(self.bound, total_updates)
        self.resets, self.redo = None, None
        self.periods: tuple[int, ...] = ()
        if isinstance(cfg.plasticity, ResetsConfig):
            modules = [self.gaussian, self.critic, self.critic_target, self.alpha, self.bound]
            steppers = [self.step_critic, self.step_policy, self.step_alpha, self.step_bound]
            point = ResetPoint(modules, [self.bound, *(step for step in steppers if step)])
            self.resets = Resets(point, every=cfg.plasticity.every_updates)
        elif isinstance(cfg.plasticity, ReDoConfig):
            self.redo = ReDo(self.critic.net, cfg.plasticity.tau)
            self.periods = (cfg.plasticity.every_updates,)

    def observe(self, fresh: Transition) -> None:
        self.norms.update(fresh.obs)
        if self.bound.learns_from == "returns":
            ended = fresh.terminated | fresh.truncated
            self.bound.observe(fresh.reward, ended, self.draw_shared_uniform())
        if self.resets is not None:
            self.resets.restore_if_due_(self.updates)

    def update(self, batch: Batch) -> UpdateResult:
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
            self.bound.check_rows(rows)
            gap, slope = critic_loss.aux["gap"], critic_loss.aux["slope"]
            bound_loss = self.bound_loss(gap, slope, batch.weight)
            metrics |= bound_loss.metrics
            self.step_bound(bound_loss.loss)
            self.bound.follow_(bound_loss.aux["slope"])
        metrics |= {"bound/beta": self.bound.beta().clone(), "policy/alpha": self.alpha().detach()}
        self.updates += 1
        if self.redo is not None and self.updates % self.periods[0] == 0:
            metrics["redo/restarted"] = self.restart_dormant_(batch, self.redo)
        return UpdateResult(metrics, critic_loss.td_error)

    def critic_loss(self, batch: Batch, noise: Tensor) -> Loss:
        """The loss (2). aux: for each row the gap, and the slope at which its target falls with beta."""
        target, slope = self.target(batch, noise)  # [B]
        q = self.critic(batch.obs, batch.action).float().squeeze(-1)  # [E, B]
        loss = (batch.weight * (q - target).square()).mean(-1).sum()  # (2)
        gap = target - q.detach().mean(0)
        q = q.detach()
        metrics = {"critic/loss": loss.detach(), "critic/q": q.mean()}
        metrics["critic/spread"] = self.bound.spread(q).mean()
        return Loss(loss, metrics, {"td_error": gap.abs(), "gap": gap, "slope": slope})

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
        loss = (self.alpha().detach() * log_prob - self.bound(q)).mean()  # (4)
        entropy = -log_prob.detach().mean()
        return Loss(loss, {"policy/loss": loss.detach(), "policy/entropy": entropy})

    def alpha_loss(self, entropy: Tensor) -> Tensor:
        loss: Tensor = self.alpha() * (entropy - self.target_entropy)  # (5)
        return loss

    def bound_loss(self, gap: Tensor, slope: Tensor, weight: Tensor) -> Loss:
        """The loss (6). aux: the mean slope."""
        loss, mean_gap, mean_slope = self.bound.loss(gap, slope, weight)  # (6)
        metrics = {"bound/loss": loss.detach(), "bound/gap": mean_gap}
        return Loss(loss, metrics, {"slope": mean_slope})

    def activity(self, obs: Obs, action: Tensor) -> list[Tensor]:
        """How active each hidden unit of the critics is, [E, H] per layer, for `restart_dormant_`."""
        assert self.redo is not None
        inputs: Tensor = torch.cat([self.critic.encoder(obs), action], dim=-1)
        return self.redo.activity(inputs)

    @torch.no_grad()
    def restart_dormant_(self, batch: Batch, redo: ReDo) -> Tensor:
        """Returns the share of units that were dormant."""
        # Where several processes learn together, all must restart the same units in the same way. The direction of a
        # mean of normal vectors is as random as that of one of them, and ReDo uses no more than that.
        activity = self.step_critic.reduce(self.activity(batch.obs, batch.action))
        dormant = redo.dormant(activity)
        noise = [self.redo_noise.normal(*shape) for shape in redo.shapes()]
        noise = self.step_critic.reduce(noise)
        redo.restart_(dormant, noise, self.step_critic.optimizer)
        share: Tensor = torch.cat(dormant, dim=-1).float().mean((-2, -1))
        return share

    def diagnose(self, batch: Batch, held_out: Batch | None) -> dict[str, Tensor]:
        critic, policy = self.critic, self.gaussian
        return diagnose.actor_critic(critic, policy, batch, held_out, self._examine, is_hidden)

    def _examine(self, batch: Batch) -> Tensor:
        """The loss (2), as an update would find it, with noise that no update draws."""
        noise = RandomStream(self.updates, self.critic_noise.device).normal(
            len(batch.reward), self.action_size
        )
        return SAC.critic_loss(self, batch, noise).loss  # not the compiled one

    @torch.no_grad()
    def q(self, obs: Obs, action: Tensor) -> Tensor:
        value: Tensor = self.bound(self.critic(obs, action).float().squeeze(-1))
        return value

    def draw_shared_uniform(self) -> Tensor:
        """From [0, 1), the same in all processes that learn together: the angle of a mean of normal vectors."""
        (plane,) = self.step_critic.reduce([self.bound_noise.normal(2)])
        return torch.atan2(plane[..., 0], plane[..., 1]) / (2 * math.pi) % 1.0
