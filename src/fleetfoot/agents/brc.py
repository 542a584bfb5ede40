"""BRC: bigger, regularised, categorical. One soft actor-critic for many tasks at once.

Nauman et al. 2025, arXiv 2505.23150. Wide normalised critics (`nn/bronet.py`) learn distributions by cross-entropy.
Each task has a learned direction, and its rewards are scaled so that all tasks fill one range of values. No pessimism,
no resets. With R, d the folded reward and discount, i the task, e_i its vector in the critic, z the atoms on
[-v_max, v_max], alpha the one temperature of all tasks:

    (1)  r = R v_max / (max(G_max, |G_min|) + alpha |H*| / (2 (1 - gamma))),  G: returns of task i's finished episodes
    (2)  a', log pi' ~ policy(s', e_i),   shifted atoms  y = clip(r + d (z - alpha log pi'), -v_max, v_max)
    (3)  p = mean over heads of softmax(critic_target(s', a', e_i of the target)),   target distribution: project(p, y)
    (4)  critic loss = sum_heads mean_batch CE(target, critic(s, a, e_i)), which also teaches e_i
    (5)  critic_target <- (1 - tau) critic_target + tau critic, vectors included
    (6)  policy loss = mean_batch [alpha log pi(a|s, e_i) - Q(s, a, e_i)],  a ~ policy(s, e_i), Q the mean of p over z;
         e_i is only read
    (7)  temperature loss = alpha (entropy - H*),   H* = target_entropy_per_action * A

One update is (1) to (7) in this order. ||e_i|| = 1. With a single task there are no vectors, unless a run `start_from`
one that had them: then networks and observation statistics are that run's, and vectors, temperature, optimisers and
extremes begin anew.

Deviations: [1] observations may be normalised (off, as published). [2] H* and log pi count all components of an action,
also those that a task does not use; so does the published code. [3] (3) takes the mean after the projection, which is
linear. [4] Where tasks have no common time limit, the last `return_window` steps of an episode count in (1). [5] What
transfer keeps is our reading of the paper, whose code does not show it.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from fleetfoot import checkpoint
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
from fleetfoot.nn.bronet import BroNetConfig
from fleetfoot.nn.embed import Borrowed, UnitEmbedding
from fleetfoot.nn.encode import ObsNorms, QNetwork
from fleetfoot.nn.freeze import frozen
from fleetfoot.nn.gaussian import ORTHOGONAL, Gaussian, Greedy, Sampled
from fleetfoot.nn.network import NetworkConfig
from fleetfoot.nn.return_extremes import ReturnExtremes
from fleetfoot.nn.scalar import Temperature
from fleetfoot.ops import categorical
from fleetfoot.ops.polyak import polyak_, target_copy
from fleetfoot.optim import AdamConfig, AdamWConfig
from fleetfoot.rng import random_streams, seeded_init

DECAYED = AdamWConfig(weight_decay=1e-4)
NETWORKS = ("policy", "critic", "critic_target")


@part
class BRCConfig:
    """BRC: wide distributional critics for many tasks, with task embeddings and rewards scaled per task."""

    v_max: float = 10.0
    """The atoms reach from -v_max to v_max."""
    num_atoms: int = 101
    """Atoms of the value support (K)."""
    num_critics: int = 2
    """Critic heads (E), batched as one network."""
    tau: float = 0.005
    """Step of the target critic towards the critic after every update."""
    alpha: float = 0.1
    """Initial temperature."""
    target_entropy_per_action: float = -0.5
    """Entropy that the temperature is adjusted to, per action component."""
    log_std_min: float = -10.0
    """Lower bound of the log standard deviation before tanh."""
    log_std_max: float = 2.0
    """Upper bound of the log standard deviation before tanh."""
    normalize_reward: bool = True
    """Scale rewards by the extremes of returns, for each task (1)."""
    return_window: int = 1_000
    """Steps of an episode that count in (1), if the environments have no common time limit."""
    normalize_obs: bool = False
    """Normalise observations by their running mean and standard deviation."""
    task_embedding: int = 32
    """Size of the learned embedding of each task, in multi-task sets."""
    start_from: str = ""
    """Folder of a multi-task run whose networks to start from; every task here gets a new embedding."""
    policy_net: NetworkConfig = BroNetConfig(width=256, blocks=1)
    """Network of the policy."""
    critic_net: NetworkConfig = BroNetConfig(width=4096, blocks=2)
    """Network of each critic."""
    policy_optim: AdamWConfig = DECAYED
    """Optimiser of the policy."""
    critic_optim: AdamWConfig = DECAYED
    """Optimiser of the critics."""
    alpha_optim: AdamConfig = AdamConfig(lr=3e-4, beta1=0.5)
    """Optimiser of the temperature."""

    @property
    def traits(self) -> Traits:
        return Traits(follows_episodes=self.normalize_reward)

    def build(
        self, spec: EnvSpec, *, gamma: float, total_updates: int, seed: int, device: torch.device
    ) -> BRC:
        at_least(self, "agent", num_atoms=2, num_critics=1, return_window=1)
        check_tau(self.tau)
        check_soft_policy(self)
        check_above_zero(self, "v_max")
        if self.normalize_reward and not gamma < 1.0:
            raise UserError(
                "agent.normalize_reward assumes that episodes continue after a time limit, which needs a gamma below 1."
            )
        agent = BRC(self, spec, gamma, total_updates, seed, device)
        if self.start_from:
            agent.start_from(self.start_from)
        return agent


class BRC(Stateful):
    """The agent; the equations are at the top of this file."""

    compiled_methods: ClassVar = ("critic_loss", "policy_loss", "alpha_loss")
    periods = ()
    state_attrs = (
        *(*NETWORKS, "alpha", "reward_scale"),
        *("step_policy", "step_critic", "step_alpha"),
        *("critic_noise", "policy_noise"),
    )

    def __init__(
        self,
        cfg: BRCConfig,
        spec: EnvSpec,
        gamma: float,
        total_updates: int,
        seed: int,
        device: torch.device,
    ):
        self.cfg, self.action_size, self.updates = cfg, flat_actions("BRC", spec), 0
        self.target_entropy = cfg.target_entropy_per_action * self.action_size
        self.critic_noise, self.policy_noise = random_streams(seed, 2, device)
        sizes, tasks = (self.action_size, cfg.num_atoms, cfg.num_critics), max(1, len(spec.tasks))
        bounds = {"log_std": (cfg.log_std_min, cfg.log_std_max), "head_gains": ORTHOGONAL}
        with seeded_init(seed):
            self.norms = ObsNorms(spec, cfg.normalize_obs)
            several = tasks > 1 or bool(cfg.start_from)
            vectors = UnitEmbedding(tasks, cfg.task_embedding) if several else None
            encoder = self.norms.encoder("actor", vectors and Borrowed(vectors))
            self.gaussian = Gaussian(encoder, cfg.policy_net, self.action_size, **bounds)
            encoder = self.norms.encoder("critic", vectors)
            self.critic = QNetwork(encoder, cfg.critic_net, *sizes).to(device)
        self.policy, self.behaviour = Greedy(self.gaussian.to(device)), Sampled(self.gaussian)
        self.critic_target = target_copy(self.critic, self.norms.critic)
        self.alpha = Temperature(cfg.alpha).to(device)
        self.z = categorical.support(-cfg.v_max, cfg.v_max, cfg.num_atoms, device)
        self.reward_scale: ReturnExtremes | None = None
        if cfg.normalize_reward:
            window = spec.episode_length or cfg.return_window
            margin = abs(self.target_entropy) / (2.0 * (1.0 - gamma))
            self.reward_scale = ReturnExtremes(
                spec.num_envs, tasks, window, gamma=gamma, v_max=cfg.v_max, margin=margin
            ).to(device)
        self.step_critic = cfg.critic_optim.build(self.critic, total_updates)
        # Without the vectors, which are the critic's.
        self.step_policy = cfg.policy_optim.build(self.gaussian.net, total_updates)
        self.step_alpha = cfg.alpha_optim.build(self.alpha, total_updates)
        self.unfound: UserError | None = None  # why there is no run to start from

    def observe(self, fresh: Transition) -> None:
        if self.unfound is not None:
            raise self.unfound
        self.norms.update(fresh.obs)
        if self.reward_scale is not None:
            task = fresh.obs.task
            self.reward_scale.update(fresh.reward, fresh.terminated, fresh.truncated, task)

    def update(self, batch: Batch) -> UpdateResult:
        result = self.update_critic(batch)
        return result.with_metrics(self.update_policy(batch.obs).metrics)

    def update_critic(self, batch: Batch) -> UpdateResult:
        noise = self.critic_noise.normal(batch.reward.shape[0], self.action_size)
        loss = self.critic_loss(batch, noise)
        grad_norm = self.step_critic(loss.loss)
        self.updates += 1
        polyak_(self.critic_target, self.critic, self.cfg.tau)  # (5)
        return UpdateResult(loss.metrics | {"critic/grad_norm": grad_norm}, loss.td_error)

    def update_policy(self, obs: Obs) -> UpdateResult:
        noise = self.policy_noise.normal(obs.actor.shape[0], self.action_size)
        with frozen(self.critic):
            loss = self.policy_loss(obs, noise)
            metrics = loss.metrics | {"policy/grad_norm": self.step_policy(loss.loss)}
        self.step_alpha(self.alpha_loss(metrics["policy/entropy"]))
        return UpdateResult(metrics)

    def critic_loss(self, batch: Batch, noise: Tensor) -> Loss:
        """The loss (4)."""
        target = self.target_distribution(batch, noise)  # [B, K]
        logits = self.critic(batch.obs, batch.action)  # [E, B, K]
        cross_entropy, q = categorical.cross_entropy(logits, target, self.z)  # [E, B]
        loss = (batch.weight * cross_entropy).mean(-1).sum()  # (4)
        value = categorical.mean(target, self.z)
        metrics = {
            "critic/loss": loss.detach(),
            "critic/q": q.mean(),
            "critic/q_max": q.abs().max(),
        }
        return Loss(loss, metrics, {"td_error": (q.mean(0) - value).abs()})

    @torch.no_grad()
    def target_distribution(self, batch: Batch, noise: Tensor) -> Tensor:
        alpha, reward = self.alpha(), batch.reward
        if self.reward_scale is not None:
            reward = self.reward_scale(reward, batch.obs.task, alpha)  # (1)
        action, log_prob = self.gaussian.sample(batch.next_obs, noise)
        logits = self.critic_target(batch.next_obs, action)  # [E, B, K]
        base = reward - batch.discount * alpha * log_prob  # (2)
        heads = categorical.project_shifted(
            logits, base=base, slope=batch.discount, z=self.z, lowest=False
        )
        return heads.mean(0)  # (3)

    def policy_loss(self, obs: Obs, noise: Tensor) -> Loss:
        """The loss (6)."""
        action, log_prob = self.gaussian.sample(obs, noise)
        probs = self.critic(obs, action).float().softmax(-1).mean(0)  # [B, K]
        alpha = self.alpha().detach()
        loss = (alpha * log_prob - categorical.mean(probs, self.z)).mean()  # (6)
        metrics = {"policy/loss": loss, "policy/entropy": -log_prob.mean(), "policy/alpha": alpha}
        return Loss(loss, {name: value.detach() for name, value in metrics.items()})

    def alpha_loss(self, entropy: Tensor) -> Tensor:
        return self.alpha() * (entropy - self.target_entropy)  # (7)

    def start_from(self, folder: str) -> None:
        """Take over the networks of another run, but for the vectors of its tasks.

        A folder that is missing is an error only where learning starts: a run that is resumed does not need it.
        """
        try:
            old = checkpoint.load(folder, with_replay=False).state["agent"]
        except UserError as why:
            self.unfound = UserError(f"agent.start_from: {why}")
            return
        for name in NETWORKS:
            network = getattr(self, name)
            state, old_state = network.state_dict(), old.get(name, {})
            vectors = {key: value for key, value in state.items() if "encoder.embed." in key}
            fits = state.keys() == old_state.keys() and all(
                state[key].shape == old_state[key].shape for key in state.keys() - vectors.keys()
            )
            if not fits:
                raise UserError(
                    f"agent.start_from: the {name} in {folder} is not like this one. It takes a BRC run of several "
                    "tasks, with networks, observations and actions of the same sizes."
                )
            network.load_state_dict({**old_state, **vectors})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.unfound = None
