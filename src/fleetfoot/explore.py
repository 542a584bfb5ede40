"""Explorers turn the output of the behaviour network into the action that is executed.

They own all exploration state of the environments.
"""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any, Generic, Literal, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn

from fleetfoot.config import at_least, part
from fleetfoot.data import Continuous, Discrete, EnvSpec, Obs
from fleetfoot.errors import UserError
from fleetfoot.rng import generator_state, restore_generator


class Explorer(Protocol):
    """Chooses the actions that are executed while collecting."""

    takes_noise: bool
    """Calls `behaviour(obs, noise)` rather than `behaviour(obs)`."""

    def act(self, behaviour: nn.Module, obs: Obs) -> Tensor:
        """The action to execute, inside the action space."""
        ...

    def restart(self, ended: Tensor) -> None:
        """Tell which environments ([N] bool) have just begun a new episode."""
        ...

    def skip(self, vec_steps: int) -> None:
        """Go on where schedules are after so many vec steps, which another worker made. Randomness stays one's own."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


@runtime_checkable
class ActsInTwoHalves(Protocol):
    """What an `Explorer` may offer besides: `act` in two halves, so that several explorers can share one call of a
    network, as those of several seeds do.

    `act(behaviour, obs)` is `choose(behaviour(obs, *inputs))` with `inputs` from `ask()`, or `choose(None)` where they
    are None.
    """

    def ask(self) -> tuple[Tensor, ...] | None:
        """What the network takes beside the observations: noise where `takes_noise`, nothing otherwise. None: the
        coming vec step needs no network. That depends on the number of vec steps alone. Call once per vec step.
        """
        ...

    def choose(self, output: Tensor | None) -> Tensor:
        """The action to execute, from what the network returned."""
        ...


class ExplorerConfig(Protocol):
    """What a recipe holds in the place of an explorer."""

    def build(self, spec: EnvSpec, *, seed: int, device: torch.device) -> Explorer: ...


def check_rungs(first: int, total: int | None, spec: EnvSpec) -> int:
    """The number of rungs of a ladder; UserError where the environments do not all find one."""
    total = spec.num_envs if total is None else total
    if first < 0 or first + spec.num_envs > total:
        raise UserError(
            f"a ladder of {total} rungs has no room for {spec.num_envs} environments from rung {first} on: "
            "raise explorer.total or lower explorer.first."
        )
    return total


def share_of(config: ExplorerConfig, first: int, total: int) -> ExplorerConfig:
    """The same explorer for one of several workers, whose environments begin at `first` of `total`.

    Where the recipe itself states rungs, those are of the first worker.
    """
    ladder: Any = config
    if not hasattr(config, "first"):
        return config
    rungs = {"first": ladder.first + first, "total": ladder.total or total}
    shared: ExplorerConfig = dataclasses.replace(ladder, **rungs)
    return shared


def check_behaviour(behaviour: nn.Module, takes_noise: bool) -> None:
    """Refuse an agent whose behaviour network speaks another language than the explorer.

    Explorers that read q-values and explorers that read actions are told apart earlier, by the action space: each
    refuses the other's when it is built, and so do the agents.
    """
    arguments = len(inspect.signature(behaviour.forward).parameters)
    if arguments == (2 if takes_noise else 1):
        return
    sampled, noisy = "AsSampledConfig", "NoiseLadderConfig"
    if takes_noise:
        raise UserError(f"this agent's policy does not sample: use {noisy}, not {sampled}.")
    raise UserError(f"this agent's policy samples by itself: use {sampled}, not {noisy}.")


class _Random:
    """A generator of its own, and a count of the uniformly random steps at the start."""

    def __init__(self, spec: EnvSpec, random_vec_steps: int, seed: int, device: torch.device):
        self.num_envs = spec.num_envs
        self.device = device
        self.random_left = random_vec_steps
        self.generator = torch.Generator(device).manual_seed(seed)

    def uniform(self) -> Tensor:
        """A random action for each environment, all equally likely."""
        raise NotImplementedError

    def share(self) -> Tensor:
        """Uniform on [0, 1), one number per environment."""
        return torch.rand(self.num_envs, generator=self.generator, device=self.device)

    def at_start(self) -> bool:
        """Is this vec step still one of the uniformly random ones? Call once per vec step."""
        if self.random_left == 0:
            return False
        self.random_left -= 1
        return True

    def skip(self, vec_steps: int) -> int:
        """Count so many vec steps as made; returns how many of them come after the random start."""
        skipped = min(self.random_left, vec_steps)
        self.random_left -= skipped
        return vec_steps - skipped

    def state_dict(self) -> dict[str, Any]:
        return {
            "generator": generator_state(self.generator),
            "random_left": self.random_left,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        restore_generator(self.generator, state["generator"])
        self.random_left = state["random_left"]


class _RandomVector(_Random):
    """Random continuous actions."""

    def __init__(self, spec: EnvSpec, random_vec_steps: int, seed: int, device: torch.device):
        if not isinstance(spec.action, Continuous):
            raise UserError(
                f"{spec.name} has discrete actions, which this explorer cannot make; choose an agent and an "
                "explorer for discrete actions, say DQNConfig and EpsilonLadderConfig."
            )
        super().__init__(spec, random_vec_steps, seed, device)
        self.shape = (spec.num_envs, spec.action.size)

    def uniform(self) -> Tensor:
        return torch.rand(self.shape, generator=self.generator, device=self.device) * 2 - 1

    def normal(self) -> Tensor:
        return torch.randn(self.shape, generator=self.generator, device=self.device)


class _RandomChoice(_Random):
    """Random discrete actions."""

    def __init__(self, spec: EnvSpec, random_vec_steps: int, seed: int, device: torch.device):
        if not isinstance(spec.action, Discrete):
            raise UserError(
                f"{spec.name} has continuous actions, but this explorer chooses among q-values; choose an "
                "explorer for continuous actions: NoiseLadderConfig, or AsSampledConfig where the policy samples."
            )
        super().__init__(spec, random_vec_steps, seed, device)
        self.count = spec.action.count

    def uniform(self) -> Tensor:
        shape = (self.num_envs,)
        return torch.randint(self.count, shape, generator=self.generator, device=self.device)

    def greedy_but(self, q: Tensor, epsilon: Tensor | float) -> Tensor:
        """The action of the largest q-value in q [N, actions]; with probability epsilon ([N], or one for all) any."""
        # Drawn for all and used where needed: the stream does not depend on data, nothing waits for the device.
        any_action, share = self.uniform(), self.share()
        return torch.where(share < epsilon, any_action, q.argmax(1))


R = TypeVar("R", bound=_Random)


class _Drawing(Generic[R]):
    """An explorer whose random numbers are all its state. Those with more add theirs."""

    takes_noise: bool = False
    random: R

    @torch.no_grad()
    def act(self, behaviour: nn.Module, obs: Obs) -> Tensor:
        inputs = self.ask()
        return self.choose(None if inputs is None else behaviour(obs, *inputs))

    def ask(self) -> tuple[Tensor, ...] | None:
        return None if self.random.at_start() else self.noise()

    def choose(self, output: Tensor | None) -> Tensor:
        return self.random.uniform() if output is None else self.explore(output)

    def noise(self) -> tuple[Tensor, ...]:
        """What the behaviour network takes beside the observations."""
        return ()

    def explore(self, output: Tensor) -> Tensor:
        """The action to execute after the random start, from what the behaviour network returned."""
        raise NotImplementedError

    def restart(self, ended: Tensor) -> None: ...

    def skip(self, vec_steps: int) -> None:
        self.random.skip(vec_steps)

    def state_dict(self) -> dict[str, Any]:
        return {"random": self.random.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.random.load_state_dict(state["random"])


@part
class NoiseLadderConfig:
    """Gaussian noise on the action, of a different strength in every environment."""

    std_min: float = 0.001
    std_max: float = 0.4
    redraw: Literal["episode", "never"] = "episode"
    """episode: each environment draws a new strength, uniform between the two, when its episode ends (FastTD3).
    never: evenly spaced from the first environment to the last, for ever (PQL)."""
    first: int = 0
    """The rung of this explorer's first environment, where several workers share one ladder (redraw="never")."""
    total: int | None = None
    """Rungs of the whole ladder; None: as many as there are environments here."""
    random_vec_steps: int = 0
    """Uniformly random actions for so many vec steps at the start."""

    def __post_init__(self) -> None:
        at_least(self, "explorer", std_min=0, std_max=self.std_min, first=0, random_vec_steps=0)

    def build(self, spec: EnvSpec, *, seed: int, device: torch.device) -> NoiseLadder:
        check_rungs(self.first, self.total, spec)
        return NoiseLadder(self, spec, seed, device)


