"""What the rest of the library asks of an explorer."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from fleetfoot.data import EnvSpec, Obs
from fleetfoot.errors import UserError


class Explorer(Protocol):
    """Chooses the actions that are executed while collecting."""

    takes_noise: bool
    """Calls `behaviour(obs, noise)` rather than `behaviour(obs)`."""

    def act(self, behaviour: nn.Module, obs: Obs) -> Tensor:
        """The action to execute, inside the action space (see `ClipsLate` for the exception)."""
        ...

    def restart(self, ended: Tensor) -> None:
        """Tell which environments ([N] bool) have just begun a new episode."""
        ...

    def skip(self, vec_steps: int) -> None:
        """Advance schedules by vec steps that another worker made. The random numbers do not change."""
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


@runtime_checkable
class ClipsLate(Protocol):
    """What an `Explorer` may offer besides: its actions may lie outside the action space, and are stored as they are,
    because an on-policy agent needs the probability of what its policy drew."""

    def executed(self, action: Tensor) -> Tensor:
        """What the environments execute for such an action: the nearest one that they know."""
        ...


class ExplorerConfig(Protocol):
    """What a recipe holds in the place of an explorer."""

    def build(self, spec: EnvSpec, *, seed: int, device: torch.device) -> Explorer: ...


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
    """Refuse an agent whose behaviour network does not return what the explorer reads.

    Explorers that read q-values and explorers that read actions are told apart earlier, by the action space: each
    refuses the other's when it is built, and so do the agents.
    """
    arguments = len(inspect.signature(behaviour.forward).parameters)
    if arguments == (2 if takes_noise else 1):
        return
    sampled, noisy = "AsSampledConfig", "NoiseLadderConfig"
    if takes_noise:
        raise UserError(f"this agent's policy does not sample: use {noisy}, not {sampled}.")
    raise UserError(f"this agent's policy samples its own actions: use {sampled}, not {noisy}.")
