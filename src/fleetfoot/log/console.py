"""What a person watches while a training runs."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from datetime import timedelta

import rich.console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fleetfoot.log.meter import EVAL_RETURN, Counters

WINDOW = 30  # flushes over which speeds are averaged


class Console:
    """A live bar in a terminal; elsewhere one plain line every `every_seconds`.

    Speeds and the time left go by the training clock, so evaluation does not blur them.
    """

    def __init__(
        self,
        total_vec_steps: int,
        *,
        every_seconds: float = 10.0,
        best: float | None = None,
        console: rich.console.Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.total_vec_steps, self.every_seconds = total_vec_steps, every_seconds
        self._console = console or rich.console.Console()
        self._clock = clock
        self._recent: deque[Counters] = deque(maxlen=WINDOW)
        self._training: float | None = None  # mean return of the episodes that ended last
        self._latest: float | None = None  # that of the last evaluation
        self._best = best
        self._line = ""
        self._printed: tuple[str, float] | None = None  # the last plain line and when
        self._live: Live | None = None

    def write(self, counters: Counters, metrics: Mapping[str, float]) -> None:
        self._training = metrics.get("episode/return", self._training)
        if EVAL_RETURN in metrics:
            self._latest = metrics[EVAL_RETURN]
            self._best = max(self._latest, self._best if self._best is not None else self._latest)
        self._recent.append(counters)
        self._line = self._describe()
        if self._console.is_terminal:
            if self._live is None:
                # Drawn by a thread of its own, four times a second; this method only sets values.
                self._live = Live(
                    get_renderable=self._render, console=self._console, refresh_per_second=4
                )
                self._live.start()
        elif self._printed is None or self._clock() - self._printed[1] >= self.every_seconds:
            self._print()

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
        elif self._printed is not None and self._printed[0] != self._line:
            self._print()

    def _print(self) -> None:
        print(self._line, file=self._console.file, flush=True)
        self._printed = self._line, self._clock()

    def _render(self) -> Table:
        view = Table.grid(expand=True)
        done = self._recent[-1].vec_steps if self._recent else 0
        view.add_row(ProgressBar(total=self.total_vec_steps, completed=done))
        view.add_row(Text(self._line))
        return view

    def _describe(self) -> str:
        now, first = self._recent[-1], self._recent[0]
        parts = [f"vec step {now.vec_steps:,} of {self.total_vec_steps:,}"]
        seconds = now.train_seconds - first.train_seconds
        if seconds > 0 and now.vec_steps > first.vec_steps:
            parts.append(f"{(now.env_steps - first.env_steps) / seconds:,.0f} env steps/s")
            parts.append(f"{(now.updates - first.updates) / seconds:,.0f} updates/s")
            left = max(self.total_vec_steps - now.vec_steps, 0)
            pace = (now.vec_steps - first.vec_steps) / seconds
            parts.append(f"{timedelta(seconds=round(left / pace))} left")
        if self._training is not None:
            parts.append(f"training return {self._training:,.1f}")
        if self._latest is not None:
            parts.append(f"return {self._latest:,.1f}")
        if self._best is not None:
            parts.append(f"best {self._best:,.1f}")
        return " | ".join(parts)


def readable(value: float) -> str:
    """A number as a person writes it: few digits, thousands apart."""
    if not math.isfinite(value):
        return str(value)
    size = abs(value)
    if value == int(value) and size < 1e15:
        return f"{int(value):,}"
    if size >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if size < 1 else f"{value:,.2f}" if size < 100 else f"{value:,.1f}"
