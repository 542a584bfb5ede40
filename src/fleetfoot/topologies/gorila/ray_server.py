"""The parameter server on Ray: its shards as processes, and their replacement.

When a shard dies, the whole server returns to the last saved state: slices of different ages do not form a network that
ever existed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fleetfoot.agents.contract import Served
from fleetfoot.recipe import Recipe
from fleetfoot.topologies.gorila.bundle import server_config, total_updates
from fleetfoot.topologies.gorila.replica import ServerLost, flatten
from fleetfoot.topologies.gorila.server import (
    Pulled,
    Server,
    ServerConfig,
    ServerShard,
    ShardSlice,
    shard_slices,
)
from fleetfoot.topologies.ray.cluster import load_ray
from fleetfoot.topologies.ray.workers import Restarts, died, remote

if TYPE_CHECKING:
    from fleetfoot.topologies.gorila.loop import ParameterServerConfig

T = TypeVar("T")


class RayShard:
    """A shard as a Ray actor. Gradients and weights travel as arrays."""

    def __init__(self, weights: NDArray[np.float32], pieces: list[int], cfg: ServerConfig):
        torch.set_num_threads(1)
        self.shard = ServerShard(torch.tensor(weights), pieces, cfg)

    def call(self, method: str, *arguments: Any) -> Any:
        return _to_arrays(getattr(self.shard, method)(*map(_to_tensors, arguments)))


def call_remote(
    shards: Sequence[Any], method: str, arguments: Sequence[tuple[Any, ...]]
) -> list[Any]:
    """`call_local` for shards that are Ray actors: call all at once and wait for the answers."""
    ray = load_ray()
    calls = [
        shard.call.remote(method, *map(_to_arrays, args))
        for shard, args in zip(shards, arguments, strict=True)
    ]
    try:
        return [_to_tensors(answer) for answer in ray.get(calls)]
    except Exception as error:
        if died(ray, error):
            raise ServerLost from error
        raise


def _to_arrays(value: Any) -> Any:
    if isinstance(value, Pulled):
        return Pulled(*map(_to_arrays, value))
    return value.numpy() if isinstance(value, Tensor) else value


def _to_tensors(value: Any) -> Any:
    """Copies the arrays: those from the object store cannot be written to."""
    if isinstance(value, Pulled):
        return Pulled(*map(_to_tensors, value))
    return torch.tensor(value) if isinstance(value, np.ndarray) else value


class RayServer(Server):
    """A server whose shards are Ray actors. When one of them dies, all return to the last saved state."""

    def __init__(
        self,
        ray: Any,
        cfg: ParameterServerConfig,
        recipe: Recipe,
        agent: Served,
        restarts: Restarts,
    ):
        """The server starts with the weights of `agent`."""
        self.ray, self.restarts = ray, restarts
        self.shard_class = remote(ray, RayShard, cpus=cfg.ray.worker_cpus)
        self.initial_weights = flatten(agent.step_critic.parameters)
        max_age = 4 * cfg.bundles if cfg.max_age is None else cfg.max_age
        self.cfg = server_config(agent, total_updates(recipe, cfg.bundles), max_age)
        slices = shard_slices([p.numel() for p in agent.step_critic.parameters], cfg.shards)
        super().__init__([self._launch(s) for s in slices], slices, call_remote)
        self.generation = 0
        self.saved: list[dict[str, Any]] | None = None  # None: no bundle has worked yet

    def _launch(self, place: ShardSlice) -> Any:
        weights = self.initial_weights[place.start : place.stop].numpy()
        return self.shard_class.remote(weights, place.pieces, self.cfg)

    def save(self) -> list[dict[str, Any]]:
        """The present state, to which the server returns when a shard is lost."""
        self.saved = self.retry(self.state_dict)
        return self.saved

    def resume(self, state: list[dict[str, Any]], generation: int) -> None:
        """Start from a state of an earlier process. A shard may die meanwhile, like at any other time."""
        self.saved, self.generation = state, generation
        self.retry(lambda: self.load_state_dict(state, self.generation))

    def restore(self) -> None:
        """Replace lost shards and return all shards to the last saved state. Does nothing where no shard is lost:
        several bundles may report the same loss."""
        while lost := [i for i, shard in enumerate(self.shards) if _is_lost(shard)]:
            for i in lost:
                self.restarts.note(f"shard {i} of the server", "its process died")
                self.shards[i] = self._launch(self.slices[i])
            if self.saved is not None:
                self.generation += 1  # gradients computed before the loss are stale
                with suppress(ServerLost):
                    self.load_state_dict(self.saved, self.generation)

    def retry(self, question: Callable[[], T]) -> T:
        """Ask the server, and again after restoring it where it turns out to be lost."""
        while True:
            try:
                return question()
            except ServerLost:
                self.restore()

    def close(self) -> None:
        for shard in self.shards:
            self.ray.kill(shard)


def _is_lost(shard: Any) -> bool:
    try:
        call_remote([shard], "version", [()])
    except ServerLost:
        return True
    return False
