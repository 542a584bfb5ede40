"""FlashSAC: soft actor-critic with bounded weights, features and targets, and one setting for every task.

Kim et al. 2026, arXiv 2604.04539. Few, large, safe gradient steps on much data: weights are projected back to unit
length after each step, features are batch-normalised (`nn/flash.py`), and rewards are divided by a running bound of the
return, so that nobody chooses a value range. With R, d the folded reward and discount, S the divisor of rewards, z the
atoms on [-v_max, v_max], alpha the temperature, k the updates so far:

    every `policy_every` updates, the first included:
    (1)  a, log pi ~ policy(s); BatchNorm statistics come from s and s' together
    (2)  policy loss = mean_batch [alpha log pi(a|s) - min_i E[Z_i(s, a)]], the critic in evaluation mode
    (3)  temperature loss = alpha (H - H*),  H = -mean_batch log pi(a|s),  H* = A/2 ln(2 pi e target_std^2)
    every update:
    (4)  a', log pi' ~ policy(s'), the policy as (2) left it, in evaluation mode
    (5)  p_i = softmax(critic_target_i(s', a')); BatchNorm statistics come from (s, a) and (s', a') together
    (6)  target = project(p_j, y),  y = clip(R / S + d (z - alpha log pi'), -v_max, v_max),  j = argmin_i E[p_i . y]
    (7)  critic loss = mean_i mean_batch CE(target, critic_i(s, a)); statistics as in (5)
    (8)  critic_target <- (1 - tau) critic_target + tau critic, parameters alone
    (9)  with `smoothness`, (2) also has  smoothness * mean_batch,A (tanh mu(s) - tanh mu(s'))^2,  mu the policy's mean

Training mode: BatchNorm by the rows of the call, which enter its running statistics. Evaluation mode: by those
statistics. The joint rows share one set of statistics, and gradients flow through it. After each optimiser step weights
return to where `nn/flash.py` wants them; the target's are left as averaging makes them (`project_target`). Any other
network with BatchNorms can take its place, and `nn/xqc.py` is one: XQC has nearly the same update
(docs/algorithms/flash_sac.md says what differs).

The policy is a tanh-squashed Gaussian; log std = lo + (hi - lo) (1 + tanh(raw)) / 2. While collecting, its noise is
held for random lengths of time (`explore.HeldNoiseConfig`).

Deviations from the authors' code (87edc90):

    [1] Rewards: the last reward of an episode closes its return instead of opening the next one, the clock's ends do
        not close it, because values go on there too, and the divisor is 1, not about 1, until there is data
        (`nn/reward_scale.py`).
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
from fleetfoot.agents.checks import (
    check_above_zero,
    check_soft_policy,
    check_tau,
    flat_actions,
)
from fleetfoot.agents.contract import Traits
from fleetfoot.agents.state import Stateful
from fleetfoot.config import at_least, part
from fleetfoot.data import Batch, EnvSpec, Loss, Obs, Transition, UpdateResult
from fleetfoot.errors import UserError
from fleetfoot.nn.batch_norm import named, running, statistics, statistics_in_order, store_
from fleetfoot.nn.encode import ObsNorms, QNetwork
from fleetfoot.nn.flash import FlashNetConfig
from fleetfoot.nn.freeze import frozen
from fleetfoot.nn.gaussian import Gaussian, Greedy, Sampled
from fleetfoot.nn.network import Network, NetworkConfig
from fleetfoot.nn.reward_scale import RewardScale
from fleetfoot.nn.scalar import Temperature
from fleetfoot.ops import categorical
from fleetfoot.ops.polyak import average_, polyak_, target_copy
from fleetfoot.ops.squash import squashed_sample
from fleetfoot.optim import AdamConfig
from fleetfoot.rng import RandomStream, random_streams, seeded_init


@part
class FlashSACConfig:
    """FlashSAC: SAC with batch-normalised networks and distributional critics."""

    v_max: float = 5.0
    """Values lie between -v_max and v_max; rewards are scaled so that returns fit."""
    num_atoms: int = 101
    """Atoms of the value support (K)."""
    num_critics: int = 2
    """Critic heads (E), batched as one network."""
    tau: float = 0.01
    """Step of the target critic towards the critic after every update."""
    policy_every: int = 2
    """Critic updates per policy update."""
    alpha: float = 0.01
    """Initial temperature."""
    target_std: float = 0.15
    """The target entropy is that of a Gaussian with this standard deviation in each action component."""
    log_std_min: float = -10.0
    """Lower bound of the log standard deviation before tanh."""
    log_std_max: float = 2.0
    """Upper bound of the log standard deviation before tanh."""
    project_target: bool = False
    """Normalise the target critic's weights to unit length too."""
    smoothness: float = 0.0
    """Weight of the mean squared change of the policy's action from one observation to the next (n steps
    later, with n-step returns), in units of value. 0: off."""
    task_embedding: int = 32
    """Size of the learned embedding of each task, in multi-task sets."""
    policy_net: NetworkConfig = FlashNetConfig(width=128)
    """Network of the policy; like that of the critics, one with BatchNorms."""
    critic_net: NetworkConfig = FlashNetConfig(width=256)
    """Network of each critic."""
    policy_optim: AdamConfig = AdamConfig(lr=3e-4, lr_end=1.5e-4)
    """Optimiser of the policy. As published, its schedule counts all updates: with `policy_every=2` it ends at
    2.25e-4."""
    critic_optim: AdamConfig = AdamConfig(lr=3e-4, lr_end=1.5e-4)
    """Optimiser of the critics."""
    alpha_optim: AdamConfig = AdamConfig(lr=3e-4, lr_end=1.5e-4)
    """Optimiser of the temperature."""

    @property
    def traits(self) -> Traits:
        return Traits(follows_episodes=True, batch_statistics=True)

    def build(
        self, spec: EnvSpec, *, gamma: float, total_updates: int, seed: int, device: torch.device
    ) -> FlashSAC:
        check_soft_policy(self)
        check_above_zero(self, "v_max", "target_std")
        at_least(self, "agent", num_atoms=2, num_critics=1, policy_every=1)
        at_least(self, "agent", smoothness=0)
        check_tau(self.tau)
        return FlashSAC(self, spec, gamma, total_updates, seed, device)


