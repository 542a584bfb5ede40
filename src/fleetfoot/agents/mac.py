"""MAC: mean actor-critic (Asadi et al. 2017, arXiv 1709.00503; code of the authors: kavosh8/MAC).

The policy gradient as the exact sum over all actions, with a learned Q for each. With q the critic and q_target its
copy, pi the policy, R and d reward and discount (zero after a termination):

    (1)  y = R + d sum_a' pi(a'|s') q_target(s', a')   (expected SARSA), on transitions from a small memory
    (2)  critic loss = mean (q(s, a) - y)^2, `critic_steps` minibatches per rollout
    (3)  gradient = mean_s sum_a grad pi(a|s) q(s, a) + entropy_coef grad H(pi), over the states of the rollout
    (4)  q_target <- q after every rollout

Deviations from the authors' code:

    [1] Updates after every rollout of T vec steps, not after every episode.
    [2] The entropy bonus in (3); with entropy_coef = 0 there is none.
    [3] A time limit is not the end of the task: (1) bootstraps there. The memory does not keep the last observation of
        an episode, so nothing is learned from transitions that a time limit cut.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from fleetfoot.agents.checks import check_above_zero
from fleetfoot.agents.contract import Traits
from fleetfoot.agents.state import Stateful
from fleetfoot.config import at_least, part
from fleetfoot.data import Discrete, EnvSpec, Loss, Obs, Rollout, Transition, UpdateResult
from fleetfoot.errors import UserError
from fleetfoot.nn.encode import ObsNorms
from fleetfoot.nn.mlp import MLPConfig
from fleetfoot.nn.network import NetworkConfig
from fleetfoot.nn.stochastic import CategoricalPolicy, DrawnAction, GreedyAction
from fleetfoot.ops.polyak import polyak_, target_copy
from fleetfoot.optim import AdamConfig, OptimConfig
from fleetfoot.replay.windows import StoredWindows
from fleetfoot.rng import RandomStream, seeded_init


@part
class MACConfig:
    """Mean actor-critic. Sizes and learning rates are those of the authors' code for the cartpole."""

    traits: ClassVar = Traits(on_policy=True, follows_episodes=True)

    critic_steps: int = 10
    """Minibatches of the critic per rollout."""
    critic_batch: int = 32
    """Transitions per minibatch."""
    critic_memory: int = 2_000
    """Transitions that the critic learns from, over all environments together."""
    entropy_coef: float = 0.01
    """Weight of the entropy bonus."""
    reward_scale: float = 1.0
    """Rewards are multiplied by this; returns should be of order 1 to 10."""
    normalize_obs: bool = True
    """Running normalisation of observations."""
    policy_net: NetworkConfig = MLPConfig(hidden=(64,))
    """Network of the policy."""
    critic_net: NetworkConfig = MLPConfig(hidden=(64,))
    """Network of the critic, with one output for each action."""
    policy_optim: OptimConfig = AdamConfig(lr=5e-3)
    critic_optim: OptimConfig = AdamConfig(lr=1e-2)

    def build(
        self, spec: EnvSpec, *, gamma: float, total_updates: int, seed: int, device: torch.device
    ) -> MAC:
        if not isinstance(spec.action, Discrete) or len(spec.obs_shape) != 1 or spec.tasks:
            raise UserError(
                f"MAC needs discrete actions, flat observations and one task; {spec.name} has {spec.action}, "
                f"observations of shape {spec.obs_shape} and {max(1, len(spec.tasks))} tasks."
            )
        at_least(self, "agent", critic_steps=1, critic_batch=1, critic_memory=2 * spec.num_envs)
        check_above_zero(self, "reward_scale")
        return MAC(self, spec, gamma, total_updates, seed, device)


