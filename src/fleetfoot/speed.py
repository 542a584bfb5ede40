"""Speed from outside: precision, compilation and CUDA graphs, applied to agents that know of none of them.

A learner makes the updates that are due: it draws batches, updates, and tells the replay the errors. The eager one does
just that. The captured one lets each pattern of updates run a few times as it is, records it as two CUDA graphs (the
batches; the updates), or as one where each update changes what the next one draws, and from then on replays those: two
launches, however many kernels there are, and nothing that waits for the device. Random numbers come from the same
generators in the same order, so both give the same weights, but for rounding where compilation reorders sums.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from fleetfoot.agents.agent import Agent, Pattern
from fleetfoot.data import Batch, Learned, Obs
from fleetfoot.generators import Noise
from fleetfoot.log.split import TimeSplit
from fleetfoot.replay.observations import Observations
from fleetfoot.replay.prefetch import PrefetchedReplay
from fleetfoot.replay.replay import Replay
from fleetfoot.replay.seeds import SeedsUniform

Mode = Literal["auto", "eager", "compiled", "captured"]
Precision = Literal["float32", "tf32", "bf16"]
Half = Literal["update", "update_critic", "update_policy"]
Metrics = dict[str, Tensor]
Gather = Callable[..., Batch | Obs]  # reads the rows drawn

WARM_UPS = 2  # eager runs of a pattern before it is recorded
MOST_PATTERNS = 16  # each holds memory of its own
# To begin a recording waits for the device, which would end one in another thread. Reentrant: a topology may hold it
# around a learner's first updates.
RECORDING = threading.RLock()


def learner(
    agent: Agent,
    replay: Replay | Observations,
    rows: int,
    *,
    half: Half = "update",
    precision: Precision,
    mode: Mode,
    device: torch.device,
    split: TimeSplit | None = None,
    world: int = 1,
) -> EagerLearner:
    """The learner of a recipe; `rows` is the batch size, `world` the number of processes that share gradients. `half`:
    which updates it makes; those of the policy alone need nothing but observations."""
    split = split or TimeSplit(device)
    update = updater(agent, half=half, precision=precision, mode=mode, device=device)
    mode = resolved(mode, device)
    gather: Gather = replay.gather
    if mode != "eager":
        gather = Compiled(replay.gather, "replay.gather")
    if mode == "captured":
        reason = why_not_captured(agent, replay, device, world)
        if reason is None:
            return CapturedLearner(agent, replay, rows, update, gather, split)
        _notice(f"the learner runs without CUDA graphs: {reason}.")
    return EagerLearner(agent, replay, rows, update, gather, split)


def resolved(mode: Mode, device: torch.device) -> Mode:
    if mode == "auto":
        return "captured" if device.type == "cuda" else "eager"
    return mode


def updater(
    agent: Agent,
    *,
    half: Half = "update",
    precision: Precision,
    mode: Mode,
    device: torch.device,
) -> Callable[[Any], Learned]:
    """`agent.update` (or a half of it), in the precision asked for and with compiled losses."""
    if resolved(mode, device) != "eager":
        torch._dynamo.reset()  # code that other runs of this process compiled counts against a limit
        for name in agent.losses:
            setattr(agent, name, Compiled(getattr(agent, name), name))
    update: Callable[[Any], Learned] = getattr(agent, half)
    # Of the process, so an earlier run's choice must not stay. On a CPU "high" may mean fewer bits, too.
    tf32 = precision == "tf32" and device.type == "cuda"
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    if precision != "bf16":
        return update

    def in_bf16(batch: Any) -> Learned:
        # No cache of cast weights: an update changes weights and reads them again inside this context.
        with torch.autocast(device.type, dtype=torch.bfloat16, cache_enabled=False):
            return update(batch)

    return in_bf16


def why_not_captured(
    agent: Agent, replay: Replay | Observations, device: torch.device, world: int
) -> str | None:
    """What stands against CUDA graphs, or None."""
    if world > 1:
        return "gradients cross to other processes in the middle of an update"
    if device.type != "cuda":
        return f"there are none on {device.type}"
    if isinstance(replay, PrefetchedReplay):
        return "batches are drawn ahead by a thread"
    return None


class EagerLearner:
    """Updates as they are written, on the stream of the caller."""

    def __init__(
        self,
        agent: Agent,
        replay: Replay | Observations,
        rows: int,
        update: Callable[[Any], Learned],
        gather: Gather,
        split: TimeSplit,
    ):
        self.agent, self.replay, self.rows, self.update = agent, replay, rows, update
        self.gather, self.split = gather, split
        self.found: Metrics = {}
        self.seen: dict[Pattern, int] = {}  # how often each pattern of updates has been made

    @property
    def mode(self) -> Mode:
        """How updates are executed by now."""
        compiled = (
            isinstance(self.gather, Compiled) and self.gather.function is not self.gather.eager
        )
        return "compiled" if compiled else "eager"

    def ready(self, count: int) -> bool:
        """Will the coming `count` updates find compiled what compiles at first use?"""
        return count == 0 or self.mode == "eager" or self.agent.pattern(count) in self.seen

    def __call__(self, count: int) -> Metrics:
        """Make `count` updates; returns what they found, each metric as its mean over those that found it."""
        self.start(count)
        return self.join()

    def start(self, count: int) -> None:
        """Begin with `count` updates. On a GPU they may go on while the caller uses the device for other things, as
        long as it leaves the agent and the replay alone until `join`."""
        self.found = self._updates(count)

    def join(self) -> Metrics:
        """From here on the updates count: what the caller asks of the device next comes after them."""
        return self.found

    def busy(self) -> bool:
        """Is the device still at it?"""
        return False

    def _updates(self, count: int) -> Metrics:
        if count > 0:
            pattern = self.agent.pattern(count)
            self.seen[pattern] = self.seen.get(pattern, 0) + 1
        found = []
        for _ in range(count):
            with self.split("sample"):
                batch = self.sample()
            with self.split("update"):
                found.append(self.learn(batch))
        self._trim(count)
        return means(found)

    def sample(self) -> Batch | Obs:
        if isinstance(self.replay, PrefetchedReplay):
            return self.replay.sample(self.rows)
        return self.gather(*self.replay.draw(self.rows))

    def learn(self, batch: Batch | Obs) -> Metrics:
        """One update, and what the replay is told of it."""
        learned = self.update(batch)
        if isinstance(self.replay, Replay) and isinstance(batch, Batch):
            self.replay.reprioritize(batch.row_id, learned.td_error)
        return learned.metrics

    def _trim(self, count: int) -> None:
        if isinstance(self.replay, Replay):
            self.replay.trim(count)


@dataclass
class Recorded:
    graphs: dict[str, torch.cuda.CUDAGraph]  # "sample" and "update", or all of it as "update"
    metrics: Metrics  # written anew by every replay
    batches: list[Batch | Obs]  # likewise; kept because the second graph reads them


class CapturedLearner(EagerLearner):
    """Updates as CUDA graphs, on a stream of their own."""

    def __init__(
        self,
        agent: Agent,
        replay: Replay | Observations,
        rows: int,
        update: Callable[[Any], Learned],
        gather: Gather,
        split: TimeSplit,
    ):
        super().__init__(agent, replay, rows, update, gather, split)
        self.stream: torch.cuda.Stream = torch.cuda.Stream(replay.device)  # type: ignore[no-untyped-call]
        self.recorded: dict[Pattern, Recorded] = {}
        self.gave_up = False

    @property
    def mode(self) -> Mode:
        return "captured" if self.recorded else super().mode

    def ready(self, count: int) -> bool:
        if count == 0 or self.gave_up or len(self.recorded) == MOST_PATTERNS:
            return True
        return self.agent.pattern(count) in self.recorded

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
        pattern = self.agent.pattern(count)
        if pattern in self.recorded:
            self.agent.updates += count
        elif self.seen.get(pattern, 0) < WARM_UPS or not self._record(pattern, count):
            return super()._updates(count)
        recorded = self.recorded[pattern]
        for name, graph in recorded.graphs.items():
            with self.split(name):
                graph.replay()
        self._trim(count)
        return recorded.metrics

    def _record(self, pattern: Pattern, count: int) -> bool:
        """Record what an eager call would do now, without doing it. False where that is impossible."""
        if self.gave_up or len(self.recorded) == MOST_PATTERNS:
            return False
        before = self.agent.updates
        graphs: dict[str, torch.cuda.CUDAGraph] = {}
        batches: list[Batch | Obs] = []
        sampler = self.replay.sampler
        states = [(each, each.get_state()) for each in generators(sampler) + generators(self.agent)]
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
            _notice(f"the learner runs without CUDA graphs: {reason}.")
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


def means(found: list[Metrics]) -> Metrics:
    """Each metric's mean over those that have it."""
    names = dict.fromkeys(name for each in found for name in each)
    gathered = {name: [each[name] for each in found if name in each] for name in names}
    return {
        name: values[0] if len(values) == 1 else torch.stack(values).double().mean(0)
        for name, values in gathered.items()
    }


