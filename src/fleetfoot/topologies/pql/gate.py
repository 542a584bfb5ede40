"""How stages that work at the same time keep their ratio."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Gate:
    """Keeps the stages of a pipeline at the same round while they work at the same time, each in a thread of its own.

    A stage may begin a round when the stage before it has finished that round, and when fewer than `lead` of its
    finished rounds wait for the stage after it. So no stage is ever more than `lead` rounds ahead of the next, none is
    ahead of the one before, and none waits for anything else. The rounds of the first stage are vec steps.
    """

    def __init__(self, stages: tuple[str, ...], *, lead: int, free_after: int | None = None):
        """`free_after`: from so many rounds on nobody waits for anybody; None: never."""
        self.stages, self.lead, self.free_after = stages, lead, free_after
        self.rounds = dict.fromkeys(stages, 0)  # finished
        self.waited = dict.fromkeys(stages, 0.0)  # seconds
        self.busy: set[str] = set()
        self.held = self.over = False
        self.error: BaseException | None = None
        self.changed = threading.Condition()

    def may_begin(self, stage: str, asked: int = 0) -> bool:
        """The next round, or the one after so many more that were asked for and are not finished."""
        at = self.stages.index(stage)
        mine = self.rounds[stage] + asked
        before = self.rounds[self.stages[at - 1]] if at else mine + 1
        if self.free_after is not None:
            return at == 0 or (not self.held and (mine < before or before > self.free_after))
        after = self.rounds[self.stages[at + 1]] if at + 1 < len(self.stages) else mine
        return mine < before and mine - after < self.lead

    def begin(self, stage: str) -> bool:
        """Wait until the stage may begin its next round. False: there is none any more. Raises what `fail` was told."""
        with self.changed:
            if not (self.over or self.may_begin(stage)):
                begun = time.perf_counter()
                self.changed.wait_for(lambda: self.over or self.may_begin(stage))
                self.waited[stage] += time.perf_counter() - begun
            if self.error is not None:
                raise self.error
            if not self.over:
                self.busy.add(stage)
            return not self.over

    def finish(self, stage: str) -> None:
        with self.changed:
            self.busy.discard(stage)
            self.rounds[stage] += 1
            self.changed.notify_all()

    @contextmanager
    def still(self) -> Iterator[None]:
        """For the first stage, between two rounds: until its end all others stand still, with nothing left to do, or
        (free) between two rounds. Raises what `fail` was told."""
        with self.changed:
            self.held = True
            self.changed.wait_for(lambda: self.over or (not self.busy and self._level()))
            if self.error is not None:
                raise self.error
        try:
            yield
        finally:
            with self.changed:
                self.held = False
                self.changed.notify_all()

    def _level(self) -> bool:
        return self.free_after is not None or len(set(self.rounds.values())) == 1

    def fail(self, error: BaseException) -> None:
        """A stage has come to grief: everybody stops, and the others are told why."""
        with self.changed:
            self.error = self.error or error
        self.stop()

    def stop(self) -> None:
        with self.changed:
            self.over = True
            self.changed.notify_all()
