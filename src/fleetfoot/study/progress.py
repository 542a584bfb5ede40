"""How far a study has come, and how long it will still take."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta

import rich.console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fleetfoot.study.folder import Study


class Progress:
    """A bar in a terminal; elsewhere a plain line every `every_seconds`.

    The time left goes by what this process has seen so far, evaluation and start of the workers included.
    """

    def __init__(
        self,
        study: Study,
        *,
        every_seconds: float = 10.0,
        console: rich.console.Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.study, self.every_seconds = study, every_seconds
        self.console, self.clock = console or rich.console.Console(highlight=False), clock
        self.total = sum(study.work(name) for name in study.points)
        self.done = {name: study.done(name) for name in study.points}
        self.begun_at, self.begun_with = clock(), self.work_done()
        self.looked_at = self.begun_at
        self.line = ""
        self.live: Live | None = None

    def work_done(self) -> float:
        return sum(share * self.study.work(name) for name, share in self.done.items())

    def show(self, running: Sequence[str]) -> None:
        """Call it often: it looks into the folders only now and then."""
        every = 1.0 if self.console.is_terminal else self.every_seconds
        if self.clock() - self.looked_at < every:
            return
        self.looked_at = self.clock()
        self.look(running)
        if not self.console.is_terminal:
            print(self.line, file=self.console.file, flush=True)
        elif self.live is None:
            self.live = Live(get_renderable=self.render, console=self.console, refresh_per_second=4)
            self.live.start()

    def close(self) -> None:
        if self.live is not None:
            self.live.stop()
            self.live = None
        self.done = {name: self.study.done(name) for name in self.done}
        print(self.describe([]), file=self.console.file, flush=True)

    def look(self, running: Sequence[str]) -> None:
        begun = [name for name, share in self.done.items() if 0 < share < 1]
        self.done |= {name: self.study.done(name) for name in {*running, *begun}}
        self.line = self.describe(running)

    def describe(self, running: Sequence[str]) -> str:
        finished = sum(share >= 1 for share in self.done.values())
        share = self.work_done() / self.total
        parts = [f"{finished} of {len(self.done)} configurations", f"{share:.0%}"]
        seconds, made = self.clock() - self.begun_at, self.work_done() - self.begun_with
        if made > 0 and share < 1:
            left = seconds * (self.total - self.work_done()) / made
            parts.append(f"{timedelta(seconds=round(left))} left")
        if running:
            parts.append(", ".join(f"{name} {self.done[name]:.0%}" for name in running))
        return " | ".join(parts)

    def render(self) -> Table:
        view = Table.grid(expand=True)
        view.add_row(ProgressBar(total=self.total, completed=self.work_done()))
        view.add_row(Text(self.line))
        return view
