"""A learner makes the updates that are due: it draws batches, updates the agent, and tells the memory the errors.

It asks little of the memory it draws from, so that one learner serves a replay, a memory of observations alone, and the
rollouts of on-policy agents (`replay/rollouts.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from fleetfoot.agents.contract import Agent, every, periods
from fleetfoot.data import UpdateResult
from fleetfoot.errors import UserError
from fleetfoot.execution.compile import Compiled, Half, Mode
from fleetfoot.log.timer import StepTimer

Metrics = dict[str, Tensor]
Pattern = tuple[int, tuple[bool, ...]]


class Draws(Protocol):
    """The part of a memory that draws random numbers, from generators or `RandomStream`s among its attributes."""

    @property
    def prioritised(self) -> bool:
        """Does an update change what the next one draws?"""
        ...


class Memory(Protocol):
    """What a learner draws from. A memory may also have `reprioritize` and `trim` (below)."""

    @property
    def device(self) -> torch.device: ...

    @property
    def sampler(self) -> Draws: ...

    def draw(self, rows: int) -> tuple[Any, ...]:
        """Choose the rows of one batch."""
        ...

    @property
    def gather(self) -> Callable[..., Any]:
        """Reads what `draw` chose: the batch, as `Agent.update` takes it. It may be compiled, so it reads the device's
        counters and not the host's, and draws nothing."""
        ...


@runtime_checkable
class TakesErrors(Protocol):
    """A memory that wants to know what each update found."""

    def reprioritize(self, row_id: Tensor, td_error: Tensor | None) -> None:
        """The absolute errors [B] of the rows of a batch."""
        ...


@runtime_checkable
class Trims(Protocol):
    """A memory that lets rows go after updates."""

    def trim(self, updates: int) -> None:
        """So many updates were made since the last call."""
        ...


class EagerLearner:
    """Updates as they are written, on the stream of the caller."""

    def __init__(
        self,
        agent: Agent,
        memory: Memory,
        rows: int,
        update: Callable[[Any], UpdateResult],
        gather: Callable[..., Any],
        timer: StepTimer,
        half: Half = "update",
    ):
        self.agent, self.memory, self.rows, self.update = agent, memory, rows, update
        self.gather, self.timer = gather, timer
        self.half = half
        self.counts = half != "update_policy"  # those do not count as updates of the agent
        self.periods = (periods(agent) or ()) if self.counts else ()
        self.takes_errors = memory if isinstance(memory, TakesErrors) else None
        self.trims = memory if isinstance(memory, Trims) else None
        self.metrics: Metrics = {}
        self.times_made: dict[Pattern, int] = {}  # how often each pattern of updates has been made

    @property
    def mode(self) -> Mode:
        """How updates are executed by now."""
        compiled = (
            isinstance(self.gather, Compiled) and self.gather.function is not self.gather.eager
        )
        return "compiled" if compiled else "eager"

    def pattern(self, count: int) -> Pattern:
        """What of the coming `count` updates the host decides: where two patterns are equal, so are the operations."""
        now = self.agent.updates
        due = (every(period, now, count, phase) for period, phase in self.periods)
        return count, tuple(flag for flags in due for flag in flags)

    def ready(self, count: int) -> bool:
        """Will the coming `count` updates find compiled what compiles at first use?"""
        return count == 0 or self.mode == "eager" or self.pattern(count) in self.times_made

    def __call__(self, count: int) -> Metrics:
        """Make `count` updates; returns what they found, each metric as its mean over those that found it."""
        self.start(count)
        return self.join()

    def start(self, count: int) -> None:
        """Begin with `count` updates. On a GPU they may go on while the caller uses the device for other things, as
        long as it leaves the agent and the memory alone until `join`."""
        self.metrics = self._updates(count)

    def join(self) -> Metrics:
        """From here on the updates count: what the caller asks of the device next comes after them."""
        return self.metrics

    def busy(self) -> bool:
        """Are updates still running on the device?"""
        return False

    def _updates(self, count: int) -> Metrics:
        if count > 0:
            pattern = self.pattern(count)
            self.times_made[pattern] = self.times_made.get(pattern, 0) + 1
        metrics = []
        for _ in range(count):
            with self.timer("sample"):
                batch = self.sample()
            with self.timer("update"):
                metrics.append(self.learn(batch))
        self._trim(count)
        return means(metrics)

    def sample(self) -> Any:
        return self.gather(*self.memory.draw(self.rows))

    def learn(self, batch: Any) -> Metrics:
        """One update, and what the memory is told of it."""
        before = self.agent.updates
        result = self.update(batch)
        name = f"{type(self.agent).__name__}.{self.half}"
        if self.counts and self.agent.updates != before + 1:
            raise UserError(f"{name} must add 1 to its `updates`.")
        if not isinstance(result, UpdateResult):
            raise UserError(f"{name} must return an UpdateResult, not a {type(result).__name__}.")
        for metric, value in result.metrics.items():
            if not isinstance(value, Tensor):
                raise UserError(
                    f"{name} must return metrics as tensors; {metric} is a {type(value).__name__}."
                )
        if self.takes_errors is not None:
            self.takes_errors.reprioritize(batch.row_id, result.td_error)
        return result.metrics

    def _trim(self, count: int) -> None:
        if self.trims is not None:
            self.trims.trim(count)


def means(found: list[Metrics]) -> Metrics:
    """Each metric's mean over those that have it."""
    names = dict.fromkeys(name for metrics in found for name in metrics)
    gathered = {name: [metrics[name] for metrics in found if name in metrics] for name in names}
    return {
        name: values[0] if len(values) == 1 else torch.stack(values).double().mean(0)
        for name, values in gathered.items()
    }
