"""DQN and its usual improvements: double, dueling, n-step, categorical.

DQN: Mnih et al. 2015, Nature 518. Double: van Hasselt et al. 2016, arXiv 1509.06461. Dueling: Wang et al. 2016, arXiv
1511.06581. Categorical (C51): Bellemare et al. 2017, arXiv 1707.06887. All together, as Ape-X uses them (without the
categorical head): Horgan et al. 2018, arXiv 1803.00933. With R and d the folded reward and what is left of the
discount, w the importance weight of a row, z the atoms of the value support:

    (1)  q(s, a) = v(s) + A(s, a) - mean_a' A(s, a')   (dueling; otherwise one head gives q itself)
    (2)  a' = argmax_a q(s', a)   (double; otherwise argmax_a q_target(s', a))
    (3)  delta = R + d q_target(s', a') - q(s, a)
    (4)  loss = mean_batch w l(delta),  l(x) = x^2 / 2 ("squared"), or |x| - 1/2 where |x| > 1 ("huber")
    (5)  q_target <- (1 - tau) q_target + tau q, every `target_every` updates   (tau = 1: a hard copy)

With `num_atoms`, the network gives the logits of a distribution Z(s, a) and q is its mean. (3) and (4) become

    (6)  target distribution: project(softmax(logits_target(s', a')), clip(R + d z, v_min, v_max))
    (7)  loss = mean_batch w CE(target, Z(s, a))

Deviations from the published systems:

    [1] Windows of n steps stop at truncations and at the write head; a window cut after m steps is discounted by
        gamma^m. A time limit is no termination.
    [2] The error reported for priorities is |delta| in units of value also for distributions (Rainbow takes the
        cross-entropy).
    [3] Nature DQN's clipped error is the Huber loss; Ape-X names the squared loss and clips the gradient to norm 40.
        Both are here, and the default is Huber with that clip.
    [4] Linear and convolution layers start as torch's own do.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fleetfoot.agents.checks import check_support, check_tau
from fleetfoot.agents.contract import Traits
from fleetfoot.agents.state import Stateful
from fleetfoot.config import at_least, part
from fleetfoot.data import Batch, Discrete, EnvSpec, Loss, Obs, Transition, UpdateResult
from fleetfoot.errors import UserError
from fleetfoot.nn.cnn import NatureCNNConfig
from fleetfoot.nn.dueling import ActionHead, DuelingHead
from fleetfoot.nn.embed import TaskEmbedding
from fleetfoot.nn.mlp import MLPConfig
from fleetfoot.nn.network import NetworkConfig
from fleetfoot.nn.normalize import Identity, RunningNorm
from fleetfoot.nn.reward_scale import Bound, RewardScale, value_support
from fleetfoot.nn.torso import TorsoConfig
from fleetfoot.ops import categorical
from fleetfoot.ops.polyak import polyak_, target_copy
from fleetfoot.optim import OptimConfig, RMSPropConfig, Stepper
from fleetfoot.rng import seeded_init


@part
class DQNConfig:
    """Defaults as published with Ape-X, for Atari; vector observations need `torso=MLPTorsoConfig()`."""

    double: bool = True
    """The network chooses the next action and its target evaluates it; False: the target does both."""
    dueling: bool = True
    """Two heads, for the value of the state and the advantages of the actions."""
    loss: Literal["huber", "squared"] = "huber"
    """Loss on the TD error; a categorical head uses cross-entropy instead."""
    num_atoms: int | None = None
    """Atoms of the value support (K) of a categorical head; None: q-values are plain numbers."""
    v_min: Bound = "auto"
    """Smallest value a categorical head can express; auto: rewards are scaled so that returns fit."""
    v_max: Bound = "auto"
    """Largest value a categorical head can express; auto like `v_min`."""
    target_every: int = 2_500
    """Updates between two updates of the target network."""
    tau: float = 1.0
    """Step of the target towards the network at each such update; 1: a hard copy."""
    normalize_obs: bool = False
    """Running normalisation of observations, for vectors."""
    task_embedding: int = 32
    """Size of the learned embedding of each task, in multi-task sets."""
    torso: TorsoConfig = NatureCNNConfig()
    """Network from observations to features."""
    head: NetworkConfig = MLPConfig(hidden=(512,))
    """Network from features to values; with `dueling`, each of the two heads."""
    critic_optim: OptimConfig = RMSPropConfig(max_grad_norm=40.0)
    """Optimiser of the whole network."""

    @property
    def traits(self) -> Traits:
        scaled = self.num_atoms is not None and self.v_min == "auto"
        return Traits(follows_episodes=scaled, gives_initial_priorities=not scaled)

    def build(
        self, spec: EnvSpec, *, gamma: float, total_updates: int, seed: int, device: torch.device
    ) -> DQN:
        if not isinstance(spec.action, Discrete):
            raise UserError(f"DQN needs discrete actions; {spec.name} has {spec.action}.")
        if self.normalize_obs and len(spec.obs_shape) != 1:
            raise UserError(
                f"agent.normalize_obs is for vectors; {spec.name} has observations of shape {spec.obs_shape}."
            )
        check_support(self.num_atoms, self.v_min, self.v_max)
        at_least(self, "agent", target_every=1)
        check_tau(self.tau)
        return DQN(self, spec, gamma, total_updates, seed, device)


class Critic(nn.Module):
    """Obs -> [B, num_actions, K]: q-values (K = 1), or the logits of their distributions."""

    def __init__(self, cfg: DQNConfig, spec: EnvSpec, num_actions: int):
        super().__init__()
        self.norm: RunningNorm | Identity = Identity()
        if cfg.normalize_obs:
            self.norm = RunningNorm(spec.obs_shape)
        self.torso = cfg.torso.build(spec.obs_shape)
        tasks = len(spec.tasks)
        self.embed = TaskEmbedding(tasks, cfg.task_embedding) if tasks else None
        inputs = self.torso.size + (cfg.task_embedding if tasks else 0)
        head = DuelingHead if cfg.dueling else ActionHead  # (1)
        self.head = head(cfg.head, inputs, num_actions, cfg.num_atoms or 1)

    def forward(self, obs: Obs) -> Tensor:
        features = self.torso(self.norm(obs.actor))
        if self.embed is not None:
            features = torch.cat([features, self.embed(obs.task)], dim=-1)
        return self.head(features).float()

    def constrain_(self) -> None:
        self.head.constrain_()
        if self.embed is not None:
            self.embed.constrain_()


class QValues(nn.Module):
    """Obs -> q-values [B, num_actions]."""

    z: Tensor | None

    def __init__(self, critic: Critic, z: Tensor | None):
        super().__init__()
        self.critic = critic
        self.register_buffer("z", None if z is None else z.clone(), persistent=False)

    def forward(self, obs: Obs) -> Tensor:
        return categorical.value(self.critic(obs), self.z)


class Greedy(nn.Module):
    """Obs -> the action of the largest q-value, [B] int64."""

    def __init__(self, q_values: QValues):
        super().__init__()
        self.q_values = q_values

    def scores(self, obs: Obs) -> Tensor:
        """[B, num_actions]: the action is the one with the largest."""
        q: Tensor = self.q_values(obs)
        return q

    def forward(self, obs: Obs) -> Tensor:
        return self.scores(obs).argmax(-1)


class InitialPriority(nn.Module):
    """The first priorities of Ape-X, from the q-values that chose the action: no weights, no further pass."""

    reward_scale = 1.0

    def forward(self, obs: Obs, action: Tensor, behaviour_output: Tensor) -> tuple[Tensor, Tensor]:
        return behaviour_output.gather(1, action.unsqueeze(1)).T, behaviour_output.amax(1)


class DQN(Stateful):
    """The agent; the equations are at the top of this file."""

    compiled_methods: ClassVar[tuple[str, ...]] = ("critic_loss",)
    # The critic is inside the policy.
    state_attrs = ("policy", "critic_target", "return_scale", "step_critic")

    def __init__(
        self,
        cfg: DQNConfig,
        spec: EnvSpec,
        gamma: float,
        total_updates: int,
        seed: int,
        device: torch.device,
    ):
        assert isinstance(spec.action, Discrete)
        self.cfg, self.tau, self.target_every = cfg, cfg.tau, cfg.target_every
        self.updates, self.periods = 0, (cfg.target_every,)
        with seeded_init(seed):
            self.critic = Critic(cfg, spec, spec.action.count).to(device)
        self.z: Tensor | None = None
        self.return_scale: RewardScale | None = None
        if cfg.num_atoms is not None:
            self.z, self.return_scale = value_support(
                *(cfg.v_min, cfg.v_max, cfg.num_atoms, spec),
                gamma=gamma,
                normalize_reward=False,
                device=device,
            )
        self.behaviour = QValues(self.critic, self.z)
        self.policy = Greedy(self.behaviour)
        self.initial_priority = InitialPriority()
        self.critic_target = target_copy(self.critic, self.critic.norm)
        self.step_critic: Stepper = cfg.critic_optim.build(self.critic, total_updates)

    def observe(self, fresh: Transition) -> None:
        self.critic.norm.update(fresh.obs.actor)
        if self.return_scale is not None:
            self.return_scale.update(fresh.reward, fresh.terminated, fresh.obs.task)

    def update(self, batch: Batch) -> UpdateResult:
        loss = self.critic_loss(batch)
        grad_norm = self.step_critic(loss.loss)
        self.updates += 1
        if self.updates % self.target_every == 0:
            self.update_target()
        return UpdateResult(loss.metrics | {"critic/grad_norm": grad_norm}, loss.td_error)

    def update_target(self) -> None:
        """Bring the target nearer to the network, or onto it."""
        polyak_(self.critic_target, self.critic, self.tau)  # (5)

    def critic_loss(self, batch: Batch) -> Loss:
        """The loss (4) or (7)."""
        out = _of(self.critic(batch.obs), batch.action)  # [B, K]
        metrics = {}
        if self.z is None:
            q, wanted = out.squeeze(-1), self.target(batch)
            row_loss = self.distance(wanted - q)
        else:
            target, metrics["critic/clipped"] = self.target_distribution(batch, self.z)
            (row_loss,), (q,) = categorical.cross_entropy(out.unsqueeze(0), target, self.z)
            wanted = categorical.mean(target, self.z)
        loss = (batch.weight * row_loss).mean()  # (4), (7)
        td_error = (wanted - q).detach().abs()
        metrics |= {"critic/loss": loss.detach(), "critic/q": q.detach().mean()}
        return Loss(loss, metrics | {"critic/td_error": td_error.mean()}, {"td_error": td_error})

    def distance(self, delta: Tensor) -> Tensor:
        if self.cfg.loss == "squared":
            return 0.5 * delta.square()
        return F.huber_loss(delta, torch.zeros_like(delta), reduction="none")

    @torch.no_grad()
    def next_value(self, batch: Batch) -> Tensor:
        """What the target network gives for the next action, [B, K]."""
        out: Tensor = self.critic_target(batch.next_obs)  # [B, num_actions, K]
        chooser = self.critic(batch.next_obs) if self.cfg.double else out
        return _of(out, categorical.value(chooser, self.z).argmax(-1))  # (2)

    def target(self, batch: Batch) -> Tensor:
        return batch.reward + batch.discount * self.next_value(batch).squeeze(-1)  # (3)

    def target_distribution(self, batch: Batch, z: Tensor) -> tuple[Tensor, Tensor]:
        """And the share of it that lay outside of the value range."""
        logits = self.next_value(batch).unsqueeze(0)  # one critic: [1, B, K]
        reward = batch.reward
        if self.return_scale is not None:
            reward = self.return_scale(reward, batch.obs.task)
        move = {"base": reward, "slope": batch.discount, "z": z}
        target = categorical.project_shifted(logits, **move, lowest=False)
        return target.squeeze(0), categorical.clipped_mass(logits, **move)  # (6)


def _of(out: Tensor, action: Tensor) -> Tensor:
    """The outputs for the action of each row: [B, num_actions, K] and [B] -> [B, K]."""
    return out.gather(1, action.view(-1, 1, 1).expand(-1, 1, out.shape[-1])).squeeze(1)
