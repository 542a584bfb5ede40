"""Batches drawn ahead: a thread samples the next ones while the learner works on the present one (Ape-X).

A batch drawn ahead knows nothing of what came after it: rows appended since, priorities changed since. Rows that are
gone when their errors come back are ignored, as always (see `Replay.reprioritize`).

Whoever changes or saves the replay and the thread that samples take turns, so a batch is never drawn from a state in
between. With nothing appended meanwhile the batches are those of the replay itself, in the same order.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from fleetfoot.data import Batch, Transition
from fleetfoot.replay.replay import Replay
from fleetfoot.replay.samplers import Drawn


@contextmanager
def prefetching(replay: Replay, rows: int, depth: int) -> Iterator[Replay]:
    """The same replay, with up to `depth` batches of `rows` drawn ahead; 0: the replay itself."""
    if depth == 0:
        yield replay
        return
    ahead = PrefetchedReplay(replay, rows, depth)
    try:
        yield ahead
    finally:
        ahead.close()


class PrefetchedReplay(Replay):
    """All of a replay. `sample` hands out what the thread has drawn; it begins with the first that is asked for."""

    def __init__(self, replay: Replay, rows: int, depth: int):
        super().__init__(replay.cfg, replay.ring, replay.sampler, replay.gamma)
        self.rows, self.depth = rows, depth
        self.turn = threading.RLock()  # held by whoever touches the replay
        self.ready: deque[Batch] = deque()
        self.changed = threading.Condition()  # of the four below and `ready`
        self.thread: threading.Thread | None = None
        self.error: BaseException | None = None
        self.closed = False

    def sample(self, rows: int) -> Batch:
        assert rows == self.rows
        with self.changed:
            assert not self.closed
            if self.thread is None:
                # A daemon: should the learner's process end in a way that skips `close`, it ends as well.
                self.thread = threading.Thread(target=self._fill, name="prefetch", daemon=True)
                self.thread.start()
            self.changed.wait_for(lambda: self.ready or self.error is not None)
            if self.error is not None:
                raise self.error
            self.changed.notify_all()
            return self.ready.popleft()

    def _fill(self) -> None:
        try:
            while self._has_room():
                with self.turn:
                    batch = super().sample(self.rows)
                with self.changed:
                    self.ready.append(batch)
                    self.changed.notify_all()
        except BaseException as error:  # the learner is told
            with self.changed:
                self.error = error
                self.changed.notify_all()

    def _has_room(self) -> bool:
        """Wait for it; False: no batch is wanted any more."""
        with self.changed:
            self.changed.wait_for(lambda: self.closed or len(self.ready) < self.depth)
            return not self.closed

    def close(self) -> None:
        """Wait for the thread's end. The replay can still be saved."""
        with self.changed:
            self.closed = True
            self.ready.clear()
            self.changed.notify_all()
        if self.thread is not None:
            self.thread.join()

    def append(self, step: Transition, td_error: Tensor | None = None, writer: int = 0) -> None:
        with self.turn:
            super().append(step, td_error, writer)

    def append_lines(
        self, steps: Sequence[Transition], td_error: Tensor | None = None, writer: int = 0
    ) -> None:
        with self.turn:
            super().append_lines(steps, td_error, writer)

    def cut(self, writer: int | None = None) -> None:
        with self.turn:
            super().cut(writer)

    def draw(self, rows: int) -> Drawn:
        with self.turn:
            return super().draw(rows)

    def reprioritize(self, row_id: Tensor, td_error: Tensor | None) -> None:
        with self.turn:
            super().reprioritize(row_id, td_error)

    def trim(self, updates: int) -> None:
        with self.turn:
            super().trim(updates)

    def state_dict(self) -> dict[str, Any]:
        """Sampling changes nothing of it but the random state, which is a copy: it may go on while this is written."""
        with self.turn:
            return super().state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert self.thread is None  # what was drawn ahead would be of the state before
        super().load_state_dict(state)
