"""The learner's view of its actors: what it has asked of them, what has come back, and who had to be replaced.

Actors work when asked to. The learner keeps a few requests open with each of them, so an actor always has the next one
at hand, and one whose blocks nobody takes has nothing to do: that is all the back-pressure there is, and nothing can
wait for something that waits for it. With every request goes the newest version of the weights.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from fleetfoot.data import EnvSpec
from fleetfoot.topologies.apex.actor import Actor
from fleetfoot.topologies.apex.wire import Block
from fleetfoot.topologies.ray.cluster import RayConfig
from fleetfoot.topologies.ray.transport import PackedRecipe, Published, publish
from fleetfoot.topologies.ray.workers import Restarts, Workers, remote


class ActorFleet:
    def __init__(
        self,
        ray: Any,
        cfg: RayConfig,
        packed: PackedRecipe,
        *,
        actors: int,
        lines: int,
        ahead: int,
        priorities: bool,
        bf16: bool,
        incarnations: list[int],
        past: list[int],
        restarts: Restarts,
    ):
        """`lines`: vec steps of a block; `ahead`: requests open with each actor; `past`: vec steps taken from each
        actor before."""
        self.ray, self.cfg, self.packed = ray, cfg, packed
        self.actors, self.lines, self.ahead, self.priorities = actors, lines, ahead, priorities
        self.bf16 = bf16
        self.past = list(past)
        self.workers = Workers(
            ray, self._launch, lives=incarnations, name="actor {}".format, restarts=restarts
        )
        self.open: list[deque[Any]] = [deque() for _ in range(actors)]
        self.taken = [0] * actors  # blocks of the present incarnation
        self.turn = 0  # whose block is looked for first, so that a slow learner serves all alike
        self.weights = Published(0, None)
        # Told the number of an actor whose next rows do not follow from its last ones.
        self.launched: Callable[[int], None] = lambda actor: None

    def start(self) -> EnvSpec:
        """Start all actors; tells what their environments are together."""
        spec: EnvSpec = self.workers.launch_all()[0]
        return replace(
            spec, num_envs=spec.num_envs * self.actors, task_ids=spec.task_ids * self.actors
        )

    def publish(self, weights: dict[str, Any]) -> None:
        """A new version, for requests from now on."""
        self.weights = publish(self.ray, self.weights.version + 1, weights)

    def ask(self) -> None:
        """Open requests until each actor has as many as it may have."""
        for actor, handle in enumerate(self.workers.handles):
            while len(self.open[actor]) < self.ahead:
                version, ref = self.weights
                self.open[actor].append(handle.collect.remote(self.lines, version, ref))

    def next_block(self, timeout: float) -> Block | None:
        """A block that no call has given before, in the order in which its actor collected it; None: there is none."""
        waiting = {refs[0]: actor for actor, refs in enumerate(self.open) if refs}
        if not (ready := self._ready(list(waiting), timeout)):
            return None
        actor = min((waiting[ref] for ref in ready), key=lambda a: (a - self.turn) % self.actors)
        self.turn = (actor + 1) % self.actors
        if not self.workers.started(actor):
            return None
        try:
            block: Block = self.ray.get(self.open[actor].popleft())
        except Exception as error:
            self.workers.replace(actor, error)
            return None
        if (block.incarnation, block.sequence) != (self.workers.lives[actor], self.taken[actor]):
            raise RuntimeError(f"actor {actor} sent block {block.sequence} out of order")
        self.taken[actor] += 1
        self.past[actor] += self.lines
        return block

    def blocks(self, *, most: int, timeout: float, ask: bool) -> Iterator[Block]:
        """The blocks that are there, up to `most`; waits for the first alone. `ask`: open a request for each taken.

        There is a `most` because fast actors would finish new blocks for as long as somebody takes them.
        """
        for _ in range(most):
            block = self.next_block(timeout)
            if ask:
                self.ask()
            if block is None:
                return
            yield block
            timeout = 0.0

    def queue(self) -> int:
        """Blocks that are finished and not taken."""
        every = [ref for refs in self.open for ref in refs]
        return len(self._ready(every, 0.0))

    def close(self) -> None:
        self.workers.close()

    def _ready(self, refs: list[Any], timeout: float) -> list[Any]:
        if not refs:
            return []
        ready, _ = self.ray.wait(refs, num_returns=len(refs), timeout=0, fetch_local=False)
        if not ready and timeout > 0:
            ready, _ = self.ray.wait(refs, num_returns=1, timeout=timeout)
        return list(ready)

    def _launch(self, actor: int) -> tuple[Any, Any]:
        life = self.workers.lives[actor]
        make = remote(self.ray, Actor, cpus=self.cfg.worker_cpus)
        handle = make.remote(self.packed, actor, self.actors, life)
        self.open[actor].clear()
        self.taken[actor] = 0
        self.launched(actor)
        threads = max(1, int(self.cfg.worker_cpus))
        return handle, handle.start.remote(threads, self.priorities, self.bf16, self.past[actor])
