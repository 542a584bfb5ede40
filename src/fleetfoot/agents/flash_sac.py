"""FlashSAC: soft actor-critic with bounded weights, features and targets, and one setting for every task.

Kim et al. 2026, arXiv 2604.04539. Few, large, safe gradient steps on much data: weights are projected back to unit
length after each step, features are batch-normalised (`nn/flash.py`), and rewards are divided by a running bound of the
return, so that nobody chooses a value range. With R, d the folded reward and discount, S the divisor of rewards, z the
atoms on [-v_max, v_max], alpha the temperature, k the updates so far:

    every `policy_every` updates, the first included:
    (1)  a, log pi ~ policy(s), in training mode on the joint rows (s, s')
    (2)  policy loss = mean_batch [alpha log pi(a|s) - min_i E[Z_i(s, a)]], the critic in evaluation mode
    (3)  temperature loss = alpha (H - H*),  H = -mean_batch log pi(a|s),  H* = A/2 ln(2 pi e target_std^2)
    every update:
    (4)  a', log pi' ~ policy(s'), the policy as (2) left it, in evaluation mode
    (5)  p_i = softmax(critic_target_i), in training mode on the joint rows ((s, a), (s', a')), of which s' counts
    (6)  target = project(p_j, y),  y = clip(R / S + d (z - alpha log pi'), -v_max, v_max),  j = argmin_i E[p_i . y]
    (7)  critic loss = mean_i mean_batch CE(target, critic_i), in training mode on the same rows, of which s counts
    (8)  critic_target <- (1 - tau) critic_target + tau critic, parameters alone

Training mode: BatchNorm by the rows of the call, which enter its running statistics. Evaluation mode: by those
statistics. The joint rows share one set of statistics, and gradients flow through it. After each optimiser step weights
return to where `nn/flash.py` wants them; the target's are left as averaging makes them (`project_target`).

The policy is a tanh-squashed Gaussian; log std = lo + (hi - lo) (1 + tanh(raw)) / 2. While collecting, its noise is
held for random lengths of time (`explore.HeldNoiseConfig`).

Deviations from the authors' code (87edc90):

    [1] Rewards: the last reward of an episode closes its return instead of opening the next one, and the divisor is 1,
        not about 1, until there is data (`nn/reward_scale.py`).
    [2] A window cut short after m steps is discounted by gamma^m, not gamma^n.
    [3] bf16 without a gradient scaler, where they use fp16 with one.
    [4] Running statistics of the target critic are not kept, and actions for s' in (1) not drawn: nothing reads them.
    [5] Several GPUs: each normalises by its own rows; the running statistics are the mean over all of them.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from fleetfoot import diagnose
from fleetfoot.agents.agent import (
    Pattern,
    Stateful,
    check_above_zero,
    check_at_least,
    check_tau,
    every,
    flat_actions,
)
from fleetfoot.data import Batch, EnvSpec, Learned, Obs, Transition
from fleetfoot.generators import Noise, weights_from
from fleetfoot.nn.batch_norm import statistics, store_
from fleetfoot.nn.encode import Encoder, ObsNorms, QNetwork
from fleetfoot.nn.flash import FlashNetConfig
from fleetfoot.nn.freeze import frozen
from fleetfoot.nn.gaussian import Gaussian, Greedy, Sampled
from fleetfoot.nn.reward_scale import RewardScale
from fleetfoot.nn.scalar import Temperature
from fleetfoot.ops import categorical
from fleetfoot.ops.polyak import average_, polyak_, target_of
from fleetfoot.ops.squash import squashed_sample
from fleetfoot.optim import AdamConfig
from fleetfoot.part import part


@part
class FlashSACConfig:
    v_max: float = 5.0
    """Values lie between -v_max and v_max; rewards are scaled so that returns fit."""
    atoms: int = 101
    critics: int = 2
    tau: float = 0.01
    policy_every: int = 2
    alpha: float = 0.01
    """Temperature at the start."""
    target_std: float = 0.15
    """The target entropy is that of a Gaussian with this standard deviation in each action component."""
    log_std_min: float = -10.0
    log_std_max: float = 2.0
    project_target: bool = False
    """Bring the target critic's weights back to unit length too."""
    task_embedding: int = 32
    policy_net: FlashNetConfig = FlashNetConfig(width=128)
    critic_net: FlashNetConfig = FlashNetConfig(width=256)
    policy_optim: AdamConfig = AdamConfig(lr=3e-4, lr_end=1.5e-4)
    """Of the length of the whole run in updates, as published: with `policy_every=2` it ends at 2.25e-4."""
    critic_optim: AdamConfig = AdamConfig(lr=3e-4, lr_end=1.5e-4)
    alpha_optim: AdamConfig = AdamConfig(lr=3e-4, lr_end=1.5e-4)

    @property
    def follows_episodes(self) -> bool:
        return True

    def build(
        self, spec: EnvSpec, *, gamma: float, total_updates: int, seed: int, device: torch.device
    ) -> FlashSAC:
        check_above_zero(self, "v_max", "alpha", "target_std")
        check_at_least(self, atoms=2, critics=1, policy_every=1)
        check_tau(self.tau)
        return FlashSAC(self, spec, gamma, total_updates, seed, device)


