"""DDPG (Lillicrap et al. 2015, arXiv 1509.02971), as Ape-X DPG and PQL use it.

Ape-X DPG (Horgan et al. 2018, arXiv 1803.00933): one critic, target policy, hard copies, clipped action gradients. PQL
and PQL-D (Li et al. 2023, arXiv 2307.12983): twin critics, no target policy, target policy smoothing, Polyak averages,
categorical critics (D). With R and d the folded reward and what is left of the discount, w the importance weight of a
row, i one of E critic heads, z the atoms of the value support:

    (1)  a' = clip(policy'(s') + clip(policy_noise * xi, +-noise_clip), -1, 1),  xi ~ N(0, 1),
         policy' the target policy, or the policy itself without one
    (2)  y = R + d min_i critic_target_i(s', a')
    (3)  critic loss = sum_i mean_batch w (y - critic_i(s, a))^2 / 2
    (4)  policy loss = -mean_batch min_i q_i(s, policy(s)), every `policy_every` updates; with `max_action_gradient` c,
         each component of dq/da is clipped to [-c, c] on its way into the policy
    (5)  targets <- (1 - tau) targets + tau networks, every `target_every` critic updates   (tau = 1: hard copies)

With `num_atoms`, the critics give the logits of distributions, q_i is the mean of head i, and (2), (3) become

    (6)  p_i = softmax(critic_target_i(s', a')),  shifted atoms  y = clip(R + d z, v_min, v_max)
    (7)  target distribution: project(p_j, y), j = argmin_i E[p_i . y]  (twin = "lowest_mean": the whole distribution of
         the head with the smaller mean), critic loss = sum_i mean_batch w CE(target, critic_i(s, a))
    (8)  twin = "published": target = min_i project(p_i, y), element by element, so that mass is lost, and the loss is
         the mean over atoms of the binary cross-entropy, as PQL-D's code has it

Deviations from the published systems:

    [1] (7) in place of (8) is the default: a minimum of probabilities, element by element, is no distribution.
    [2] The target policy follows together with the target critic, after the critic's update and before the policy's, so
        that everything a target needs changes in one place.
    [3] Observations are clamped (`obs_clamp`) when acting as well as when learning; PQL clamps when learning only. They
        are normalised by (x - mean) / (std + 0.01), statistics changing once per new transition.
    [4] (3) has the factor 1/2 of Ape-X. PQL's loss has none, which counts only where gradients are clipped by norm: its
        recipes clip the critic's at 0.25, half of what is published.
    [5] Windows of n steps stop at truncations; a window cut after m steps is discounted by gamma^m.
    [6] The error reported for priorities is the mean over heads of |y - q_i|, in units of value also for distributions.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from fleetfoot.agents.checks import check_support, check_tau, flat_actions
from fleetfoot.agents.contract import Traits
from fleetfoot.agents.state import Stateful
from fleetfoot.config import at_least, part
from fleetfoot.data import Batch, EnvSpec, Loss, Obs, Transition, UpdateResult
from fleetfoot.errors import UserError
from fleetfoot.nn.encode import ObsNorms, QNetwork, TanhPolicy
from fleetfoot.nn.freeze import frozen
from fleetfoot.nn.mlp import MLPConfig
from fleetfoot.nn.network import NetworkConfig
from fleetfoot.nn.reward_scale import Bound, RewardScale, value_support
from fleetfoot.ops import categorical
from fleetfoot.ops.clip_gradient import clip_gradient
from fleetfoot.ops.polyak import polyak_, target_copy
from fleetfoot.optim import AdamConfig, OptimConfig, Stepper
from fleetfoot.rng import RandomStream, seeded_init


@part
class DDPGConfig:
    """Defaults as published with Ape-X DPG."""

    num_critics: int = 1
    """Critic heads (E), batched as one network; with several, the smallest counts."""
    num_atoms: int | None = None
    """Atoms of the value support (K) of categorical critics; None: values are plain numbers."""
    v_min: Bound = "auto"
    """Smallest value categorical critics can express; auto: rewards are scaled so that returns fit."""
    v_max: Bound = "auto"
    """Largest value categorical critics can express; auto like `v_min`."""
    twin: Literal["lowest_mean", "published"] = "lowest_mean"
    """Which distribution several categorical critics learn from: that of the head with the smaller mean, or
    PQL-D's atom-by-atom minimum with binary cross-entropy."""
    target_policy: bool = True
    """A slowly following target policy proposes the next action; False: the policy itself."""
    target_every: int = 100
    """Critic updates between two updates of the target networks."""
    tau: float = 1.0
    """Step of the targets towards the networks at each such update; 1: a hard copy."""
    policy_every: int = 1
    """Critic updates per policy update."""
    policy_noise: float = 0.0
    """Standard deviation of the noise on target actions (target policy smoothing)."""
    noise_clip: float = 0.5
    """Bound of that noise."""
    max_action_gradient: float | None = 1.0
    """Clip each component of dq/da to this size; None: no clipping."""
    reward_scale: float = 1.0
    """Rewards are multiplied by this before the critics learn them."""
    normalize_obs: bool = False
    """Normalise observations by their running mean and standard deviation."""
    obs_clamp: float | None = None
    """Clamp (normalised) observations to plus or minus this."""
    task_embedding: int = 32
    """Size of the learned embedding of each task, in multi-task sets."""
    policy_net: NetworkConfig = MLPConfig(hidden=(300, 200), activation=("tanh", "elu"))
    """Network of the policy."""
    critic_net: NetworkConfig = MLPConfig(hidden=(400, 300), activation=("tanh", "elu"))
    """Network of each critic."""
    policy_optim: OptimConfig = AdamConfig(lr=1e-4)
    """Optimiser of the policy."""
    critic_optim: OptimConfig = AdamConfig(lr=1e-4)
    """Optimiser of the critics."""

    @property
    def traits(self) -> Traits:
        scaled = self.num_atoms is not None and self.v_min == "auto"
        return Traits(follows_episodes=scaled, gives_initial_priorities=not scaled)

    def build(
        self, spec: EnvSpec, *, gamma: float, total_updates: int, seed: int, device: torch.device
    ) -> DDPG:
        at_least(self, "agent", num_critics=1, target_every=1, policy_every=1)
        for name in ("max_action_gradient", "obs_clamp"):
            if getattr(self, name) is not None and not getattr(self, name) > 0:
                raise UserError(f"agent.{name} must be above 0, not {getattr(self, name)}.")
        check_tau(self.tau)
        check_support(self.num_atoms, self.v_min, self.v_max)
        return DDPG(self, spec, gamma, total_updates, seed, device)


