"""Explorers turn what the behaviour network says into what is executed. They own all
per-environment exploration state."""

from __future__ import annotations

import inspect
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from fleetfoot.data import Continuous, EnvSpec, Obs
from fleetfoot.generators import generator_state, restore_generator
from fleetfoot.part import UserError, part


class Explorer(Protocol):
    takes_noise: bool
    """Calls `behaviour(obs, noise)` rather than `behaviour(obs)`."""

    def act(self, behaviour: nn.Module, obs: Obs) -> Tensor:
        """The action to execute, inside the action space."""
        ...

    def restart(self, ended: Tensor) -> None:
        """Tell which environments ([N] bool) have just begun a new episode."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class ExplorerConfig(Protocol):
    def build(self, spec: EnvSpec, *, seed: int, device: torch.device) -> Explorer: ...


def check_behaviour(behaviour: nn.Module, takes_noise: bool) -> None:
    """Refuse an agent whose behaviour network speaks another language than the explorer."""
    arguments = len(inspect.signature(behaviour.forward).parameters)
    if arguments == (2 if takes_noise else 1):
        return
    sampled, noisy = "AsSampledConfig", "NoiseLadderConfig"
    if takes_noise:
        raise UserError(f"this agent's policy does not sample: use {noisy}, not {sampled}.")
    raise UserError(f"this agent's policy samples by itself: use {sampled}, not {noisy}.")


class _Random:
    """A generator of its own, and uniform actions for the first so many steps."""

    def __init__(self, spec: EnvSpec, random_vec_steps: int, seed: int, device: torch.device):
        if not isinstance(spec.action, Continuous):
            raise UserError(
                f"{spec.name} has discrete actions, which this explorer cannot make; "
                "choose an agent and an explorer for discrete actions."
            )
        self.shape = (spec.num_envs, spec.action.size)
        self.device = device
        self.random_left = random_vec_steps
        self.generator = torch.Generator(device).manual_seed(seed)

    def uniform(self) -> Tensor:
        return torch.rand(self.shape, generator=self.generator, device=self.device) * 2 - 1

    def normal(self) -> Tensor:
        return torch.randn(self.shape, generator=self.generator, device=self.device)

    def state_dict(self) -> dict[str, Any]:
        return {
            "generator": generator_state(self.generator),
            "random_left": self.random_left,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        restore_generator(self.generator, state["generator"])
        self.random_left = state["random_left"]


@part
class NoiseLadderConfig:
    """Gaussian noise on the action, of a different strength in every environment."""

    std_min: float = 0.001
    std_max: float = 0.4
    redraw: Literal["episode", "never"] = "episode"
    """episode: each environment draws a new strength, uniform between the two, when its episode ends (FastTD3).
    never: evenly spaced from the first environment to the last, for ever (PQL)."""
    random_vec_steps: int = 0
    """Uniformly random actions for so many vec steps at the start."""

    def build(self, spec: EnvSpec, *, seed: int, device: torch.device) -> NoiseLadder:
        if not 0 <= self.std_min <= self.std_max:
            raise UserError(
                "explorer.std_min and std_max must satisfy 0 <= std_min <= std_max, "
                f"not {self.std_min} and {self.std_max}."
            )
        return NoiseLadder(self, spec, seed, device)


class NoiseLadder:
    takes_noise = False

    def __init__(self, cfg: NoiseLadderConfig, spec: EnvSpec, seed: int, device: torch.device):
        self.cfg = cfg
        self.random = _Random(spec, cfg.random_vec_steps, seed, device)
        if cfg.redraw == "episode":
            self.std = self._draw()
        else:
            self.std = torch.linspace(cfg.std_min, cfg.std_max, spec.num_envs, device=device)

    def _draw(self) -> Tensor:
        u = torch.rand(
            self.random.shape[0], generator=self.random.generator, device=self.random.device
        )
        return self.cfg.std_min + u * (self.cfg.std_max - self.cfg.std_min)

    @torch.no_grad()
    def act(self, behaviour: nn.Module, obs: Obs) -> Tensor:
        if self.random.random_left > 0:
            self.random.random_left -= 1
            return self.random.uniform()
        noise = self.std.unsqueeze(1) * self.random.normal()
        action: Tensor = behaviour(obs)
        return (action.float() + noise).clamp_(-1.0, 1.0)

    def restart(self, ended: Tensor) -> None:
        if self.cfg.redraw == "episode":
            # Drawn for all and kept where needed: the stream does not depend on data, nothing waits for the device.
            self.std = torch.where(ended, self._draw(), self.std)

    def state_dict(self) -> dict[str, Any]:
        return {"random": self.random.state_dict(), "std": self.std}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.random.load_state_dict(state["random"])
        self.std = state["std"].to(self.random.device)


@part
class AsSampledConfig:
    """The behaviour network's own samples, for stochastic policies."""

    random_vec_steps: int = 0
    """Uniformly random actions for so many vec steps at the start."""

    def build(self, spec: EnvSpec, *, seed: int, device: torch.device) -> AsSampled:
        return AsSampled(_Random(spec, self.random_vec_steps, seed, device))


class AsSampled:
    """Calls `behaviour(obs, noise)` with standard normal noise [N, A]: the network owns no randomness."""

    takes_noise = True

    def __init__(self, random: _Random):
        self.random = random

    @torch.no_grad()
    def act(self, behaviour: nn.Module, obs: Obs) -> Tensor:
        if self.random.random_left > 0:
            self.random.random_left -= 1
            return self.random.uniform()
        action: Tensor = behaviour(obs, self.random.normal())
        return action.float().clamp_(-1.0, 1.0)

    def restart(self, ended: Tensor) -> None: ...

    def state_dict(self) -> dict[str, Any]:
        return {"random": self.random.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.random.load_state_dict(state["random"])
