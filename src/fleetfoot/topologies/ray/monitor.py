"""The process that the user started, while another process learns."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

from fleetfoot.log import Console, Counters
from fleetfoot.recipe import Recipe, Result
from fleetfoot.run.interrupt import Interrupt
from fleetfoot.topologies.ray import workers
from fleetfoot.topologies.ray.cluster import RayConfig
from fleetfoot.topologies.ray.transport import pack_recipe

WAIT_SECONDS = 0.5  # between two checks for Ctrl-C


class Outbox:
    """What the monitor has not fetched yet: lines to print, and metrics, for which it is a sink of the log."""

    def __init__(self) -> None:
        self.items: deque[Any] = deque()

    def write(self, counters: Counters, metrics: Any) -> None:
        self.items.append((counters, dict(metrics)))

    def close(self) -> None: ...

    def take(self) -> list[Any]:
        return [self.items.popleft() for _ in range(len(self.items))]


class Monitor:
    """Starts the learner's process, prints its reports, passes Ctrl-C on, and starts it again if it dies.

    The learner is a class with the methods `train(resumed, restarted)`, `reports()`, which empties its `Outbox`, and
    `stop()`, after which `train` saves and returns; False if there is nothing to save yet.
    """

    def __init__(self, cfg: RayConfig, recipe: Recipe, folder: Path):
        self.cfg, self.folder, self.packed = cfg, folder.resolve(), pack_recipe(recipe)
        self.gpus = cfg.gpus_of(recipe.torch_device())
        seconds = recipe.log.console_seconds
        console = Console(recipe.total_vec_steps, every_seconds=seconds)
        self.console = console if recipe.log.console else None
        self.newest = Counters()

    def run(self, ray: Any, learner: type, *, resumed: bool) -> Result:
        """Train until the run is finished or interrupted."""
        restarts = workers.Restarts(self.cfg.max_restarts)
        make = workers.remote(
            ray,
            learner,
            cpus=self.cfg.learner_cpus,
            gpus=self.gpus,
            max_concurrency=2,
            scheduling_strategy=workers.on_this_node(ray),
        )
        with Interrupt() as interrupt:
            while True:
                process = make.remote(self.packed, str(self.folder))
                training = process.train.remote(resumed, restarts.count > 0)
                try:
                    return self._follow(ray, process, training, interrupt)
                except Exception as error:
                    workers.raise_mistake(error)
                    if not workers.died(ray, error) or interrupt.asked:
                        raise
                    restarts.note("the learner", error)
                    resumed = (self.folder / "checkpoints" / "last.json").exists()
                finally:
                    ray.kill(process)

    def _follow(self, ray: Any, process: Any, training: Any, interrupt: Interrupt) -> Result:
        """Show reports until the training ends. Never waits for an answer: a learner for which there is no free core
        gives none."""
        stop, reports, answered = None, process.reports.remote(), False
        while True:
            done, _ = ray.wait([training], timeout=WAIT_SECONDS)
            if interrupt.asked and stop is None:
                stop = process.stop.remote()
            if done or ray.wait([reports], timeout=0)[0]:
                self._show(ray.get(reports))
                reports, answered = process.reports.remote(), True
            if done:
                result: Result = ray.get(training)
                self._show(ray.get(reports))
                return result
            # Without free cores the learner never answers; without its actors it refuses, and may wait forever.
            if stop is not None and not answered:
                raise KeyboardInterrupt
            if stop is not None and ray.wait([stop], timeout=0)[0] and not ray.get(stop):
                raise KeyboardInterrupt

    def _show(self, reports: list[Any]) -> None:
        for report in reports:
            if isinstance(report, str):
                workers.print_line(report)
                continue
            counters, metrics = report
            # The results of an evaluation arrive late, and the progress bar must not go backwards.
            self.newest = max(self.newest, counters, key=lambda c: c.vec_steps)
            if self.console is not None:
                self.console.write(self.newest, metrics)

    def close(self) -> None:
        if self.console is not None:
            self.console.close()
