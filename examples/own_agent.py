"""An agent of one's own: TD3 (Fujimoto et al. 2018, arXiv 1802.09477) in about 80 lines. Run it from this folder:

fleetfoot train fast_td3/pendulum --import own_agent --agent PlainTD3Config
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from fleetfoot.agents.checks import flat_actions
from fleetfoot.agents.state import Stateful
from fleetfoot.config import part
from fleetfoot.data import Batch, EnvSpec, Loss, Obs, Transition, UpdateResult
from fleetfoot.ops.polyak import polyak_, target_copy
from fleetfoot.optim import AdamConfig, OptimConfig
from fleetfoot.rng import RandomStream, seeded_init


@part
class PlainTD3Config:
    """Every field is an option: --agent.tau 0.01, --agent.optim.lr 0.001."""

    hidden: int = 128
    tau: float = 0.005
    policy_every: int = 2
    optim: OptimConfig = AdamConfig(lr=1e-3)

    def build(
        self, spec: EnvSpec, *, gamma: float, total_updates: int, seed: int, device: torch.device
    ) -> PlainTD3:
        return PlainTD3(self, spec, total_updates, seed, device)


class Policy(nn.Module):
    """Obs -> action in [-1, 1]."""

    def __init__(self, inputs: int, actions: int, hidden: int) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, actions))

    def forward(self, obs: Obs) -> Tensor:
        return torch.tanh(self.net(obs.actor))


class TwinCritic(nn.Module):
    """Obs, action -> two values, [2, B]."""

    def __init__(self, inputs: int, actions: int, hidden: int) -> None:
        super().__init__()
        size = inputs + actions
        self.one = nn.Sequential(nn.Linear(size, hidden), nn.ReLU(), nn.Linear(hidden, 1))
        self.two = nn.Sequential(nn.Linear(size, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, obs: Obs, action: Tensor) -> Tensor:
        x = torch.cat([obs.critic, action], -1)
        return torch.stack([self.one(x), self.two(x)]).squeeze(-1)


class PlainTD3(Stateful):
    compiled_methods: ClassVar = ("critic_loss", "policy_loss")  # may go through torch.compile
    state_attrs = (
        "policy",
        "critic",
        "policy_target",
        "critic_target",
        "step_policy",
        "step_critic",
        "noise",
    )

    def __init__(
        self,
        cfg: PlainTD3Config,
        spec: EnvSpec,
        total_updates: int,
        seed: int,
        device: torch.device,
    ) -> None:
        self.cfg, self.action_size, self.updates = cfg, flat_actions("PlainTD3", spec), 0
        self.periods = (cfg.policy_every,)  # all that `update` decides by counting
        self.noise = RandomStream(seed, device)
        critic_size = (spec.critic_shape or spec.obs_shape)[0]
        with seeded_init(seed):
            self.policy = Policy(spec.obs_shape[0], self.action_size, cfg.hidden).to(device)
            self.critic = TwinCritic(critic_size, self.action_size, cfg.hidden).to(device)
        self.behaviour = self.policy
        self.policy_target, self.critic_target = target_copy(self.policy), target_copy(self.critic)
        self.step_critic = cfg.optim.build(self.critic, total_updates)
        self.step_policy = cfg.optim.build(self.policy, total_updates // cfg.policy_every)

    def observe(self, fresh: Transition) -> None:
        """No running statistics here."""

    def update(self, batch: Batch) -> UpdateResult:
        xi = self.noise.normal(batch.reward.shape[0], self.action_size)
        loss = self.critic_loss(batch, xi)
        self.step_critic(loss.loss)
        self.updates += 1
        result = UpdateResult(loss.metrics, loss.td_error)
        if self.updates % self.cfg.policy_every == 0:
            policy_loss = self.policy_loss(batch.obs)
            self.step_policy(policy_loss.loss)
            polyak_(self.policy_target, self.policy, self.cfg.tau)
            polyak_(self.critic_target, self.critic, self.cfg.tau)
            return result.with_metrics(policy_loss.metrics)
        return result

    def critic_loss(self, batch: Batch, xi: Tensor) -> Loss:
        with torch.no_grad():
            noise = (0.2 * xi).clamp(-0.5, 0.5)
            action = (self.policy_target(batch.next_obs) + noise).clamp(-1.0, 1.0)
            next_value = self.critic_target(batch.next_obs, action).amin(0)
            target = batch.reward + batch.discount * next_value
        error = self.critic(batch.obs, batch.action) - target  # [2, B]
        loss = (batch.weight * error.square()).mean()
        return Loss(
            loss, {"critic/loss": loss.detach()}, {"td_error": error.detach().abs().mean(0)}
        )

    def policy_loss(self, obs: Obs) -> Loss:
        loss = -self.critic(obs, self.policy(obs))[0].mean()
        return Loss(loss, {"policy/loss": loss.detach()})
