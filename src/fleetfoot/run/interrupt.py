"""Ctrl-C, SIGTERM and SIGHUP end a run between two vec steps."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

from fleetfoot.evaluate import STOPPING
from fleetfoot.guard import WATCH
from fleetfoot.run.ranks import ALONE, Ranks

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
AGREE_EVERY = 8  # vec steps; ranks exchange at these intervals whether one of them must stop


class Interrupt:
    """Turns the first Ctrl-C (or SIGTERM, or SIGHUP of a closed terminal) into a flag, so that a run can stop between
    two vec steps, or cut an evaluation, and save. The second one raises KeyboardInterrupt. Environments that hang
    are not waited for."""

    def __init__(self, ranks: Ranks = ALONE) -> None:
        self.ranks = ranks
        self.asked = False  # this process was asked to stop
        self.agreed = False  # all ranks have agreed to stop

    def stops(self, vec_steps: int) -> bool:
        """Must the run stop? Call before every vec step. All ranks stop before the same one."""
        if self.ranks.world == 1 or vec_steps % AGREE_EVERY == 0:
            self.agreed = self.ranks.any(self.asked)
        return self.agreed

    def __enter__(self) -> Interrupt:
        self.previous_handlers: dict[int, Any] = {}
        STOPPING.clear()
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                    continue  # nohup
                self.previous_handlers[number] = signal.signal(number, self._handle)
        return self

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        WATCH.hurry()
        if self.ranks.world == 1:  # several finish what they do together
            STOPPING.set()

    def __exit__(self, *exc: object) -> None:
        STOPPING.clear()
        for number, handler in self.previous_handlers.items():
            signal.signal(number, handler)
