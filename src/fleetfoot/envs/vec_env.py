"""The environment contract. `fleetfoot.envs.check.check_env` tests an adapter against it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fleetfoot.data import EnvSpec, Obs, Step
from fleetfoot.errors import UserError


class VecEnv(Protocol):
    """N environments that step together and restart by themselves.

    The tensors handed out belong to the caller: a later step never writes to them.
    """

    spec: EnvSpec

    def reset(self) -> Obs:
        """Start a new episode everywhere."""
        ...

    def step(self, action: Tensor) -> Step:
        """Execute `action` ([N, A] in [-1, 1], or [N] int64) and restart the environments whose episode ended."""
        ...

    def state_dict(self) -> dict[str, Any] | None:
        """All that is needed to continue exactly (simulator, clocks, random states), or None if that is impossible."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> Obs:
        """Go back to a saved state; returns the observations to act on, as `reset` does."""
        ...

    def render(self, index: int = 0) -> NDArray[np.uint8]:
        """A picture [H, W, 3] of one environment. Raises `UserError` where that is impossible."""
        ...

    def close(self) -> None: ...


class EnvFault(Exception):  # noqa: N818
    """One environment of a set misbehaved. An adapter that knows which one raises this; `guard` makes it one line."""

    def __init__(self, what: str, *, who: str = "environment", index: int = 0, seed: int = 0):
        super().__init__(what)
        self.what, self.who, self.index, self.seed = what, who, index, seed


def check_module(name: str) -> None:
    """UserError where a stored Gymnasium id, as "module:Id-v0", would import a module that this program has not."""
    module, colon, _ = name.rpartition(":")
    if colon and module not in sys.modules:
        raise UserError(
            f"this run's environment {name!r:.80} is made by the Python module {module!r:.80}; "
            f"if you trust that, name it: --import {module:.80}"
        )


@runtime_checkable
class TwoHalves(Protocol):
    """What a `VecEnv` may offer besides: its step in two halves, so that several sets can work at the same time.

    `step(action)` is `send(action)` and then `receive()`. Nothing else is asked of it in between.
    """

    def send(self, action: Tensor) -> None:
        """Begin a step, and wait for nothing."""
        ...

    def receive(self) -> Step:
        """Wait for the end of the step that was begun."""
        ...


class EnvConfig(Protocol):
    """The part of a recipe that names an environment."""

    def build(self, num_envs: int, seed: int, device: torch.device) -> VecEnv: ...

    def for_evaluation(self) -> EnvConfig:
        """The same task without what only training should see (randomisation, clipped or reshaped rewards)."""
        ...


def simulated_on_cpu(config: EnvConfig) -> bool:
    """Are these environments simulated on the CPU, whatever device they hand their tensors to?

    A config says so in a class variable `on_host`, which is true; those that say nothing simulate on the device they
    are built for.
    """
    return bool(getattr(config, "on_host", False))


@contextmanager
def closed_on_error(env: VecEnv) -> Iterator[None]:
    """Around the building of what uses `env`. Simulators may have processes, which must not outlive a failure."""
    try:
        yield
    except BaseException:
        env.close()
        raise
