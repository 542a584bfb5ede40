"""Simulating and learning at the same time, in one process."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager

import torch
from torch import Tensor

from fleetfoot.data import Step
from fleetfoot.envs.vec_env import VecEnv
from fleetfoot.errors import Halted, UserError
from fleetfoot.execution import EagerLearner
from fleetfoot.guard import WATCH
from fleetfoot.log.timer import StepTimer
from fleetfoot.rollout import rollout
from fleetfoot.run.build import Parts
from fleetfoot.run.journal import Journal

TURN_SECONDS = 1e-4


def vec_steps(journal: Journal, parts: Parts, learner: EagerLearner) -> Generator[None]:
    """One vec step at a time, and meanwhile the updates that are owed after the one before it."""
    if not parts.env.spec.any_stream:
        raise UserError(
            f"{parts.env.spec.name} can only be stepped on the GPU's default stream: use --topology.no-overlap."
        )

    def ready() -> bool:
        return learner.ready(parts.owed)

    def start_updates() -> None:
        with journal.compiling(not ready()):
            learner.start(parts.owed)

    def finish_updates() -> None:
        journal.record_updates(parts.owed, learner.join())
        parts.owed = 0

    timer = journal.timer

    def settle() -> None:
        """The environments failed while updates were made, and these count."""
        if parts.owed:
            finish_updates()

    with closing(Background(parts.env, start_updates, settle, ready, timer)) as background:
        step_env = journal.compiles_first(background)
        for fresh in rollout(step_env, parts.agent.behaviour, parts.explorer, parts.obs, timer):
            with timer("wait"):
                finish_updates()
            with timer("append"):
                parts.append(fresh)
            journal.record_step(fresh, parts.episodes)
            if journal.finished:
                start_updates()
                finish_updates()
            journal.after_vec_step(parts)
            yield


@contextmanager
def quick_turns() -> Iterator[None]:
    """For threads that take turns at the interpreter. One that comes back from a call into the device waits for it up
    to the switch interval; Python's own, 5 ms, is as long as a vec step."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(TURN_SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


class Background:
    """Steps an environment in a thread, and on a GPU on a stream, of its own, while the caller does `meanwhile`.

    The two must not touch the same things: the environment is the thread's until its step is back.
    """

    def __init__(
        self,
        env: VecEnv,
        meanwhile: Callable[[], None],
        settle: Callable[[], None],
        ready: Callable[[], bool],
        timer: StepTimer,
    ):
        """Where `meanwhile` is not `ready`, one after the other, with the same result: two that record CUDA graphs at
        once may fail. `settle`: after `meanwhile`, where the step failed."""
        self.env, self.meanwhile, self.ready, self.timer = env, meanwhile, ready, timer
        self.settle = settle
        self.stack = ExitStack()
        self.stack.enter_context(quick_turns())
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="simulate")
        # One that hangs is not waited for.
        self.stack.callback(lambda: self.thread.shutdown(wait=not WATCH.abandoned))
        on_gpu = env.spec.device.type == "cuda"
        self.stream: torch.cuda.Stream | None = None
        if on_gpu:
            self.stream = torch.cuda.Stream(env.spec.device)  # type: ignore[no-untyped-call]

    def __call__(self, action: Tensor) -> Step:
        if not self.ready():
            with self.timer("simulate"):
                step = self.env.step(action)
            if self.stream is not None:
                torch.cuda.synchronize()
            self.meanwhile()
            return step
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream())
        coming = self.thread.submit(self._step, action)
        try:
            self.meanwhile()
        finally:
            try:
                step = WATCH.wait_for(coming)
            except Halted:
                self.settle()
                raise
        if self.stream is not None:
            torch.cuda.current_stream().wait_stream(self.stream)
        return step

    def _step(self, action: Tensor) -> Step:
        with torch.cuda.stream(self.stream), self.timer("simulate"):
            return self.env.step(action)

    def close(self) -> None:
        self.stack.close()
