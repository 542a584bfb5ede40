"""Runs all configurations of a study that are not finished, several at a time, each in a process of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from fleetfoot.errors import UserError, writing
from fleetfoot.recipe import Recipe
from fleetfoot.run.folder import folder_lock
from fleetfoot.study.folder import Study
from fleetfoot.study.progress import Progress
from fleetfoot.system import resolve_device, usable_cores

POLL_SECONDS = 0.2
FINISHED = 0  # exit code of a worker; not imported from it, which `python -m` must load itself
WORKER = (sys.executable, "-m", "fleetfoot.study.worker")  # and the study's folder, and a name


def default_workers(recipes: list[Recipe]) -> int:
    """As many processes as the cores are enough for; one where they share a GPU."""
    if any(resolve_device(recipe.device).type == "cuda" for recipe in recipes):
        return 1
    return max(1, usable_cores() // max(recipe.threads or usable_cores() for recipe in recipes))


def run_study(study: Study, workers: int | None = None, progress: Progress | None = None) -> bool:
    """Train what is not finished yet; False where the user stopped it.

    A configuration that fails does not stop the others, unless nothing has worked before. UserError at the end says
    what failed.
    """
    if workers is None:
        workers = default_workers(list(study.points.values()))
    if workers < 1:
        raise UserError(f"--workers must be at least 1, not {workers}.")
    with folder_lock(study.folder):
        return Runner(study, workers, progress or Progress(study)).run()


@dataclass
class Runner:
    """The processes of a study, while it runs."""

    study: Study
    workers: int
    progress: Progress
    worker: Sequence[str] = WORKER
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    failed: dict[str, int] = field(default_factory=dict)  # exit codes
    worked: int = 0
    signals: int = 0  # how often the user has asked to stop

    def run(self) -> bool:
        waiting = [name for name in self.study.points if not self.study.finished(name)]
        self.worked = len(self.study.points) - len(waiting)
        waiting.sort(key=self.study.work)  # the longest first: they must not be alone at the end
        with self.handling_signals():
            try:
                while self.running or (waiting and not self.signals):
                    while waiting and not self.signals and len(self.running) < self.workers:
                        name = waiting.pop()
                        self.running[name] = self.start(name)
                    time.sleep(POLL_SECONDS)
                    self.collect()
                    if self.failed and not self.worked:
                        self.stop()
                        waiting.clear()
                    self.progress.show(list(self.running))
            finally:
                self.stop()
                for process in self.running.values():
                    process.wait()
        self.progress.close()
        if self.failed:
            raise UserError(self.what_failed())
        return not self.signals

    def start(self, name: str) -> subprocess.Popen[bytes]:
        log = self.log(name)
        with writing(log):
            log.parent.mkdir(parents=True, exist_ok=True)
            with log.open("ab") as file:
                return subprocess.Popen(
                    [*self.worker, str(self.study.folder), name],
                    stdin=subprocess.PIPE,  # closes when this process ends
                    stdout=file,
                    stderr=file,
                    start_new_session=True,  # Ctrl-C is for this process, which passes it on once
                )

    def collect(self) -> None:
        for name, process in list(self.running.items()):
            code = process.poll()
            if code is None:
                continue
            del self.running[name]
            if code == FINISHED:
                self.worked += 1
            elif not self.signals:
                self.failed[name] = code

    def stop(self) -> None:
        for process in self.running.values():
            process.terminate()

    @contextmanager
    def handling_signals(self) -> Iterator[None]:
        """The first Ctrl-C (or SIGTERM) lets every worker save and stop; the second does not wait for that."""

        def handle(number: int, frame: FrameType | None) -> None:
            self.signals += 1
            for process in self.running.values():
                process.terminate() if self.signals == 1 else process.kill()

        before: dict[int, Any] = {}
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, handle)
        try:
            yield
        finally:
            for which, handler in before.items():
                signal.signal(which, handler)

    def log(self, name: str) -> Path:
        return self.study.folder / "logs" / f"{name}.log"

    def what_failed(self) -> str:
        name, code = next(iter(self.failed.items()))
        lines = self.log(name).read_text(errors="replace").split("\n")
        last = next((line for line in reversed(lines) if line.strip()), f"exit code {code}")
        reason = last.strip().removeprefix("fleetfoot: ").rstrip(".")
        others = f" ({len(self.failed)} failed)" if len(self.failed) > 1 else ""
        return f"{name} failed{others}: {reason}. Its log is {self.log(name)}."
