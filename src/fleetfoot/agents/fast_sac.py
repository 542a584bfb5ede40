"""FastSAC: soft actor-critic on massively many simulations, with the critics, batches and networks of FastTD3.

Soft actor-critic: Haarnoja et al. 2018, arXiv 1812.05905. Categorical critics and the large-batch regime as in FastTD3
(arXiv 2505.22642). With R, d the folded reward and discount, z the atoms, alpha the temperature:

    (1)  a', log pi' ~ policy(s'),   shifted atoms  y = clip(R + d (z - alpha log pi'), v_min, v_max)
    (2)  p_i = softmax(critic_target_i(s', a'))
    (3)  target distribution: project(p_j, y) with j = argmin_i E[p_i . y] (clipped double Q), or project(mean_i p_i, y)
    (4)  critic loss = sum_i mean_batch CE(target, critic_i(s, a))
    (5)  policy loss = mean_batch [alpha log pi(a|s) - Q(s, a)],  a ~ policy(s),  Q the smallest or the mean of E[Z_i],
         every `policy_every` updates
    (6)  temperature loss = -log alpha * mean_batch [log pi(a|s) + H*],  H* = target_entropy_per_action * A, with (5)
    (7)  critic_target <- (1 - tau) critic_target + tau critic, after every update
    (8)  with `smoothness`, (5) also has  smoothness * mean_batch,A (mu(s) - mu(s'))^2,  mu the greedy action

The policy is a tanh-squashed Gaussian; log std = lo + (hi - lo) (1 + tanh(raw)) / 2.

Deviation from the usual SAC: [1] without clipped double Q the target is the mean of the heads' distributions, so that
both heads learn from one target. Everything FastTD3 numbers under normalisation, windows and batches holds here too.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from fleetfoot import diagnose
from fleetfoot.agents.checks import (
    check_categorical,
    check_smoothness,
    check_soft_policy,
    flat_actions,
)
from fleetfoot.agents.contract import Traits
from fleetfoot.agents.state import Stateful
from fleetfoot.config import part
from fleetfoot.data import Batch, EnvSpec, Loss, Obs, Transition, UpdateResult
from fleetfoot.nn.encode import ObsNorms, QNetwork
from fleetfoot.nn.freeze import frozen
from fleetfoot.nn.gaussian import Gaussian, Greedy, Sampled
from fleetfoot.nn.mlp import MLPConfig
from fleetfoot.nn.network import NetworkConfig
from fleetfoot.nn.reward_scale import Bound, value_support
from fleetfoot.nn.scalar import Temperature
from fleetfoot.ops import categorical
from fleetfoot.ops.polyak import polyak_, target_copy
from fleetfoot.optim import AdamWConfig
from fleetfoot.rng import RandomStream, random_streams, seeded_init


@part
class FastSACConfig:
    """FastSAC: SAC with distributional critics, for thousands of environments."""

    v_min: Bound = "auto"
    """Smallest value the critics can express; auto: rewards are scaled so that returns fit."""
    v_max: Bound = "auto"
    """Largest value the critics can express; auto like `v_min`."""
    num_atoms: int = 101
    """Atoms of the value support (K)."""
    num_critics: int = 2
    """Critic heads (E), batched as one network."""
    clipped_double_q: bool = True
    """Learn from, and maximise, the head with the smaller mean."""
    tau: float = 0.1
    """Step of the target critic towards the critic after every update."""
    policy_every: int = 1
    """Critic updates per policy update."""
    alpha: float = 0.01
    """Initial temperature."""
    target_entropy_per_action: float = -0.5
    """Entropy that the temperature is adjusted to, per action component."""
    log_std_min: float = -5.0
    """Lower bound of the log standard deviation before tanh."""
    log_std_max: float = 1.0
    """Upper bound of the log standard deviation before tanh."""
    normalize_obs: bool = True
    """Normalise observations by their running mean and standard deviation."""
    normalize_reward: bool = False
    """Divide rewards by the spread of returns, per task in multi-task sets."""
    smoothness: float = 0.0
    """Weight of the mean squared change of the policy's action from one observation to the next (n steps
    later, with n-step returns), in units of value. 0: off."""
    task_embedding: int = 32
    """Size of the learned embedding of each task, in multi-task sets."""
    policy_net: NetworkConfig = MLPConfig(hidden=(512, 256, 128), head_std=0.01)
    """Network of the policy."""
    critic_net: NetworkConfig = MLPConfig(hidden=(1024, 512, 256))
    """Network of each critic."""
    policy_optim: AdamWConfig = AdamWConfig(weight_decay=0.001)
    """Optimiser of the policy."""
    critic_optim: AdamWConfig = AdamWConfig(weight_decay=0.001)
    """Optimiser of the critics."""
    alpha_optim: AdamWConfig = AdamWConfig(weight_decay=0.0)
    """Optimiser of the temperature."""

    @property
    def traits(self) -> Traits:
        return Traits(follows_episodes=self.normalize_reward or self.v_min == "auto")

    def build(
        self, spec: EnvSpec, *, gamma: float, total_updates: int, seed: int, device: torch.device
    ) -> FastSAC:
        check_categorical(self)
        check_soft_policy(self)
        return FastSAC(self, spec, gamma, total_updates, seed, device)


class FastSAC(Stateful):
    """The agent; the equations are at the top of this file."""

    compiled_methods: ClassVar[tuple[str, ...]] = ("critic_loss", "policy_loss")
    policy_state: ClassVar = ("step_policy", "step_alpha", "policy_noise")
    state_attrs = (
        *("policy", "critic", "critic_target", "alpha", "reward_scale"),
        *("step_policy", "step_critic", "step_alpha"),
        *("critic_noise", "policy_noise"),
    )

    def __init__(
        self,
        cfg: FastSACConfig,
        spec: EnvSpec,
        gamma: float,
        total_updates: int,
        seed: int,
        device: torch.device,
    ):
        self.cfg, self.action_size = cfg, flat_actions("FastSAC", spec)
        self.target_entropy = cfg.target_entropy_per_action * self.action_size
        self.updates, self.policy_every, self.periods = 0, cfg.policy_every, (cfg.policy_every,)
        self.critic_noise, self.policy_noise = random_streams(seed, 2, device)
        sizes = (self.action_size, cfg.num_atoms, cfg.num_critics)
        log_std = (cfg.log_std_min, cfg.log_std_max)
        with seeded_init(seed):
            self.norms = ObsNorms(spec, cfg.normalize_obs)
            encoder = self.norms.encoder("actor", cfg.task_embedding)
            self.gaussian = Gaussian(encoder, cfg.policy_net, self.action_size, log_std=log_std)
            encoder = self.norms.encoder("critic", cfg.task_embedding)
            self.critic = QNetwork(encoder, cfg.critic_net, *sizes).to(device)
        self.policy, self.behaviour = Greedy(self.gaussian.to(device)), Sampled(self.gaussian)
        self.critic_target = target_copy(self.critic, self.norms.critic)
        self.alpha = Temperature(cfg.alpha).to(device)
        self.z, self.reward_scale = value_support(
            *(cfg.v_min, cfg.v_max, cfg.num_atoms, spec),
            gamma=gamma,
            normalize_reward=cfg.normalize_reward,
            device=device,
        )
        policy_updates = total_updates // cfg.policy_every
        self.step_critic = cfg.critic_optim.build(self.critic, total_updates)
        self.step_policy = cfg.policy_optim.build(self.gaussian, policy_updates)
        self.step_alpha = cfg.alpha_optim.build(self.alpha, policy_updates)

    def observe(self, fresh: Transition) -> None:
        self.norms.update(fresh.obs)
        if self.reward_scale is not None:
            self.reward_scale.update(fresh.reward, fresh.terminated, fresh.obs.task)

    def update(self, batch: Batch) -> UpdateResult:
        result = self.update_critic(batch)
        if self.updates % self.policy_every == 0:
            following = batch.next_obs if self.cfg.smoothness else None
            return result.with_metrics(self.update_policy(batch.obs, following).metrics)
        return result

    def update_critic(self, batch: Batch) -> UpdateResult:
        noise = self.critic_noise.normal(batch.reward.shape[0], self.action_size)
        loss = self.critic_loss(batch, noise)
        grad_norm = self.step_critic(loss.loss)
        self.updates += 1
        polyak_(self.critic_target, self.critic, self.cfg.tau)  # (7)
        return UpdateResult(loss.metrics | {"critic/grad_norm": grad_norm}, loss.td_error)

    def update_policy(self, obs: Obs, next_obs: Obs | None = None) -> UpdateResult:
        check_smoothness(self.cfg.smoothness, next_obs)
        noise = self.policy_noise.normal(obs.actor.shape[0], self.action_size)
        with frozen(self.critic):
            loss = self.policy_loss(obs, noise, next_obs)
            grad_norm = self.step_policy(loss.loss)
        excess = loss.metrics["policy/entropy"] - self.target_entropy
        self.step_alpha(self.alpha.log_alpha * excess)  # (6)
        more = {"policy/grad_norm": grad_norm, "policy/alpha": self.alpha().detach()}
        return UpdateResult(loss.metrics | more)

    def critic_loss(self, batch: Batch, noise: Tensor) -> Loss:
        """The loss (4)."""
        target, clipped = self.target_distribution(batch, noise)  # [B, K]
        logits = self.critic(batch.obs, batch.action)  # [E, B, K]
        cross_entropy, q = categorical.cross_entropy(logits, target, self.z)  # [E, B]
        loss = (batch.weight * cross_entropy).mean(-1).sum()  # (4)
        td_error = (q.mean(0) - categorical.mean(target, self.z)).abs()
        metrics = {"critic/loss": loss.detach(), "critic/q": q.mean(), "critic/clipped": clipped}
        return Loss(loss, metrics, {"td_error": td_error})

    @torch.no_grad()
    def target_distribution(self, batch: Batch, noise: Tensor) -> tuple[Tensor, Tensor]:
        """And the share of it that lay outside of the value range."""
        action, log_prob = self.gaussian.sample(batch.next_obs, noise)
        logits = self.critic_target(batch.next_obs, action)  # (2) [E, B, K]
        reward = batch.reward
        if self.reward_scale is not None:
            reward = self.reward_scale(reward, batch.obs.task)
        base = reward - batch.discount * self.alpha() * log_prob  # (1)
        lowest, move = (
            self.cfg.clipped_double_q,
            {"base": base, "slope": batch.discount, "z": self.z},
        )
        target = categorical.project_shifted(logits, **move, lowest=lowest)  # (3)
        clipped = categorical.clipped_mass(logits, **move)
        return target if lowest else target.mean(0), clipped

    def policy_loss(self, obs: Obs, noise: Tensor, next_obs: Obs | None = None) -> Loss:
        """The loss (5), and (8)."""
        action, log_prob = self.gaussian.sample(obs, noise)
        probs = self.critic(obs, action).float().softmax(-1)
        q = categorical.mean(probs, self.z)  # [E, B]
        q = q.amin(0) if self.cfg.clipped_double_q else q.mean(0)
        loss = (self.alpha().detach() * log_prob - q).mean()  # (5)
        if next_obs is not None:
            change = (self.policy(next_obs).float() - self.policy(obs).float()).square().mean()
            loss = loss + self.cfg.smoothness * change  # (8)
        entropy = -log_prob.detach().mean()
        return Loss(loss, {"policy/loss": loss.detach(), "policy/entropy": entropy})

    def diagnose(self, batch: Batch, held_out: Batch | None) -> dict[str, Tensor]:
        critic, policy = self.critic, self.gaussian
        return diagnose.actor_critic(critic, policy, batch, held_out, self._examine)

    def _examine(self, batch: Batch) -> Tensor:
        """The loss (4), as an update would find it, with noise that no update draws."""
        noise = RandomStream(self.updates, self.z.device).normal(
            batch.reward.shape[0], self.action_size
        )
        return FastSAC.critic_loss(self, batch, noise).loss  # not the compiled one

    @torch.no_grad()
    def q(self, obs: Obs, action: Tensor) -> Tensor:
        q = categorical.mean(self.critic(obs, action).float().softmax(-1), self.z)  # [E, B]
        q = q.amin(0) if self.cfg.clipped_double_q else q.mean(0)
        return q if self.reward_scale is None else self.reward_scale.undo(q, obs.task)