class FlashSAC(Stateful):
    """The agent; the equations are at the top of this file."""

    compiled_methods: ClassVar[tuple[str, ...]] = ("policy_loss", "alpha_loss", "critic_loss")
    compiled_steps: ClassVar[tuple[str, ...]] = ("update_target",)
    state_attrs = (
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
        self.cfg, self.action_size = cfg, flat_actions("FlashSAC", spec)
        self.target_entropy = self.action_size * (
            0.5 * math.log(2.0 * math.pi * math.e) + math.log(cfg.target_std)
        )
        self.updates, self.periods = 0, ((cfg.policy_every, 1),)
        self.policy_noise, self.critic_noise = random_streams(seed, 2, device)
        sizes = (self.action_size, cfg.num_atoms, cfg.num_critics)
        log_std = (cfg.log_std_min, cfg.log_std_max)
        plain = ObsNorms(spec, enabled=False)  # the networks normalise by themselves
        with seeded_init(seed):
            encoder = plain.encoder("actor", cfg.task_embedding)
            self.gaussian = Gaussian(encoder, cfg.policy_net, self.action_size, log_std=log_std)
            encoder = plain.encoder("critic", cfg.task_embedding)
            self.critic = QNetwork(encoder, cfg.critic_net, *sizes).to(device)
        inputs = self.gaussian.encoder.size, self.critic.encoder.size + self.action_size
        check_normalises("policy_net", cfg.policy_net, self.gaussian.net, inputs[0])
        check_normalises("critic_net", cfg.critic_net, self.critic.net, inputs[1])
        self.policy, self.behaviour = Greedy(self.gaussian.to(device)), Sampled(self.gaussian)
        self.critic_target = target_copy(self.critic, plain.critic)
        self.alpha = Temperature(cfg.alpha).to(device)
        self.z = categorical.support(-cfg.v_max, cfg.v_max, cfg.num_atoms, device)
        self.reward_scale = RewardScale.into(-cfg.v_max, cfg.v_max, spec, gamma).to(device)
        self.step_policy = cfg.policy_optim.build(self.gaussian, total_updates)
        self.step_alpha = cfg.alpha_optim.build(self.alpha, total_updates)
        self.step_critic = cfg.critic_optim.build(self.critic, total_updates)

    def observe(self, fresh: Transition) -> None:
        self.reward_scale.update(fresh.reward, fresh.terminated, fresh.obs.task)

    def update(self, batch: Batch) -> UpdateResult:
        metrics = self.update_policy(batch) if self.updates % self.cfg.policy_every == 0 else {}
        noise = self.critic_noise.normal(len(batch.reward), self.action_size)
        loss = self.critic_loss(batch, noise)
        metrics |= loss.metrics | {"critic/grad_norm": self.step_critic(loss.loss)}
        store_(statistics(self.critic), self.step_critic.reduce(running(loss.aux)))
        self.update_target()  # (8)
        self.updates += 1
        return UpdateResult(metrics, loss.td_error)

    def update_target(self) -> None:
        follow_ = polyak_ if self.cfg.project_target else average_
        follow_(self.critic_target, self.critic, self.cfg.tau)

    def update_policy(self, batch: Batch) -> dict[str, Tensor]:
        noise = self.policy_noise.normal(len(batch.reward), self.action_size)
        with frozen(self.critic):
            loss = self.policy_loss(batch.obs, batch.next_obs, noise)
            grad_norm = self.step_policy(loss.loss)
        store_(statistics(self.gaussian), self.step_policy.reduce(running(loss.aux)))
        self.step_alpha(self.alpha_loss(loss.metrics["policy/entropy"]).loss)
        return loss.metrics | {"policy/grad_norm": grad_norm, "policy/alpha": self.alpha().detach()}

    def policy_loss(self, obs: Obs, next_obs: Obs, noise: Tensor) -> Loss:
        """The loss (2), and (9). aux: the policy's new running statistics."""
        fresh: list[Tensor] = []
        rows = len(noise)
        mean, log_std = self.gaussian(joint(obs, next_obs), fresh)
        action, log_prob = squashed_sample(mean[:rows], log_std[:rows], noise)  # (1)
        loss = (self.alpha().detach() * log_prob - self._smallest_q(obs, action)).mean()  # (2)
        if self.cfg.smoothness:
            greedy = mean.tanh()
            loss = (
                loss + self.cfg.smoothness * (greedy[:rows] - greedy[rows:]).square().mean()
            )  # (9)
        metrics = {"policy/loss": loss.detach(), "policy/entropy": -log_prob.detach().mean()}
        return Loss(loss, metrics, named(fresh))

    def _smallest_q(self, obs: Obs, action: Tensor) -> Tensor:
        probs = self.critic(obs, action).float().softmax(-1)  # [E, B, K]
        return categorical.mean(probs, self.z).amin(0)

    def alpha_loss(self, entropy: Tensor) -> Loss:
        return Loss(self.alpha() * (entropy - self.target_entropy), {})  # (3)

    def critic_loss(self, batch: Batch, noise: Tensor) -> Loss:
        """The loss (7). aux: each row's absolute error in value, and the critic's new running statistics."""
        with torch.no_grad():
            next_action, log_prob = self.gaussian.sample(batch.next_obs, noise)  # (4)
        fresh: list[Tensor] = []
        both = (joint(batch.obs, batch.next_obs), torch.cat([batch.action, next_action]))
        # The critic of s and the target critic of s', each in training mode on both: [E, B, K], (5)
        logits, next_logits = self.critic.with_frozen(self.critic_target, *both, fresh)
        target, clipped = self.target_distribution(batch, next_logits, log_prob)  # [B, K]
        cross_entropy, q = categorical.cross_entropy(logits, target, self.z)  # [E, B]
        loss = (batch.weight * cross_entropy).mean()  # (7)
        td_error = (q.mean(0) - categorical.mean(target, self.z)).abs()
        metrics = {"critic/loss": loss.detach(), "critic/q": q.mean(), "critic/clipped": clipped}
        return Loss(loss, metrics, {"td_error": td_error} | named(fresh))

    @torch.no_grad()
    def target_distribution(
        self, batch: Batch, logits: Tensor, log_prob: Tensor
    ) -> tuple[Tensor, Tensor]:
        """And the share of it that lay outside of the value range. `logits` [E, B, K] are the target critic's at s',
        `log_prob` [B] is that of the next actions."""
        reward = self.reward_scale(batch.reward, batch.obs.task)
        base = reward - batch.discount * self.alpha() * log_prob
        move = {"base": base, "slope": batch.discount, "z": self.z}
        target = categorical.project_shifted(logits, **move, lowest=True)  # (6)
        return target, categorical.clipped_mass(logits, **move)

    def diagnose(self, batch: Batch, held_out: Batch | None) -> dict[str, Tensor]:
        critic, policy = self.critic, self.gaussian
        return diagnose.actor_critic(critic, policy, batch, held_out, self._examine)

    def _examine(self, batch: Batch) -> Tensor:
        """The loss (7), as an update would find it, with noise that no update draws."""
        noise = RandomStream(self.updates, self.z.device).normal(
            len(batch.reward), self.action_size
        )
        return FlashSAC.critic_loss(self, batch, noise).loss  # not the compiled one

    @torch.no_grad()
    def q(self, obs: Obs, action: Tensor) -> Tensor:
        return self.reward_scale.undo(self._smallest_q(obs, action), obs.task)


def check_normalises(field: str, cfg: NetworkConfig, network: Network, inputs: int) -> None:
    """Others would run, on observations of any size: nothing else here normalises them."""
    kind = type(cfg).__name__
    if not (isinstance(network, Network) and network.batch_statistics and statistics(network)):
        raise UserError(
            f"FlashSAC needs networks with BatchNorms, such as FlashNetConfig or XQCNetConfig: agent.{field} cannot "
            f"be {kind}."
        )
    if not statistics_in_order(network, inputs):
        raise UserError(
            f"agent.{field}: the network of {kind} must call each of its BatchNorms once, with `fresh`, in the order "
            "in which it makes them."
        )


def joint(obs: Obs, next_obs: Obs) -> Obs:
    """The rows of both, one below the other."""
    actor = torch.cat([obs.actor, next_obs.actor])
    critic = actor if obs.critic is obs.actor else torch.cat([obs.critic, next_obs.critic])
    if obs.task is None or next_obs.task is None:
        return Obs(actor, critic)
    return Obs(actor, critic, torch.cat([obs.task, next_obs.task]))
