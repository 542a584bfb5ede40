"""The seconds that count as training."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Clock:
    """Seconds of training: everything but what happens while it stands still."""

    def __init__(self, read: Callable[[], float] = time.perf_counter) -> None:
        self.read = read
        self.restart(0.0)

    def restart(self, seconds: float) -> None:
        """Go on from so many seconds, now."""
        self.before = seconds
        self.running_since: float | None = self.read()

    def seconds(self) -> float:
        if self.running_since is None:
            return self.before
        return self.before + self.read() - self.running_since

    def stop(self) -> None:
        self.before, self.running_since = self.seconds(), None

    def go_on(self) -> None:
        self.restart(self.before)

    def forget(self, seconds: float) -> None:
        """So many of the seconds counted were no training after all."""
        self.before -= seconds

    @contextmanager
    def paused(self) -> Iterator[None]:
        ran = self.running_since is not None
        self.stop()
        try:
            yield
        finally:
            if ran:
                self.go_on()
