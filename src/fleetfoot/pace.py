"""The ratio of learning to collecting, and how several threads keep it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fleetfoot.part import UserError, part


@part
class PaceConfig:
    updates_per_vec_step: float = 2.0
    """Updates after each vec step; 0.25 means one update every four steps."""
    warmup_vec_steps: int = 10
    """Vec steps collected before the first update."""

    def build(self) -> Pace:
        if not 0 <= self.updates_per_vec_step < float("inf"):
            raise UserError(
                f"pace.updates_per_vec_step must be 0 or more, not {self.updates_per_vec_step}."
            )
        return Pace(self)

    def updates_after(self, vec_steps: int) -> int:
        """Updates that a run of so many vec steps makes."""
        return int(max(0, vec_steps - self.warmup_vec_steps) * self.updates_per_vec_step)


class Pace:
    """Says how many updates are due. Over any stretch the count is exact to one update."""

    def __init__(self, cfg: PaceConfig):
        self.cfg = cfg
        self.vec_steps = 0
        self.held_vec_steps = 0

    def hold(self, vec_steps: int) -> None:
        """Owe nothing for so many vec steps, say because the replay has to fill again; they are not made up for."""
        self.held_vec_steps = vec_steps

    def owed(self) -> int:
        """Call once per vec step; returns the updates due after it."""
        before = self.cfg.updates_after(self.vec_steps)
        self.vec_steps += 1
        if self.held_vec_steps > 0:
            self.held_vec_steps -= 1
            return 0
        return self.cfg.updates_after(self.vec_steps) - before

    def state_dict(self) -> dict[str, Any]:
        return {"vec_steps": self.vec_steps, "held_vec_steps": self.held_vec_steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.vec_steps = state["vec_steps"]
        self.held_vec_steps = state["held_vec_steps"]


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


class Lead:
    """How far a learner that does not wait may run ahead of those who collect.

    Every row received allows to learn from `reuse` rows. What is not used is kept only up to the worth of `rows` rows:
    a learner that was slow for hours must not go on for hours when nothing arrives any more.
    """

    def __init__(self, reuse: float, *, rows: int, most_at_once: int):
        """`most_at_once`: rows that are asked for together."""
        self.reuse, self.most = reuse, max(reuse * rows, float(most_at_once))
        self.left = 0.0

    def earn(self, rows: int) -> None:
        self.left = min(self.most, self.left + self.reuse * rows)

    def allows(self, rows: int) -> bool:
        return self.left >= rows

    def spend(self, rows: int) -> None:
        self.left -= rows
