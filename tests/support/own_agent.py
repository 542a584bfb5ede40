"""An agent as a user writes it: TD3 in plain torch, with nothing but the contract of docs/architecture.md at hand.

`OwnTD3` has what is required and no more. `DeclaredTD3` also says what may be compiled and recorded.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from fleetfoot import part
from fleetfoot.data import Batch, Continuous, EnvSpec, Obs, Transition, UpdateResult
from fleetfoot.rng import RandomStream


@part
class OwnTD3Config:
    """TD3 (Fujimoto et al. 2018)."""

    lr: float = 1e-3
    """Learning rate of both networks."""
    tau: float = 0.05
    """Share of the networks that their targets take over after each update."""
    policy_every: int = 2
    """Critic updates per policy update."""
    declared: bool = False
    """Build the agent that says what may be compiled and recorded."""

    def build(
        self, spec: EnvSpec, *, gamma: float, total_updates: int, seed: int, device: torch.device
    ) -> OwnTD3:
        return (DeclaredTD3 if self.declared else OwnTD3)(self, spec, seed, device)


def mlp(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, outputs))


class Policy(nn.Module):
    def __init__(self, inputs: int, action_size: int):
        super().__init__()
        self.net = mlp(inputs, action_size)

    def forward(self, obs: Obs) -> Tensor:
        return torch.tanh(self.net(obs.actor))


class Critic(nn.Module):
    def __init__(self, inputs: int, action_size: int):
        super().__init__()
        self.one, self.two = (mlp(inputs + action_size, 1) for _ in range(2))

    def forward(self, obs: Obs, action: Tensor) -> Tensor:
        x = torch.cat([obs.critic, action], dim=-1)
        return torch.stack([self.one(x), self.two(x)]).squeeze(-1)  # [2, B]


class OwnTD3:
    def __init__(self, cfg: OwnTD3Config, spec: EnvSpec, seed: int, device: torch.device):
        assert isinstance(spec.action, Continuous)
        torch.manual_seed(seed)
        self.cfg, self.size, self.updates = cfg, spec.action.size, 0
        self.policy = Policy(spec.obs_shape[0], self.size).to(device)
        self.critic = Critic((spec.critic_shape or spec.obs_shape)[0], self.size).to(device)
        self.targets = copy.deepcopy(nn.ModuleList([self.policy, self.critic]))
        self.noise = RandomStream(seed, device)
        options: Any = {"lr": cfg.lr, "capturable": device.type == "cuda"}
        self.policy_optim = torch.optim.Adam(self.policy.parameters(), **options)
        self.critic_optim = torch.optim.Adam(self.critic.parameters(), **options)

    @property
    def behaviour(self) -> nn.Module:
        return self.policy

    def observe(self, fresh: Transition) -> None:
        """There are no running statistics."""

    def update(self, batch: Batch) -> UpdateResult:
        loss, td_error = self.critic_loss(batch, self.noise.normal(len(batch.reward), self.size))
        self._step(self.critic_optim, loss)
        metrics = {"critic/loss": loss.detach()}
        self.updates += 1
        if self.updates % self.cfg.policy_every == 0:
            loss = self.policy_loss(batch.obs)
            self._step(self.policy_optim, loss)
            metrics["policy/loss"] = loss.detach()
        with torch.no_grad():
            sources: list[Tensor] = [*self.policy.parameters(), *self.critic.parameters()]
            torch._foreach_lerp_(list(self.targets.parameters()), sources, self.cfg.tau)
        return UpdateResult(metrics, td_error)

    def _step(self, optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    def critic_loss(self, batch: Batch, noise: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            policy, critic = self.targets
            action = (policy(batch.next_obs) + (0.2 * noise).clamp(-0.5, 0.5)).clamp(-1, 1)
            target = batch.reward + batch.discount * critic(batch.next_obs, action).amin(0)
        error = self.critic(batch.obs, batch.action) - target  # [2, B]
        return (batch.weight * error.square()).mean(), error.detach().abs().mean(0)

    def policy_loss(self, obs: Obs) -> Tensor:
        loss: Tensor = -self.critic(obs, self.policy(obs))[0].mean()
        return loss

    def state_dict(self) -> dict[str, Any]:
        names = ("policy", "critic", "targets", "policy_optim", "critic_optim", "noise")
        return {name: getattr(self, name).state_dict() for name in names} | {
            "updates": self.updates
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        state = dict(state)
        self.updates = state.pop("updates")
        for name, saved in state.items():
            getattr(self, name).load_state_dict(saved)


class DeclaredTD3(OwnTD3):
    compiled_methods = ("critic_loss", "policy_loss")

    @property
    def periods(self) -> tuple[int, ...]:
        return (self.cfg.policy_every,)
