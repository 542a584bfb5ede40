"""The process that the user started, while another one learns."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

from fleetfoot.log import Console, Counters
from fleetfoot.recipe import Recipe, Result
from fleetfoot.run.interrupt import Interrupt
from fleetfoot.topologies.ray.cluster import RayConfig
from fleetfoot.topologies.ray.transport import PackedRecipe
from fleetfoot.topologies.ray.workers import (
    Restarts,
    died,
    on_this_node,
    raise_mistake,
    remote,
    tell,
)

WAIT_SECONDS = 0.5  # between looks at whether the run shall stop


class Watch:
    """Shows how the learner gets on, and begins it again where it was lost."""

    def __init__(
        self,
        ray: Any,
        cfg: RayConfig,
        learner: type,
        recipe: Recipe,
        packed: PackedRecipe,
        folder: Path,
        interrupt: Interrupt,
    ):
        """`learner` has the methods of `actor_learner.Learner`."""
        self.ray, self.cfg, self.learner, self.packed = ray, cfg, learner, packed
        self.folder, self.interrupt = folder.resolve(), interrupt
        self.console: Console | None = None
        if recipe.log.console:
            seconds = recipe.log.console_seconds
            self.console = Console(recipe.total_vec_steps, every_seconds=seconds)
        self.newest = Counters()
        self.answered = False  # by the present learner

    def until_done(self, resumed: bool, gpus: float) -> Result:
        restarts = Restarts(self.cfg.max_restarts)
        make = remote(
            self.ray,
            self.learner,
            cpus=self.cfg.learner_cpus,
            gpus=gpus,
            max_concurrency=2,
            scheduling_strategy=on_this_node(self.ray),
        )
        while True:
            handle = make.remote(self.packed, str(self.folder))
            self.answered = False
            try:
                return self.follow(handle, handle.train.remote(resumed, restarts.count > 0))
            except Exception as error:
                raise_mistake(error)
                if not died(self.ray, error) or self.interrupt.asked:
                    raise
                restarts.note("the learner", error)
                resumed = (self.folder / "checkpoints" / "last.json").exists()
            finally:
                self.ray.kill(handle)

    def follow(self, handle: Any, work: Any) -> Result:
        """Show news until the work is done. A learner that has no room yet answers nothing: never wait for it."""
        stop: Any = None
        news = handle.news.remote()
        while True:
            done, _ = self.ray.wait([work], timeout=WAIT_SECONDS)
            if self.interrupt.asked and stop is None:
                stop = handle.stop.remote()
            if done or self.ray.wait([news], timeout=0)[0]:
                for item in self.ray.get(news):
                    self.show(item)
                self.answered = True
                news = handle.news.remote()
            if done:
                result: Result = self.ray.get(work)
                for item in self.ray.get(news):
                    self.show(item)
                return result
            if stop is not None and not self.can_save(stop):
                raise KeyboardInterrupt

    def can_save(self, stop: Any) -> bool:
        """Has the learner begun, or may it have? One that waits for room has nothing to save and would never end."""
        if not self.answered:
            return False
        return not self.ray.wait([stop], timeout=0)[0] or bool(self.ray.get(stop))

    def show(self, item: str | tuple[Counters, dict[str, float]]) -> None:
        if isinstance(item, str):
            tell(item)
            return
        counters, metrics = item
        # An evaluation comes back when training has gone on; nobody wants to see the bar go backwards.
        self.newest = max(self.newest, counters, key=lambda c: c.vec_steps)
        if self.console is not None:
            self.console.write(self.newest, metrics)

    def close(self) -> None:
        if self.console is not None:
            self.console.close()


class News:
    """What the watching process has not fetched yet; a sink of the log."""

    def __init__(self) -> None:
        self.items: deque[Any] = deque()

    def write(self, counters: Counters, metrics: Any) -> None:
        self.items.append((counters, dict(metrics)))

    def close(self) -> None: ...

    def take(self) -> list[Any]:
        return [self.items.popleft() for _ in range(len(self.items))]
