"""Ctrl-C, between two vec steps."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

from fleetfoot.run.ranks import ALONE, Ranks

AGREE_EVERY = 8  # vec steps between two questions of a rank to the others whether to stop


class Interrupt:
    """Turns the first Ctrl-C (or SIGTERM) into a flag, so that a run can stop between two steps and save."""

    def __init__(self, ranks: Ranks = ALONE) -> None:
        self.ranks = ranks
        self.asked = False  # here
        self.agreed = False  # by all ranks

    def stops(self, vec_steps: int) -> bool:
        """Is it time to stop? Call before every vec step. All ranks get the same answer, from time to time."""
        if self.ranks.world == 1 or vec_steps % AGREE_EVERY == 0:
            self.agreed = self.ranks.any(self.asked)
        return self.agreed

    def __enter__(self) -> Interrupt:
        self.before: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self.before[number] = signal.signal(number, self._ask)
        return self

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked:  # the second time the user means it
            raise KeyboardInterrupt
        self.asked = True

    def __exit__(self, *exc: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)