class InitialPriority(nn.Module):
    """The first priorities of Ape-X: the critic's values of the action taken and of the policy's own action."""

    z: Tensor | None

    def __init__(self, critic: QNetwork, z: Tensor | None, reward_scale: float):
        super().__init__()
        self.critic, self.reward_scale = critic, reward_scale
        self.register_buffer("z", None if z is None else z.clone(), persistent=False)

    def forward(self, obs: Obs, action: Tensor, behaviour_output: Tensor) -> tuple[Tensor, Tensor]:
        return self.q(obs, action), self.q(obs, behaviour_output).amin(0)

    def q(self, obs: Obs, action: Tensor) -> Tensor:
        """[E, N]"""
        return categorical.value(self.critic(obs, action).float(), self.z)


class DDPG(Stateful):
    """The agent; the equations are at the top of this file."""

    compiled_methods: ClassVar[tuple[str, ...]] = ("critic_loss", "policy_loss")
    policy_state: ClassVar = ("step_policy",)
    state_attrs = (
        *("policy", "policy_target", "critic", "critic_target", "return_scale"),
        *("step_policy", "step_critic", "critic_noise"),
    )

    def __init__(
        self,
        cfg: DDPGConfig,
        spec: EnvSpec,
        gamma: float,
        total_updates: int,
        seed: int,
        device: torch.device,
    ):
        self.cfg, self.action_size = cfg, flat_actions("DDPG", spec)
        self.updates, self.policy_every = 0, cfg.policy_every
        self.periods = (cfg.policy_every, cfg.target_every)
        self.critic_noise = RandomStream(seed, device)
        sizes = (self.action_size, cfg.num_atoms or 1, cfg.num_critics)
        with seeded_init(seed):
            self.norms = ObsNorms(spec, cfg.normalize_obs)
            encoder = self.norms.encoder("actor", cfg.task_embedding, cfg.obs_clamp)
            self.policy = TanhPolicy(encoder, cfg.policy_net, self.action_size).to(device)
            encoder = self.norms.encoder("critic", cfg.task_embedding, cfg.obs_clamp)
            self.critic = QNetwork(encoder, cfg.critic_net, *sizes).to(device)
        self.behaviour = self.policy
        self.critic_target = target_copy(self.critic, self.critic.encoder.norm)
        self.policy_target = self.policy
        if cfg.target_policy:
            self.policy_target = target_copy(self.policy, self.policy.encoder.norm)
        self.z: Tensor | None = None
        self.return_scale: RewardScale | None = None
        if cfg.num_atoms is not None:
            self.z, self.return_scale = value_support(
                *(cfg.v_min, cfg.v_max, cfg.num_atoms, spec),
                gamma=gamma,
                normalize_reward=False,
                device=device,
            )
        self.initial_priority = InitialPriority(self.critic, self.z, cfg.reward_scale)
        self.step_critic: Stepper = cfg.critic_optim.build(self.critic, total_updates)
        policy_updates = total_updates // cfg.policy_every
        self.step_policy: Stepper = cfg.policy_optim.build(self.policy, policy_updates)

    def observe(self, fresh: Transition) -> None:
        self.norms.update(fresh.obs)
        if self.return_scale is not None:
            self.return_scale.update(fresh.reward, fresh.terminated, fresh.obs.task)

    def update(self, batch: Batch) -> UpdateResult:
        result = self.update_critic(batch)
        if self.updates % self.policy_every == 0:
            return result.with_metrics(self.update_policy(batch.obs).metrics)
        return result

    def update_critic(self, batch: Batch) -> UpdateResult:
        xi = self.critic_noise.normal(batch.reward.shape[0], self.action_size)
        loss = self.critic_loss(batch, xi)
        grad_norm = self.step_critic(loss.loss)
        self.updates += 1
        if self.updates % self.cfg.target_every == 0:
            self.update_target()
        return UpdateResult(loss.metrics | {"critic/grad_norm": grad_norm}, loss.td_error)

    def update_target(self) -> None:
        """Bring the targets nearer to their networks, or onto them."""
        polyak_(self.critic_target, self.critic, self.cfg.tau)  # (5)
        if self.cfg.target_policy:
            polyak_(self.policy_target, self.policy, self.cfg.tau)

    def update_policy(self, obs: Obs) -> UpdateResult:
        with frozen(self.critic):
            loss = self.policy_loss(obs)
            grad_norm = self.step_policy(loss.loss)
        return UpdateResult(loss.metrics | {"policy/grad_norm": grad_norm})

    def critic_loss(self, batch: Batch, xi: Tensor) -> Loss:
        """The loss (3), (7) or (8)."""
        out = self.critic(batch.obs, batch.action)  # [E, B, K]
        metrics = {}
        if self.z is None:
            q, wanted = out.float().squeeze(-1), self.target(batch, xi)  # [E, B], [B]
            row_loss = 0.5 * (wanted - q).square()
        else:
            target, metrics["critic/clipped"] = self.target_distribution(
                batch, xi, self.z
            )  # [B, K]
            row_loss, q = categorical.cross_entropy(out, target, self.z)  # (7) [E, B]
            if self.cfg.twin == "published":
                row_loss = self.binary_cross_entropy(out, target)  # (8)
            wanted = categorical.mean(target, self.z)
        loss = (batch.weight * row_loss).mean(-1).sum()  # (3), (7), (8)
        td_error = (wanted - q).detach().abs().mean(0)
        metrics |= {"critic/loss": loss.detach(), "critic/q": q.detach().mean()}
        return Loss(loss, metrics | {"critic/td_error": td_error.mean()}, {"td_error": td_error})

    @staticmethod
    def binary_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
        """Mean over atoms, of softmax(logits) [E, B, K] to `target` [B, K]: [E, B]."""
        log_probs = logits.float().log_softmax(-1)
        probs = log_probs.exp().clamp(max=1.0 - 1e-6)  # the logarithm below must stay finite
        return -(target * log_probs + (1.0 - target) * torch.log1p(-probs)).mean(-1)

    @torch.no_grad()
    def next_value(self, batch: Batch, xi: Tensor) -> Tensor:
        """What the target critics give for the next action, [E, B, K]."""
        clip = self.cfg.noise_clip
        noise = (self.cfg.policy_noise * xi).clamp(-clip, clip)
        action = (self.policy_target(batch.next_obs) + noise).clamp(-1.0, 1.0)  # (1)
        out: Tensor = self.critic_target(batch.next_obs, action)
        return out

    def target(self, batch: Batch, xi: Tensor) -> Tensor:
        lowest = self.next_value(batch, xi).float().squeeze(-1).amin(0)
        return self.cfg.reward_scale * batch.reward + batch.discount * lowest  # (2)

    def target_distribution(self, batch: Batch, xi: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        """And the share of it that lay outside of the value range."""
        logits, lowest = self.next_value(batch, xi), self.cfg.twin == "lowest_mean"
        reward = self.cfg.reward_scale * batch.reward
        if self.return_scale is not None:
            reward = self.return_scale(batch.reward, batch.obs.task)
        move = {"base": reward, "slope": batch.discount, "z": z}
        target = categorical.project_shifted(logits, **move, lowest=lowest)  # (6), (7)
        return target if lowest else target.amin(0), categorical.clipped_mass(logits, **move)  # (8)

    def policy_loss(self, obs: Obs) -> Loss:
        """The loss (4)."""
        action = self.policy(obs)
        climbed = action
        if self.cfg.max_action_gradient is not None:
            # The loss is a mean over rows, so each row's gradient arrives divided by their number.
            climbed = clip_gradient(action, self.cfg.max_action_gradient / action.shape[0])
        out = self.critic(obs, climbed).float()  # [E, B, K]
        loss = -categorical.value(out, self.z).amin(0).mean()  # (4)
        saturation = (
            (action.detach().abs() > 0.99).float().mean()
        )  # share of actions at their bounds
        return Loss(loss, {"policy/loss": loss.detach(), "policy/saturation": saturation})
