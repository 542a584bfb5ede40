"""The clock of a run, which counts only training."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Clock:
    """Seconds of training, without those in which the clock was stopped."""

    def __init__(self, read: Callable[[], float] = time.perf_counter) -> None:
        self.read = read
        self.restart(0.0)

    def restart(self, seconds: float) -> None:
        """Set the clock to `seconds` and start it."""
        self.before = seconds  # counted until `running_since`
        self.running_since: float | None = self.read()

    def seconds(self) -> float:
        if self.running_since is None:
            return self.before
        return self.before + self.read() - self.running_since

    def stop(self) -> None:
        self.before, self.running_since = self.seconds(), None

    def resume(self) -> None:
        self.restart(self.before)

    def forget(self, seconds: float) -> None:
        """Subtract seconds that turned out not to be training."""
        self.before -= seconds

    @contextmanager
    def paused(self) -> Iterator[None]:
        was_running = self.running_since is not None
        self.stop()
        try:
            yield
        finally:
            if was_running:
                self.resume()
