"""The learner's view of its actors: open requests, finished blocks, and replacements for lost actors.

Actors collect on request. The learner keeps a few requests open with each of them, so that an actor always has its next
one at hand, and an actor whose blocks are not taken has nothing to do. There is no other back-pressure, and so no two
processes can wait for each other. Every request carries the newest version of the weights.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fleetfoot.data import EnvSpec
from fleetfoot.errors import UserError
from fleetfoot.run.journal import State
from fleetfoot.topologies.apex.actor import Actor
from fleetfoot.topologies.apex.wire import Block
from fleetfoot.topologies.ray.transport import PackedRecipe, Published, to_arrays
from fleetfoot.topologies.ray.workers import Restarts, Workers, remote

if TYPE_CHECKING:
    from fleetfoot.topologies.apex.loop import ActorLearnerConfig


class ActorFleet:
    """The actors, the blocks that were requested of them, and who replaces a lost one."""

    def __init__(
        self,
        ray: Any,
        packed: PackedRecipe,
        cfg: ActorLearnerConfig,
        restarts: Restarts,
        state: State | None = None,
    ):
        """`state`: of an earlier fleet. The actors are new."""
        self.ray, self.packed, self.cfg = ray, packed, cfg
        before = state or {"incarnations": [-1] * cfg.actors, "lines": [0] * cfg.actors}
        if len(before["incarnations"]) != cfg.actors:
            raise UserError("the checkpoint was made with another number of actors.")
        incarnations = [number + 1 for number in before["incarnations"]]
        self.received: list[int] = list(before["lines"])  # vec steps, counted by the learner
        self.lines = 1 if cfg.lockstep else cfg.block_vec_steps  # of a block
        self.ahead = 1 if cfg.lockstep else cfg.blocks_ahead  # requests open with each actor
        self.workers = Workers(ray, self._launch, incarnations, "actor {}".format, restarts)
        self.requests: list[deque[Any]] = [deque() for _ in incarnations]
        self.turn = 0  # the actor that is looked at first, so that a slow learner serves all alike
        self.weights = Published(0, None)

    def start(self) -> EnvSpec:
        """Start all actors; the spec is that of all their environments together."""
        spec: EnvSpec = self.workers.launch_all()[0]
        actors = self.cfg.actors
        return replace(spec, num_envs=spec.num_envs * actors, task_ids=spec.task_ids * actors)

    def publish(self, weights: dict[str, Any]) -> None:
        """A new version of the weights, for requests from now on."""
        self.weights = Published(self.weights.version + 1, self.ray.put(to_arrays(weights)))

    def request_blocks(self) -> None:
        """Open requests until each actor has as many as it may have."""
        for handle, requests in zip(self.workers.handles, self.requests, strict=True):
            while len(requests) < self.ahead:
                requests.append(handle.collect.remote(self.lines, *self.weights))

    def next_block(self, timeout: float) -> Block | None:
        """A finished block, in the order in which its actor collected them. None: there is none, or its actor is lost
        and being replaced."""
        oldest = {requests[0]: actor for actor, requests in enumerate(self.requests) if requests}
        if not (finished := self._finished(list(oldest), timeout)):
            return None
        actors = self.cfg.actors
        actor = min((oldest[ref] for ref in finished), key=lambda a: (a - self.turn) % actors)
        self.turn = (actor + 1) % actors
        if not self.workers.started(actor):
            return None
        try:
            block: Block = self.ray.get(self.requests[actor].popleft())
        except Exception as error:
            self.workers.replace(actor, error)
            return None
        return block

    def blocks(self, timeout: float) -> Iterator[Block]:
        """The blocks that are finished, with a new request for each; waits only for the first.

        At most as many as there are requests: fast actors might finish new blocks for as long as somebody takes them.
        """
        for _ in range(self.cfg.actors * self.ahead):
            block = self.next_block(timeout)
            self.request_blocks()
            if block is None:
                return
            yield block
            timeout = 0.0

    def num_finished(self) -> int:
        """Blocks that wait for the learner."""
        return len(self._finished([ref for requests in self.requests for ref in requests], 0.0))

    def state_dict(self) -> State:
        return {"incarnations": list(self.workers.incarnations), "lines": list(self.received)}

    def close(self) -> None:
        self.workers.close()

    def _finished(self, refs: list[Any], timeout: float) -> list[Any]:
        if not refs:
            return []
        finished, _ = self.ray.wait(refs, num_returns=len(refs), timeout=0, fetch_local=False)
        if not finished and timeout > 0:
            finished, _ = self.ray.wait(refs, num_returns=1, timeout=timeout)
        return list(finished)

    def _launch(self, actor: int) -> tuple[Any, Any]:
        make = remote(self.ray, Actor, cpus=self.cfg.ray.worker_cpus)
        handle = make.remote(self.packed, actor, self.workers.incarnations[actor])
        self.requests[actor].clear()
        return handle, handle.start.remote(self.received[actor])