class FlashSAC(Stateful):
    losses: ClassVar[tuple[str, ...]] = ("policy_loss", "alpha_loss", "critic_loss")
    kept = (
        *("policy", "critic", "critic_target", "alpha", "reward_scale"),
        *("step_policy", "step_critic", "step_alpha"),
        *("policy_noise", "critic_noise"),
    )

    def __init__(
        self,
        cfg: FlashSACConfig,
        spec: EnvSpec,
        gamma: float,
        total_updates: int,
        seed: int,
        device: torch.device,
    ):
        self.cfg = cfg
        self.actions = flat_actions("FlashSAC", spec)
        self.target_entropy = self.actions * (
            0.5 * math.log(2.0 * math.pi * math.e) + math.log(cfg.target_std)
        )
        self.policy_noise, self.critic_noise = Noise(seed, device), Noise(seed + 1, device)
        # The networks normalise by themselves.
        plain = ObsNorms(spec, enabled=False)
        with weights_from(seed):
            see = Encoder(spec, "actor", plain.actor, cfg.task_embedding)
            self.gaussian = Gaussian(
                see,
                cfg.policy_net,
                self.actions,
                log_std_min=cfg.log_std_min,
                log_std_max=cfg.log_std_max,
            ).to(device)
            see = Encoder(spec, "critic", plain.critic, cfg.task_embedding)
            self.critic = QNetwork(see, cfg.critic_net, self.actions, cfg.atoms, cfg.critics)
            self.critic.to(device)
        self.policy, self.behaviour = Greedy(self.gaussian), Sampled(self.gaussian)
        self.critic_target = target_of(self.critic, plain.critic)
        self.alpha = Temperature(cfg.alpha).to(device)
        self.z = categorical.support(-cfg.v_max, cfg.v_max, cfg.atoms, device)
        tasks = max(1, len(spec.tasks))
        self.reward_scale = RewardScale(spec.num_envs, tasks, gamma, cfg.v_max).to(device)
        self.step_policy = cfg.policy_optim.build(
            self.gaussian.parameters(), total_updates, self.gaussian.constrain_
        )
        self.step_alpha = cfg.alpha_optim.build(self.alpha.parameters(), total_updates)
        self.step_critic = cfg.critic_optim.build(
            self.critic.parameters(), total_updates, self.critic.constrain_
        )
        self.updates = 0

    def observe(self, fresh: Transition) -> None:
        self.reward_scale.update(fresh.reward, fresh.terminated | fresh.truncated, fresh.obs.task)

    def update(self, batch: Batch) -> Learned:
        metrics = self.update_policy(batch) if self.updates % self.cfg.policy_every == 0 else {}
        noise = self.critic_noise.normal(len(batch.reward), self.actions)
        loss, q, td_error, fresh = self.critic_loss(batch, noise)
        metrics |= {"critic/loss": loss.detach(), "critic/q": q}
        metrics["critic/grad_norm"] = self.step_critic(loss)
        store_(statistics(self.critic), self.step_critic.reduce(fresh))
        follow_ = polyak_ if self.cfg.project_target else average_
        follow_(self.critic_target, self.critic, self.cfg.tau)  # (8)
        self.updates += 1
        return Learned(metrics, td_error)

    def update_policy(self, batch: Batch) -> dict[str, Tensor]:
        noise = self.policy_noise.normal(len(batch.reward), self.actions)
        with frozen(self.critic):
            loss, entropy, fresh = self.policy_loss(batch.obs, batch.next_obs, noise)
            grad_norm = self.step_policy(loss)
        store_(statistics(self.gaussian), self.step_policy.reduce(fresh))
        self.step_alpha(self.alpha_loss(entropy))
        metrics = {"policy/loss": loss.detach(), "policy/grad_norm": grad_norm}
        return metrics | {"policy/entropy": entropy, "policy/alpha": self.alpha().detach()}

    def pattern(self, count: int) -> Pattern:
        return every(self.cfg.policy_every, self.updates - 1, count)

    def policy_loss(
        self, obs: Obs, next_obs: Obs, noise: Tensor
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        """The loss (2), the mean entropy, and the policy's new running statistics."""
        fresh: list[Tensor] = []
        rows = len(noise)
        mean, log_std = self.gaussian(joint(obs, next_obs), fresh)
        action, log_prob = squashed_sample(mean[:rows], log_std[:rows], noise)  # (1)
        loss = (self.alpha().detach() * log_prob - self._smallest_q(obs, action)).mean()  # (2)
        return loss, -log_prob.detach().mean(), fresh

    def _smallest_q(self, obs: Obs, action: Tensor) -> Tensor:
        probs = self.critic(obs, action).float().softmax(-1)  # [E, B, K]
        return categorical.mean(probs, self.z).amin(0)

    def alpha_loss(self, entropy: Tensor) -> Tensor:
        return self.alpha() * (entropy - self.target_entropy)  # (3)

    def critic_loss(
        self, batch: Batch, noise: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
        """The loss (7), the mean value of the batch, each row's absolute error in value, and the critic's new running
        statistics."""
        with torch.no_grad():
            next_action, log_prob = self.gaussian.sample(batch.next_obs, noise)  # (4)
        obs = joint(batch.obs, batch.next_obs)
        action = torch.cat([batch.action, next_action])
        target = self.target_distribution(batch, obs, action, log_prob)  # [B, K]
        fresh: list[Tensor] = []
        logits = self.critic(obs, action, fresh)[:, : len(noise)]  # [E, B, K]
        cross_entropy, q = categorical.cross_entropy(logits, target, self.z)  # [E, B]
        loss = (batch.weight * cross_entropy).mean()  # (7)
        td_error = (q.mean(0) - categorical.mean(target, self.z)).abs()
        return loss, q.mean(), td_error, fresh

    @torch.no_grad()
    def target_distribution(
        self, batch: Batch, obs: Obs, action: Tensor, log_prob: Tensor
    ) -> Tensor:
        """`obs` and `action` are the joint rows, `log_prob` [B] that of the next actions."""
        logits = self.critic_target(obs, action, [])[:, len(log_prob) :]  # (5) [E, B, K]
        reward = self.reward_scale(batch.reward, batch.obs.task)
        base = reward - batch.discount * self.alpha() * log_prob
        return categorical.project_shifted(  # (6)
            logits, base=base, slope=batch.discount, z=self.z, lowest=True
        )

    def diagnose(self, batch: Batch, held_out: Batch | None) -> dict[str, Tensor]:
        critic, policy = self.critic, self.gaussian
        return diagnose.actor_critic(critic, policy, batch, held_out, self._examine)

    def _examine(self, batch: Batch) -> Tensor:
        """The loss (7), as an update would find it, with noise that no update draws."""
        noise = Noise(self.updates, self.z.device).normal(len(batch.reward), self.actions)
        return FlashSAC.critic_loss(self, batch, noise)[0]  # not the compiled one

    @torch.no_grad()
    def q(self, obs: Obs, action: Tensor) -> Tensor:
        return self.reward_scale.undo(self._smallest_q(obs, action), obs.task)


def joint(obs: Obs, next_obs: Obs) -> Obs:
    """The rows of both, one below the other."""
    actor = torch.cat([obs.actor, next_obs.actor])
    critic = actor if obs.critic is obs.actor else torch.cat([obs.critic, next_obs.critic])
    if obs.task is None or next_obs.task is None:
        return Obs(actor, critic)
    return Obs(actor, critic, torch.cat([obs.task, next_obs.task]))