class NoiseLadder(_Drawing[_RandomVector]):
    """Adds Gaussian noise, of a strength that each environment has of its own."""

    def __init__(self, cfg: NoiseLadderConfig, spec: EnvSpec, seed: int, device: torch.device):
        self.cfg = cfg
        self.random = _RandomVector(spec, cfg.random_vec_steps, seed, device)
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
    """Uniformly random actions for so many vec steps at the start."""

    def __post_init__(self) -> None:
        at_least(self, "explorer", random_vec_steps=0)

    def build(self, spec: EnvSpec, *, seed: int, device: torch.device) -> AsSampled:
        return AsSampled(_RandomVector(spec, self.random_vec_steps, seed, device))


class AsSampled(_Drawing[_RandomVector]):
    """Calls `behaviour(obs, noise)` with standard normal noise [N, A]: the network owns no randomness."""

    takes_noise = True

    def __init__(self, random: _RandomVector):
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
    longest: int = 16
    shared: bool = True
    """One k for all environments, as published: all draw new noise, each its own, at the same vec step. False: a k for
    each."""
    random_vec_steps: int = 0
    """Uniformly random actions for so many vec steps at the start."""

    def build(self, spec: EnvSpec, *, seed: int, device: torch.device) -> HeldNoise:
        if self.longest < 1:
            raise UserError(f"explorer.longest must be at least 1, not {self.longest}.")
        return HeldNoise(self, _RandomVector(spec, self.random_vec_steps, seed, device))


