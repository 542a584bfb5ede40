"""Explorers for continuous actions: noise on the action, or for a policy that samples."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from fleetfoot.config import at_least, part
from fleetfoot.data import EnvSpec
from fleetfoot.explore.drawing import Drawing, RandomVector, check_rungs


@part
class NoiseLadderConfig:
    """Gaussian noise on the action, of a different strength in every environment."""

    std_min: float = 0.001
    """Smallest standard deviation of the noise."""
    std_max: float = 0.4
    """Largest standard deviation of the noise."""
    redraw: Literal["episode", "never"] = "episode"
    """episode: each environment draws a new strength, uniform between the two, when its episode ends (FastTD3).
    never: evenly spaced from the first environment to the last, and constant (PQL)."""
    first: int = 0
    """The rung of this explorer's first environment, if several workers share one ladder (redraw="never")."""
    total: int | None = None
    """Rungs of the whole ladder; None: as many as there are environments here."""
    random_vec_steps: int = 0
    """Vec steps of uniformly random actions at the start."""

    def __post_init__(self) -> None:
        at_least(self, "explorer", std_min=0, std_max=self.std_min, first=0, random_vec_steps=0)

    def build(self, spec: EnvSpec, *, seed: int, device: torch.device) -> NoiseLadder:
        check_rungs(self.first, self.total, spec)
        return NoiseLadder(self, spec, seed, device)


class NoiseLadder(Drawing[RandomVector]):
    """Adds Gaussian noise, of a strength that each environment has of its own."""

    def __init__(self, cfg: NoiseLadderConfig, spec: EnvSpec, seed: int, device: torch.device):
        self.cfg = cfg
        self.random = RandomVector(spec, cfg.random_vec_steps, seed, device)
        if cfg.redraw == "episode":
            self.std = self._draw()
        else:
            total = spec.num_envs if cfg.total is None else cfg.total
            whole = torch.linspace(cfg.std_min, cfg.std_max, total, device=device)
            self.std = whole[cfg.first : cfg.first + spec.num_envs]

    def _draw(self) -> Tensor:
        return self.cfg.std_min + self.random.share() * (self.cfg.std_max - self.cfg.std_min)

    def explore(self, output: Tensor) -> Tensor:
        noise = self.std.unsqueeze(1) * self.random.normal()
        return (output.float() + noise).clamp_(-1.0, 1.0)

    def restart(self, ended: Tensor) -> None:
        if self.cfg.redraw == "episode":
            # Drawn for all and kept where needed: the stream does not depend on data, nothing waits for the device.
            self.std = torch.where(ended, self._draw(), self.std)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"std": self.std}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.std = state["std"].to(self.random.device)


@part
class AsSampledConfig:
    """The behaviour network's own samples, for stochastic policies."""

    random_vec_steps: int = 0
    """Vec steps of uniformly random actions at the start."""

    def __post_init__(self) -> None:
        at_least(self, "explorer", random_vec_steps=0)

    def build(self, spec: EnvSpec, *, seed: int, device: torch.device) -> AsSampled:
        return AsSampled(RandomVector(spec, self.random_vec_steps, seed, device))


class AsSampled(Drawing[RandomVector]):
    """Calls `behaviour(obs, noise)` with standard normal noise [N, A]: the network owns no randomness."""

    takes_noise = True

    def __init__(self, random: RandomVector):
        self.random = random

    def noise(self) -> tuple[Tensor, ...]:
        return (self.random.normal(),)

    def explore(self, output: Tensor) -> Tensor:
        return output.float().clamp(-1.0, 1.0)


@part
class HeldNoiseConfig:
    """The behaviour network's own samples, with noise that is held for k vec steps at a time (FlashSAC).

    k follows a truncated zeta law: P(k) is proportional to k^-exponent, k = 1..longest. The end of an episode changes
    nothing.
    """

    exponent: float = 2.0
    """Exponent of the law; larger: shorter runs of the same noise."""
    longest: int = 16
    """Longest run, in vec steps."""
    shared: bool = True
    """One k for all environments, as published: all draw new noise at the same vec step. False: a k for each."""
    random_vec_steps: int = 0
    """Vec steps of uniformly random actions at the start."""

    def __post_init__(self) -> None:
        at_least(self, "explorer", exponent=0, longest=1, random_vec_steps=0)

    def build(self, spec: EnvSpec, *, seed: int, device: torch.device) -> HeldNoise:
        return HeldNoise(self, RandomVector(spec, self.random_vec_steps, seed, device))


class HeldNoise(AsSampled):
    """Hands the behaviour network the same noise for several vec steps."""

    def __init__(self, cfg: HeldNoiseConfig, random: RandomVector):
        super().__init__(random)
        device, runs = random.device, 1 if cfg.shared else random.num_envs
        odds = torch.arange(1, cfg.longest + 1, dtype=torch.float64) ** -cfg.exponent
        self.ends = (odds.cumsum(0) / odds.sum())[:-1].to(device, torch.float32)
        self.held = torch.zeros(random.shape, device=device)
        self.left = torch.zeros(runs, 1, dtype=torch.int64, device=device)  # vec steps

    def noise(self) -> tuple[Tensor, ...]:
        # Drawn at every step and kept where needed: the stream does not depend on data, nothing waits for the device.
        fresh, length = self.random.normal(), self._lengths()
        over = self.left == 0
        self.held = torch.where(over, fresh, self.held)
        self.left = torch.where(over, length, self.left) - 1
        return (self.held,)

    def _lengths(self) -> Tensor:
        share = torch.rand(
            self.left.shape, generator=self.random.generator, device=self.random.device
        )
        return 1 + torch.searchsorted(self.ends, share, right=True)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"held": self.held, "left": self.left}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.held = state["held"].to(self.random.device)
        self.left = state["left"].to(self.random.device)