class MAC(Stateful):
    """The agent; the equations are at the top of this file."""

    compiled_methods: ClassVar[tuple[str, ...]] = ("critic_loss", "policy_loss")
    state_attrs = (
        "policy",
        "critic",
        "critic_target",
        "memory",
        "pending_norms",
        "step_policy",
        "step_critic",
        "noise",
    )

    def __init__(
        self,
        cfg: MACConfig,
        spec: EnvSpec,
        gamma: float,
        total_updates: int,
        seed: int,
        device: torch.device,
    ):
        assert isinstance(spec.action, Discrete)
        self.cfg, self.gamma = cfg, gamma
        self.updates: int = 0
        self.periods: tuple[int, ...] = ()  # all updates are alike
        self.noise = RandomStream(seed, device)
        self.norms = ObsNorms(spec, cfg.normalize_obs).to(device)
        self.pending_norms = ObsNorms(spec, cfg.normalize_obs).to(device)
        with seeded_init(seed):
            encoder = self.norms.encoder("actor", None, clamp=10.0)
            count = spec.action.count
            self.actor = CategoricalPolicy(encoder, cfg.policy_net, count, head_gain=0.01)
            self.critic = cfg.critic_net.build(encoder.size, count).to(device)
        self.actor.to(device)
        self.critic_target = target_copy(self.critic)
        self.policy, self.behaviour = GreedyAction(self.actor), DrawnAction(self.actor)
        self.memory = StoredWindows(spec, cfg.critic_memory).to(device)
        self.step_policy = cfg.policy_optim.build(self.actor, total_updates)
        self.step_critic = cfg.critic_optim.build(self.critic, total_updates * cfg.critic_steps)

    def observe(self, fresh: Transition) -> None:
        self.pending_norms.update(fresh.obs)  # the policy must not change while it collects
        self.memory.append(fresh)

    def mark_break(self) -> None:
        self.memory.mark_break()

    def update(self, rollout: Rollout) -> UpdateResult:
        metrics: dict[str, Tensor] = {}
        for _ in range(self.cfg.critic_steps):
            loss = self.critic_loss(self.noise.uniform(self.cfg.critic_batch))
            metrics |= loss.metrics | {"critic/grad_norm": self.step_critic(loss.loss)}
        loss = self.policy_loss(rollout.obs)
        metrics |= loss.metrics | {"policy/grad_norm": self.step_policy(loss.loss)}
        polyak_(self.critic_target, self.critic, 1.0)  # (4)
        self.norms.take_over(self.pending_norms)
        self.updates += 1
        return UpdateResult(metrics)

    def critic_loss(self, uniform: Tensor) -> Loss:
        """(2), of transitions that the numbers [B] choose."""
        rows = self.memory.draw(uniform, 1)
        obs, next_obs, terminated = rows.obs[0], rows.obs[1], rows.terminated[0]
        with torch.no_grad():
            probs = self.log_probs(next_obs).exp()
            next_value = (probs * self.q(next_obs, target=True)).sum(-1)
            discount = torch.where(terminated, 0.0, self.gamma)
            target = self.cfg.reward_scale * rows.reward[0] + discount * next_value  # (1)
        q = self.q(obs).gather(-1, rows.action[0].unsqueeze(-1)).squeeze(-1)
        weight = (rows.counts[0] & (terminated | rows.known[0])).float()
        loss = (weight * (q - target).square()).sum() / weight.sum().clamp(min=1.0)
        return Loss(loss, {"critic/loss": loss.detach(), "critic/q": q.detach().mean()})

    def policy_loss(self, obs: Obs) -> Loss:
        """Its gradient is minus (3); observations [T, N, ...]."""
        rows = obs.actor.flatten(0, 1)
        log_probs = self.log_probs(rows)
        gain = (log_probs.exp() * self.q(rows).detach()).sum(-1).mean()
        entropy = self.actor.entropy((log_probs,)).mean()
        loss = -gain - self.cfg.entropy_coef * entropy
        return Loss(loss, {"policy/loss": -gain.detach(), "policy/entropy": entropy.detach()})

    def log_probs(self, obs: Tensor) -> Tensor:
        return self.actor(Obs(obs, obs))[0]

    def q(self, obs: Tensor, target: bool = False) -> Tensor:
        """[B, actions]."""
        net = self.critic_target if target else self.critic
        return net(self.actor.encoder(Obs(obs, obs))).float()
