"""Runs all jobs of a plan that are not finished, several at a time, each in a process of its own."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from fleetfoot.errors import UserError
from fleetfoot.recipe import Recipe
from fleetfoot.run.estimate import estimate
from fleetfoot.run.folder import folder_lock
from fleetfoot.run.provenance import recorded
from fleetfoot.study.folder import Study, check_imports
from fleetfoot.study.jobs import Job, Listed, Plan
from fleetfoot.study.launch import Launcher, Locally, Process
from fleetfoot.study.progress import Progress
from fleetfoot.system import free_bytes, resolve_device, usable_cores

POLL_SECONDS = 0.2
FINISHED = 0  # exit code of a worker; not imported from it, which `python -m` must load itself
PROCESS_BYTES = 1 << 29  # of a worker without its replay: Python and torch
MEMORY_SHARE = 0.9  # of what is free


def default_workers(recipes: Sequence[Recipe]) -> int:
    """As many processes as the cores are enough for; one where they share a GPU."""
    if any(resolve_device(recipe.device).type == "cuda" for recipe in recipes):
        return 1
    return max(1, usable_cores() // max(recipe.threads or usable_cores() for recipe in recipes))


def workers_in_memory(recipe: Recipe, runs: int) -> int:
    """As many processes, with so many runs each, as the free memory is enough for."""
    device = recipe.torch_device()
    need = PROCESS_BYTES + runs * estimate(recipe).replay_bytes
    return max(1, int(MEMORY_SHARE * free_bytes(device) // need))


def worker_command() -> list[str]:
    """To be followed by a folder, and modules to import. A worker looks for modules in the current folder only where
    this process does, because the user named one there: a stranger's folder may hold a torch.py."""
    here = {"", os.getcwd()} & set(sys.path)
    return [sys.executable, *([] if here else ["-P"]), "-m", "fleetfoot.study.worker"]


def run_study(
    study: Study,
    workers: int | None = None,
    plan: Plan | None = None,
    launcher: Launcher | None = None,
) -> bool:
    """Train what is not finished yet; False where the user stopped it.

    A configuration that fails does not stop the others, unless nothing has worked before. UserError at the end says
    what failed.
    """
    if workers is None:
        workers = default_workers(list(study.points.values()))
    check_imports(study)
    with folder_lock(study.folder), recorded(study.folder):
        plan = plan or Listed(study.jobs())
        logs = study.folder / "logs"
        progress = Progress(plan)
        launcher = launcher or Locally()
        return Runner(plan, workers, progress, logs, study.imports, launcher=launcher).run()


@dataclass
class Runner:
    """The processes of a study, while it runs."""

    plan: Plan
    workers: int
    progress: Progress
    logs: Path
    imports: Sequence[str] = ()
    worker: Sequence[str] = field(default_factory=worker_command)
    launcher: Launcher = field(default_factory=Locally)
    running: dict[str, tuple[Job, Process]] = field(default_factory=dict)
    failed: dict[str, int] = field(default_factory=dict)  # exit codes
    unwanted: set[str] = field(default_factory=set)  # told to stop, because the plan says so
    told: set[str] = field(default_factory=set)  # to stop: a second signal would not let them save
    worked: int = 0
    signals: int = 0  # how often the user has asked to stop

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise UserError(f"--workers must be at least 1, not {self.workers}.")

    def run(self) -> bool:
        self.worked += sum(job.finished() for job in self.plan.jobs)
        with self.handling_signals():
            try:
                self.fill()
                while self.running:
                    time.sleep(POLL_SECONDS)
                    self.collect()
                    if self.failed and not self.worked:
                        self.stop()
                    self.fill()
                    self.progress.show(list(self.running))
            finally:
                self.stop()
                for _, process in self.running.values():
                    process.wait()
        self.progress.close()
        if self.failed:
            raise UserError(self.what_failed())
        return not self.signals

    def fill(self) -> None:
        """Start as many as there may be, unless all is to end."""
        while not self.signals and (self.worked or not self.failed):
            job = self.plan.next() if len(self.running) < self.workers else None
            if job is None:
                return
            command = [*self.worker, str(job.folder), *self.imports]
            self.running[job.name] = job, self.launcher.start(command, self.log(job.name))
            if self.signals:  # it came while the process was started
                self.stop()

    def collect(self) -> None:
        for name, (job, process) in list(self.running.items()):
            code = process.poll()
            if code is None:
                continue
            del self.running[name]
            if code == FINISHED:
                self.worked += 1
                self.plan.ended(job, "finished")
            elif name in self.unwanted:
                self.plan.ended(job, "stopped")
            elif name not in self.told:
                self.failed[name] = code
                self.plan.ended(job, "failed")
            if not self.signals:
                self.progress.ended(name)
        waited_for = [job for job, _ in self.running.values() if job.name not in self.unwanted]
        for job in self.plan.unwanted(waited_for):
            self.unwanted.add(job.name)
            self.stop(job.name)

    def stop(self, *names: str) -> None:
        """Let these save and end; without names, all."""
        for name in names or list(self.running):
            if name not in self.told:
                self.told.add(name)
                self.running[name][1].terminate()

    @contextmanager
    def handling_signals(self) -> Iterator[None]:
        """The first Ctrl-C (or SIGTERM) lets every worker save and stop; the second does not wait for that."""

        def handle(number: int, frame: FrameType | None) -> None:
            self.signals += 1
            self.stop()
            if self.signals > 1:
                for _, process in self.running.values():
                    process.kill()

        before: dict[int, Any] = {}
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, handle)
        try:
            yield
        finally:
            for which, handler in before.items():
                signal.signal(which, handler)

    def log(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def what_failed(self) -> str:
        name, code = next(iter(self.failed.items()))
        lines = self.log(name).read_text(errors="replace").split("\n")
        last = next((line for line in reversed(lines) if line.strip()), f"exit code {code}")
        reason = last.strip().removeprefix("fleetfoot: ").rstrip(".")
        others = f" ({len(self.failed)} failed)" if len(self.failed) > 1 else ""
        return f"{name} failed{others}: {reason}. Its log is {self.log(name)}."
