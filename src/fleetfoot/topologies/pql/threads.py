"""The stages as threads of one process, on one device. The actor works in the thread that trains; on a GPU each learner
has a stream of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import torch

from fleetfoot.config import part
from fleetfoot.data import EnvSpec, Transition
from fleetfoot.execution import RECORDING, resolved
from fleetfoot.recipe import Recipe
from fleetfoot.run.interrupt import Interrupt
from fleetfoot.run.journal import State
from fleetfoot.system import usable_cores
from fleetfoot.topologies.overlap import quick_turns
from fleetfoot.topologies.pql.exchange import Inbox, Setup, Versions, copied, parcel
from fleetfoot.topologies.pql.schedule import Round, share_of
from fleetfoot.topologies.pql.stages import (
    STAGES,
    Actor,
    CriticLearner,
    PolicyLearner,
    Stage,
    synchronize,
)

if TYPE_CHECKING:
    from fleetfoot.topologies.pql.loop import Coordinator

SETTLED = 16  # rounds with updates after which a learner has compiled and captured what it uses


@part
class InProcessConfig:
    """Threads of one process, on one device."""

    @contextmanager
    def open(
        self, recipe: Recipe, state: State | None, same_rows: bool, interrupt: Interrupt
    ) -> Iterator[Threads]:
        device = recipe.torch_device()
        if device.type == "cuda" and device.index is not None:
            torch.cuda.set_device(device)  # the current streams are those of this device
        each = 1 if device.type == "cuda" else len(STAGES)
        torch.set_num_threads(recipe.threads or max(1, usable_cores() // each))
        with ExitStack() as stack:
            actor = Actor(recipe, device, Setup())
            stack.callback(actor.close)
            setup = Setup(actor.env.spec, same_rows)
            policy = PolicyLearner(recipe, device, setup)
            setup = setup._replace(bytes_beside=policy.bytes_to_fill)
            critic = CriticLearner(recipe, device, setup)
            stages = {"actor": actor, "critic": critic, "policy": policy}
            if state is not None:
                for name, stage in stages.items():
                    stage.load(share_of(name, state))
            threads = Threads(device, stages)
            threads.spec = actor.env.spec
            threads.eager = resolved(recipe.execution, device) == "eager"
            threads.start()
            stack.callback(threads.stop)
            yield threads


class Threads:
    """Carries weights and vec steps between the stages by copies on their device."""

    ahead = 1  # rounds of a stage begun at once
    all_here = True  # all stages are in this process
    coordinator: Coordinator
    spec: EnvSpec

    def __init__(self, device: torch.device, stages: Mapping[str, Stage]):
        self.device, self.stages, self.agent = device, stages, stages["actor"].agent
        self.versions = {
            name: Versions(stage.weights(name))
            for stage in self.stages.values()
            for name in stage.writes
        }
        self.inboxes: dict[str, Inbox[Transition]] = {stage: Inbox() for stage in STAGES}
        # Rounds to make. None ends a learner's thread, and wakes up the actor's.
        self.queues: dict[str, SimpleQueue[Round | None]] = {s: SimpleQueue() for s in STAGES}
        self.rounds_with_updates = {"critic": 0, "policy": 0}
        self.eager = False  # nothing is compiled or captured
        self.error: BaseException | None = None
        self.running = ExitStack()

    def start(self) -> None:
        synchronize(self.device)  # what was built on this thread's stream is there
        self.running.enter_context(quick_turns())
        for stage in self.rounds_with_updates:
            thread = threading.Thread(target=self._serve, args=(stage,), name=f"{stage} learner")
            thread.start()
            self.running.callback(thread.join)
            self.running.callback(self.queues[stage].put, None)

    def stop(self) -> None:
        self.running.close()

    def _serve(self, stage: str) -> None:
        """A learner's thread."""
        try:
            stream = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None  # type: ignore[no-untyped-call]
            with torch.cuda.stream(stream):
                while (planned := self.queues[stage].get()) is not None:
                    self._make(planned)
                    self.queues["actor"].put(None)
        except BaseException as error:
            self.error = self.error or error
            self.queues["actor"].put(None)

    def _make(self, planned: Round) -> None:
        """A round, in the thread of its stage."""
        stage = self.stages[planned.stage]
        with self._one_at_a_time():
            items = self.inboxes[planned.stage].open([block.data for block in planned.blocks])
            selected = [stage.select(item) for item in items]
            outcome = stage.round(planned.order(), self.versions, selected)
            for name in outcome.changed:
                self.versions[name].publish()
            on_gpu = self.device.type == "cuda"
            fresh = copied(outcome.fresh) if on_gpu else outcome.fresh
            data = None if fresh is None else parcel(fresh)
        if planned.stage in self.rounds_with_updates:
            self.rounds_with_updates[planned.stage] += planned.amount > 0
        self.coordinator.finished(planned, outcome, data)

    @contextmanager
    def _one_at_a_time(self) -> Iterator[None]:
        """For a stage's round. Until both learners have compiled and captured what they will use, no two at once: torch
        compiles one thread's modules with all of them patched, and a simulator may record CUDA graphs of its own."""
        if self.eager or min(self.rounds_with_updates.values()) >= SETTLED:
            yield
            return
        with RECORDING:
            yield
            synchronize(self.device)

    def submit(self, planned: Round) -> None:
        self.queues[planned.stage].put(planned)

    def wait_until(self, done: Callable[[], bool]) -> None:
        """Make the actor's rounds until then. Raises what a learner raised."""
        while not done():
            planned = self.queues["actor"].get()
            if self.error is not None:
                raise self.error
            if planned is not None:
                self._make(planned)

    def run(self, planned: Round) -> None:
        """One round in this thread, while all stages are idle."""
        synchronize(self.device)
        self._make(planned)
        synchronize(
            self.device
        )  # the learners continue with what was written on this thread's stream

    def ask(self, stage: str, method: str, *arguments: Any) -> Any:
        """What a stage answers, while all are idle."""
        return getattr(self.stages[stage], method)(*arguments)

    def metrics(self) -> dict[str, float]:
        return {}

    def leave_actor(self) -> bool:
        return True
