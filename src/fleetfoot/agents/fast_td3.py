"""FastTD3 (Seo, Sferrazza, Geng, Nauman, Yin, Abbeel 2025, arXiv 2505.22642).

TD3 on massively many simulations: large batches, twin categorical critics, mixed exploration noise. With s the
observation, a the action, R and d the folded reward and what is left of the discount, z the atoms of the value support:

    (1)  a' = clip(policy(s') + clip(policy_noise * xi, +-noise_clip), -1, 1),   xi ~ N(0, 1)
    (2)  p_i = softmax(critic_target_i(s', a')),   shifted atoms  y = clip(R + d z, v_min, v_max)
    (3)  target distribution: project(p_j, y) with j = argmin_i E[p_i . y]   (clipped double Q: the whole distribution
         of the head with the smaller mean; without it each head keeps its own)
    (4)  critic loss = sum_i mean_batch CE(target, critic_i(s, a))
    (5)  policy loss = -mean_batch min_i E[Z_i(s, policy(s))]   (without clipped double Q: the mean over i),
         every `policy_every` updates
    (6)  critic_target <- (1 - tau) critic_target + tau critic, after every update
    (7)  with `smoothness`, (5) also has  smoothness * mean_batch,A (policy(s) - policy(s'))^2

The online policy proposes the next action: there is no target policy.

Deviations from the published code:

    [1] Observation statistics change once per new transition, never by replayed batches, so that observation and next
        observation of a batch are normalised alike. They are merged by Chan's rule (the published variance is merged
        with the already updated mean, which is wrong).
    [2] What is executed is what is stored: actions are clipped before both.
    [3] n-step windows stop at truncations and at the write head; a window cut after m steps is discounted by gamma^m.
    [4] A batch has exactly `batch_size` rows, drawn from all environments, whatever their number.
    [5] The policy is updated every `policy_every` updates counted over the whole run, also when it is 1 or when there
        is one update per vec step.
    [6] Only the distribution that (3) keeps is projected: the projection keeps means, so the choice is the same.
    [7] The task is an id beside the observation, not a one-hot inside it, so no normaliser touches it. Returns for
        reward normalisation are kept per environment and their statistics per task; the reward of an episode's last
        step counts, and a time limit does not end them, just as it does not end values.
    [8] The cosine of the learning rates advances with every update of its network, not with every vec step.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from fleetfoot import diagnose
from fleetfoot.agents.checks import check_categorical, check_smoothness, flat_actions
from fleetfoot.agents.contract import Traits
from fleetfoot.agents.state import Stateful
from fleetfoot.config import part
from fleetfoot.data import Batch, EnvSpec, Loss, Obs, Transition, UpdateResult
from fleetfoot.nn.encode import ObsNorms, QNetwork, TanhPolicy
from fleetfoot.nn.freeze import frozen
from fleetfoot.nn.mlp import MLPConfig
from fleetfoot.nn.network import NetworkConfig
from fleetfoot.nn.reward_scale import Bound, value_support
from fleetfoot.ops import categorical
from fleetfoot.ops.polyak import polyak_, target_copy
from fleetfoot.optim import AdamWConfig
from fleetfoot.rng import RandomStream, seeded_init


@part
class FastTD3Config:
    """FastTD3: TD3 with distributional critics, for thousands of environments."""

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
    policy_every: int = 2
    """Critic updates per policy update."""
    policy_noise: float = 0.001
    """Standard deviation of the noise on target actions."""
    noise_clip: float = 0.5
    """Bound of that noise."""
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
    policy_optim: AdamWConfig = AdamWConfig()
    """Optimiser of the policy."""
    critic_optim: AdamWConfig = AdamWConfig()
    """Optimiser of the critics."""

    @property
    def traits(self) -> Traits:
        return Traits(follows_episodes=self.normalize_reward or self.v_min == "auto")

    def build(
        self, spec: EnvSpec, *, gamma: float, total_updates: int, seed: int, device: torch.device
    ) -> FastTD3:
        check_categorical(self)
        return FastTD3(self, spec, gamma, total_updates, seed, device)


class FastTD3(Stateful):
    """The agent; the equations are at the top of this file."""

    compiled_methods: ClassVar[tuple[str, ...]] = ("critic_loss", "policy_loss")
    policy_state: ClassVar = ("step_policy",)
    state_attrs = (
        *("policy", "critic", "critic_target", "reward_scale"),
        *("step_policy", "step_critic", "critic_noise"),
    )

    def __init__(
        self,
        cfg: FastTD3Config,
        spec: EnvSpec,
        gamma: float,
        total_updates: int,
        seed: int,
        device: torch.device,
    ):
        self.cfg, self.action_size = cfg, flat_actions("FastTD3", spec)
        self.updates, self.policy_every, self.periods = 0, cfg.policy_every, (cfg.policy_every,)
        self.critic_noise = RandomStream(seed, device)
        sizes = (self.action_size, cfg.num_atoms, cfg.num_critics)
        with seeded_init(seed):
            self.norms = ObsNorms(spec, cfg.normalize_obs)
            encoder = self.norms.encoder("actor", cfg.task_embedding)
            self.policy = TanhPolicy(encoder, cfg.policy_net, self.action_size).to(device)
            encoder = self.norms.encoder("critic", cfg.task_embedding)
            self.critic = QNetwork(encoder, cfg.critic_net, *sizes).to(device)
        self.behaviour = self.policy
        self.critic_target = target_copy(self.critic, self.norms.critic)
        self.z, self.reward_scale = value_support(
            *(cfg.v_min, cfg.v_max, cfg.num_atoms, spec),
            gamma=gamma,
            normalize_reward=cfg.normalize_reward,
            device=device,
        )
        self.step_critic = cfg.critic_optim.build(self.critic, total_updates)
        self.step_policy = cfg.policy_optim.build(self.policy, total_updates // cfg.policy_every)

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
        xi = self.critic_noise.normal(batch.reward.shape[0], self.action_size)
        loss = self.critic_loss(batch, xi)
        grad_norm = self.step_critic(loss.loss)
        self.updates += 1
        polyak_(self.critic_target, self.critic, self.cfg.tau)  # (6)
        return UpdateResult(loss.metrics | {"critic/grad_norm": grad_norm}, loss.td_error)

    def update_policy(self, obs: Obs, next_obs: Obs | None = None) -> UpdateResult:
        check_smoothness(self.cfg.smoothness, next_obs)
        with frozen(self.critic):
            loss = self.policy_loss(obs, next_obs)
            grad_norm = self.step_policy(loss.loss)
        return UpdateResult(loss.metrics | {"policy/grad_norm": grad_norm})

    def critic_loss(self, batch: Batch, xi: Tensor) -> Loss:
        """The loss (4)."""
        target, clipped = self.target_distribution(batch, xi)  # [B, K] or [E, B, K]
        logits = self.critic(batch.obs, batch.action)  # [E, B, K]
        cross_entropy, q = categorical.cross_entropy(logits, target, self.z)  # [E, B]
        loss = (batch.weight * cross_entropy).mean(-1).sum()  # (4)
        wanted = categorical.mean(target, self.z)
        td_error = (q.mean(0) - (wanted.mean(0) if wanted.dim() == 2 else wanted)).abs()
        metrics = {"critic/loss": loss.detach(), "critic/q": q.mean(), "critic/clipped": clipped}
        return Loss(loss, metrics, {"td_error": td_error})

    @torch.no_grad()
    def target_distribution(self, batch: Batch, xi: Tensor) -> tuple[Tensor, Tensor]:
        """And the share of it that lay outside of the value range."""
        clip = self.cfg.noise_clip
        noise = (self.cfg.policy_noise * xi).clamp(-clip, clip)
        action = (self.policy(batch.next_obs).float() + noise).clamp(-1.0, 1.0)  # (1)
        logits = self.critic_target(batch.next_obs, action)  # [E, B, K]
        reward = batch.reward
        if self.reward_scale is not None:
            reward = self.reward_scale(reward, batch.obs.task)
        lowest, move = (
            self.cfg.clipped_double_q,
            {"base": reward, "slope": batch.discount, "z": self.z},
        )
        target = categorical.project_shifted(logits, **move, lowest=lowest)  # (2), (3)
        return target, categorical.clipped_mass(logits, **move)

    def policy_loss(self, obs: Obs, next_obs: Obs | None = None) -> Loss:
        """The loss (5), and (7)."""
        action = self.policy(obs).float()
        probs = self.critic(obs, action).float().softmax(-1)
        q = categorical.mean(probs, self.z)  # [E, B]
        q = q.amin(0) if self.cfg.clipped_double_q else q.mean(0)
        loss = -q.mean()  # (5)
        if next_obs is not None:
            change = (self.policy(next_obs).float() - action).square().mean()
            loss = loss + self.cfg.smoothness * change  # (7)
        saturation = (
            (action.detach().abs() > 0.99).float().mean()
        )  # share of actions at their bounds
        return Loss(loss, {"policy/loss": loss.detach(), "policy/saturation": saturation})

    def diagnose(self, batch: Batch, held_out: Batch | None) -> dict[str, Tensor]:
        return diagnose.actor_critic(self.critic, self.policy, batch, held_out, self._examine)

    def _examine(self, batch: Batch) -> Tensor:
        """The loss (4), as an update would find it, with noise that no update draws."""
        xi = RandomStream(self.updates, self.z.device).normal(len(batch.reward), self.action_size)
        return FastTD3.critic_loss(self, batch, xi).loss  # not the compiled one

    @torch.no_grad()
    def q(self, obs: Obs, action: Tensor) -> Tensor:
        q = categorical.mean(self.critic(obs, action).float().softmax(-1), self.z)  # [E, B]
        q = q.amin(0) if self.cfg.clipped_double_q else q.mean(0)
        return q if self.reward_scale is None else self.reward_scale.undo(q, obs.task)
