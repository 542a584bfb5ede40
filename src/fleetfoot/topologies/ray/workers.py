"""Worker processes of which each has a place, and who takes the place of one that is lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fleetfoot.topologies.ray.cluster import Restarts


class Workers:
    """All workers of one kind. A worker is a Ray actor with a method `start`, which builds what the worker needs: what
    a Ray actor's constructor raises is lost."""

    def __init__(
        self,
        ray: Any,
        launch: Callable[[int], tuple[Any, Any]],
        *,
        lives: list[int],
        name: Callable[[int], str],
        restarts: Restarts,
    ):
        """`launch(place)` makes a worker and calls its `start`: a handle and the call. `lives`: how many had each place
        before; `name(place)`: what to call the worker there when it is lost."""
        self.ray, self.make, self.name, self.restarts = ray, launch, name, restarts
        self.lives = lives
        self.handles: list[Any] = [None] * len(lives)
        self.starting: dict[int, Any] = {}  # place -> call of `start` whose end nobody has seen

    def launch(self, place: int) -> None:
        self.handles[place], self.starting[place] = self.make(place)

    def launch_all(self) -> list[Any]:
        """Launch all at once; what their `start` returned when all are there."""
        for place in range(len(self.handles)):
            self.launch(place)
        return [self.wait_for(place) for place in range(len(self.handles))]

    def wait_for(self, place: int) -> Any:
        """What the `start` of the worker at `place` returns, or that of its first successor that has one."""
        while True:
            call = self.starting[place]
            if self.started(place):
                return self.ray.get(call)

    def started(self, place: int) -> bool:
        """Wait until the worker at `place` is built; False: that failed, and the next is begun."""
        if place not in self.starting:
            return True
        try:
            self.ray.get(self.starting.pop(place))
        except Exception as error:
            self.replace(place, error)
            return False
        return True

    def replace(self, place: int, error: Exception) -> None:
        """Begin to build a worker for one that died or raised `error`. UserError where that was a mistake of the user,
        or one loss too many."""
        self.restarts.note(self.name(place), error)
        self.ray.kill(self.handles[place])
        self.lives[place] += 1
        self.launch(place)

    def close(self) -> None:
        for handle in self.handles:
            if handle is not None:
                self.ray.kill(handle)
