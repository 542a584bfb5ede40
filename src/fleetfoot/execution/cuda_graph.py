"""Updates as CUDA graphs: recorded once, and from then on a launch or two, however many kernels there are.

Each pattern of updates runs a few times as it is, and is then recorded: as two graphs (the batches; the updates), or as
one where each update changes what the next one draws. Random numbers come from the same generators in the same order,
so the weights are the same, but for rounding where compilation reorders sums.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fleetfoot.agents.contract import Agent, periods
from fleetfoot.execution.compile import Mode, notice
from fleetfoot.execution.learner import EagerLearner, Metrics, Pattern, means
from fleetfoot.rng import RandomStream

WARM_UPS = 2  # eager runs of a pattern before it is recorded
MOST_PATTERNS = 16  # each holds memory of its own
# To begin a recording waits for the device, which would end one in another thread. Reentrant: a topology may hold it
# around a learner's first updates.
RECORDING = threading.RLock()


def why_not_captured(agent: Agent, device: torch.device, world: int) -> str | None:
    """Why CUDA graphs cannot be used, or None. `world`: processes that share gradients."""
    if world > 1:
        return "gradients cross to other processes in the middle of an update"
    if device.type != "cuda":
        return f"there are none on {device.type}"
    if periods(agent) is None:
        return (
            f"{type(agent).__name__} declares no periods, so nobody knows which updates are alike"
        )
    return None


@dataclass
class Recorded:
    """The recording of one pattern of updates."""

    graphs: dict[str, torch.cuda.CUDAGraph]  # "sample" and "update", or all of it as "update"
    metrics: Metrics  # written anew by every replay
    batches: list[Any]  # likewise; held because the second graph reads them


class CapturedLearner(EagerLearner):
    """Updates as CUDA graphs, on a stream of their own."""

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        # Recorded kernels keep the priority of the stream. Simulators beside them have long kernels and fill the GPU;
        # the many short ones of an update must not queue behind those.
        self.stream: torch.cuda.Stream = torch.cuda.Stream(self.memory.device, priority=-1)  # type: ignore[no-untyped-call]
        self.recorded: dict[Pattern, Recorded] = {}
        self.gave_up = False

    @property
    def mode(self) -> Mode:
        return "captured" if self.recorded else super().mode

    def ready(self, count: int) -> bool:
        if count == 0 or self.gave_up or len(self.recorded) == MOST_PATTERNS:
            return True
        return self.pattern(count) in self.recorded

    def start(self, count: int) -> None:
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            super().start(count)

    def join(self) -> Metrics:
        torch.cuda.current_stream().wait_stream(self.stream)
        return super().join()

    def busy(self) -> bool:
        return not self.stream.query()

    def _updates(self, count: int) -> Metrics:
        if count == 0:
            return {}
        pattern = self.pattern(count)
        if pattern in self.recorded:
            self.agent.updates += count if self.counts else 0
        elif self.times_made.get(pattern, 0) < WARM_UPS or not self._record(pattern, count):
            return super()._updates(count)
        recorded = self.recorded[pattern]
        for name, graph in recorded.graphs.items():
            with self.timer(name):
                graph.replay()
        self._trim(count)
        return recorded.metrics

    def _record(self, pattern: Pattern, count: int) -> bool:
        """Record what an eager call would do now, without doing it. False where that is impossible."""
        if self.gave_up or len(self.recorded) == MOST_PATTERNS:
            return False
        before = self.agent.updates
        graphs: dict[str, torch.cuda.CUDAGraph] = {}
        batches: list[Any] = []
        sampler = self.memory.sampler
        drawn_from = generators(sampler) + generators(self.agent)
        states = [(generator, generator.get_state()) for generator in drawn_from]
        RECORDING.acquire()
        try:
            if sampler.prioritised:
                with self._graph(graphs, "update", sampler, self.agent):
                    metrics = means([self.learn(self.sample()) for _ in range(count)])
            else:
                with self._graph(graphs, "sample", sampler):
                    batches = [self.sample() for _ in range(count)]
                with self._graph(graphs, "update", self.agent):
                    metrics = means([self.learn(batch) for batch in batches])
        except RuntimeError as error:
            self.gave_up = True
            self.agent.updates = before
            self.recorded.clear()  # they draw from the generators as they were
            for generator, state in states:
                _renew(generator, state)
            reason = str(error).strip().splitlines()[0][:200]
            notice(f"the learner runs without CUDA graphs: {reason}.")
            return False
        finally:
            RECORDING.release()
        self.recorded[pattern] = Recorded(graphs, metrics, batches)
        return True

    @contextmanager
    def _graph(
        self, graphs: dict[str, torch.cuda.CUDAGraph], name: str, *drawing: object
    ) -> Iterator[None]:
        """Record as one graph; `drawing`: who draws random numbers inside."""
        graphs[name] = graph = torch.cuda.CUDAGraph()
        for owner in drawing:
            for generator in generators(owner):
                graph.register_generator_state(generator)
        # thread_local: a simulator may be busy with the same device in another thread.
        with torch.cuda.graph(graph, stream=self.stream, capture_error_mode="thread_local"):
            yield


def generators(owner: object) -> list[torch.Generator]:
    """All that an agent or a sampler draws from."""
    if (several := getattr(owner, "generators", None)) is not None:
        return list(several)
    values = list(vars(owner).values())
    plain = [value for value in values if isinstance(value, torch.Generator)]
    return plain + [
        g for value in values if isinstance(value, RandomStream) for g in value.generators
    ]


def _renew(generator: torch.Generator, state: Tensor) -> None:
    """Bring a generator back to a state, also where a recording that failed has left it waiting for its end."""
    fresh = torch.Generator(generator.device)
    fresh.set_state(state)
    generator.graphsafe_set_state(fresh)