def generators(owner: object) -> list[torch.Generator]:
    """All that an agent or a sampler draws from."""
    if isinstance(owner, SeedsUniform):
        return owner.generators
    held = list(vars(owner).values())
    plain = [value for value in held if isinstance(value, torch.Generator)]
    return plain + [g for value in held if isinstance(value, Noise) for g in value.generators]


def _renew(generator: torch.Generator, state: Tensor) -> None:
    """Bring a generator back to a state, also where a recording that failed has left it waiting for its end."""
    fresh = torch.Generator(generator.device)
    fresh.set_state(state)
    generator.graphsafe_set_state(fresh)


class Compiled:
    """A function through torch.compile; as it was, after one warning, where compilation fails."""

    def __init__(self, function: Callable[..., Any], name: str):
        self.eager, self.name = function, name
        self.function = torch.compile(function, dynamic=False)

    def __call__(self, *args: Any) -> Any:
        try:
            return self.function(*args)
        except Exception as error:
            if self.function is self.eager or not _is_compiler_error(error):
                raise
            reason = str(error).strip().splitlines()[0][:200]
            _notice(f"{self.name} runs uncompiled: {reason}")
            self.function = self.eager
            return self.eager(*args)


def _is_compiler_error(error: BaseException) -> bool:
    return type(error).__module__.startswith(("torch._dynamo", "torch._inductor"))


def _notice(message: str) -> None:
    warnings.warn(message, stacklevel=3)