class HeldNoise(AsSampled):
    """Hands the behaviour network the same noise for several vec steps."""

    def __init__(self, cfg: HeldNoiseConfig, random: _RandomVector):
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


@part
class EpsilonAnnealConfig:
    """Epsilon-greedy, one epsilon for all environments, which falls linearly and then stays (DQN, Gorila)."""

    start: float = 1.0
    """Share of random actions at first."""
    end: float = 0.1
    """Share of random actions at last."""
    over_vec_steps: int = 10_000
    """Vec steps from the first to the last, counted from the end of `random_vec_steps`."""
    random_vec_steps: int = 0
    """Uniformly random actions for so many vec steps at the start."""

    def __post_init__(self) -> None:
        at_least(self, "explorer", over_vec_steps=1, random_vec_steps=0)
        if not (0.0 <= self.start <= 1.0 and 0.0 <= self.end <= 1.0):
            raise UserError(
                "explorer.start and end are shares of random actions and lie between 0 and 1, "
                f"not {self.start} and {self.end}."
            )

    def build(self, spec: EnvSpec, *, seed: int, device: torch.device) -> EpsilonAnneal:
        return EpsilonAnneal(self, _RandomChoice(spec, self.random_vec_steps, seed, device))


class EpsilonAnneal(_Drawing[_RandomChoice]):
    """Random actions with a probability that falls over time, the same in all environments."""

    def __init__(self, cfg: EpsilonAnnealConfig, random: _RandomChoice):
        self.cfg, self.random = cfg, random
        self.vec_steps = 0  # since the random start

    def epsilon(self) -> float:
        """The share of random actions at the coming vec step."""
        progress = min(1.0, self.vec_steps / self.cfg.over_vec_steps)
        return self.cfg.start + progress * (self.cfg.end - self.cfg.start)

    def explore(self, output: Tensor) -> Tensor:
        epsilon = self.epsilon()
        self.vec_steps += 1
        return self.random.greedy_but(output, epsilon)

    def skip(self, vec_steps: int) -> None:
        self.vec_steps += self.random.skip(vec_steps)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"vec_steps": self.vec_steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.vec_steps = state["vec_steps"]


@part
class EpsilonLadderConfig:
    """Epsilon-greedy, with an epsilon of its own for every environment, for ever (Ape-X).

    epsilon_i = epsilon^(1 + i / (total - 1) * alpha), i from 0. A ladder of one rung is `epsilon` itself.
    """

    epsilon: float = 0.4
    """Of the first environment, the most curious one."""
    alpha: float = 7.0
    """The last environment has epsilon^(1 + alpha)."""
    first: int = 0
    """The rung of this explorer's first environment, where several workers share one ladder."""
    total: int | None = None
    """Rungs of the whole ladder; None: as many as there are environments here."""
    random_vec_steps: int = 0
    """Uniformly random actions for so many vec steps at the start."""

    def __post_init__(self) -> None:
        at_least(self, "explorer", alpha=0, first=0, random_vec_steps=0)
        if not 0.0 <= self.epsilon <= 1.0:
            raise UserError(f"explorer.epsilon must lie between 0 and 1, not {self.epsilon}.")

    def build(self, spec: EnvSpec, *, seed: int, device: torch.device) -> EpsilonLadder:
        total = check_rungs(self.first, self.total, spec)
        rungs = ladder(self.epsilon, self.alpha, total)[self.first : self.first + spec.num_envs]
        random = _RandomChoice(spec, self.random_vec_steps, seed, device)
        return EpsilonLadder(rungs.to(device, torch.float32), random)


def ladder(epsilon: float, alpha: float, total: int) -> Tensor:
    """The epsilons of Ape-X, [total] float64, from the most curious to the least."""
    height = torch.arange(total, dtype=torch.float64) / max(1, total - 1)
    return epsilon ** (1.0 + alpha * height)


class EpsilonLadder(_Drawing[_RandomChoice]):
    """Random actions with a constant probability that each environment has of its own."""

    def __init__(self, epsilon: Tensor, random: _RandomChoice):
        self.epsilon, self.random = epsilon, random  # [N]

    def explore(self, output: Tensor) -> Tensor:
        return self.random.greedy_but(output, self.epsilon)


@part
class GreedyConfig:
    """The action of the largest q-value, always: for actors that only show how good the agent is."""

    random_vec_steps: int = 0
    """Uniformly random actions for so many vec steps at the start."""

    def __post_init__(self) -> None:
        at_least(self, "explorer", random_vec_steps=0)

    def build(self, spec: EnvSpec, *, seed: int, device: torch.device) -> EpsilonLadder:
        """A ladder of which every rung is zero."""
        nowhere = torch.zeros(spec.num_envs, device=device)
        return EpsilonLadder(nowhere, _RandomChoice(spec, self.random_vec_steps, seed, device))
