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

from fleetfoot.study.jobs import Job, Plan


class Progress:
    """A bar in a terminal; elsewhere a plain line every few seconds.

    The time left goes by what this process has seen so far, evaluation and start of the workers included.
    """

    def __init__(
        self,
        plan: Plan,
        noun: str = "configurations",
        *,
        console: rich.console.Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.plan, self.noun = plan, noun
        self.console, self.clock = console or rich.console.Console(highlight=False), clock
        self.done: dict[str, float] = {}
        self.look(plan.jobs)
        self.begun_at, self.begun_with = clock(), self.work_done()
        self.looked_at = self.begun_at
        self.line = ""
        self.live: Live | None = None

    def work_done(self) -> float:
        return sum(self.done.get(job.name, 0.0) * job.work() for job in self.plan.jobs)

    def total(self) -> float:
        """All work. Jobs that are not known yet will be like those that are."""
        known = [job.work() for job in self.plan.jobs]
        return sum(known) * max(1.0, self.plan.expected / max(1, len(known)))

    def show(self, running: Sequence[str]) -> None:
        """Call it often: it looks into the folders only now and then."""
        every = 1.0 if self.console.is_terminal else 10.0
        if self.clock() - self.looked_at < every:
            return
        self.looked_at = self.clock()
        self.look([job for job in self.plan.jobs if job.name in running])
        self.line = self.describe(running)
        if not self.console.is_terminal:
            print(self.line, file=self.console.file, flush=True)
        elif self.live is None:
            self.live = Live(get_renderable=self.render, console=self.console, refresh_per_second=4)
            self.live.start()

    def ended(self, name: str) -> None:
        """Nothing more is to do for this job, whether or not all its steps were made."""
        self.done[name] = 1.0

    def close(self) -> None:
        if self.live is not None:
            self.live.stop()
            self.live = None
        self.look([job for job in self.plan.jobs if self.done.get(job.name, 0.0) < 1])
        print(self.describe([]), file=self.console.file, flush=True)

    def look(self, jobs: Sequence[Job]) -> None:
        self.done |= {job.name: job.done() for job in jobs}

    def describe(self, running: Sequence[str]) -> str:
        finished = sum(share >= 1 for share in self.done.values())
        total, work_done = self.total(), self.work_done()
        share = work_done / total if total else 0.0
        parts = [f"{finished} of {self.plan.expected} {self.noun}", f"{share:.0%}"]
        seconds, made = self.clock() - self.begun_at, work_done - self.begun_with
        if made > 0 and share < 1:
            parts.append(f"{timedelta(seconds=round(seconds * (total - work_done) / made))} left")
        if running:
            parts.append(", ".join(f"{name} {self.done.get(name, 0.0):.0%}" for name in running))
        return " | ".join(parts)

    def render(self) -> Table:
        view = Table.grid(expand=True)
        view.add_row(ProgressBar(total=self.total(), completed=self.work_done()))
        view.add_row(Text(self.line))
        return view
