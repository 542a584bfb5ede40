"""PQL's stages as Ray actors, each in its own process: the worker side."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, NamedTuple

import torch

from fleetfoot.data import EnvSpec, Obs, Transition
from fleetfoot.topologies.pql.exchange import WEIGHTS, FlatVersion, Order, Outcome, Setup, flat
from fleetfoot.topologies.pql.stages import Actor, CriticLearner, PolicyLearner, StageType
from fleetfoot.topologies.ray.cluster import load_ray
from fleetfoot.topologies.ray.transport import (
    PackedRecipe,
    pack_lines,
    split_lines,
    to_arrays,
    to_tensors,
    unpack_lines,
    unpack_obs,
    unpack_recipe,
)
from fleetfoot.topologies.ray.workers import naming_seed

CPU = torch.device("cpu")


class Started(NamedTuple):
    """What a process says when it is ready."""

    spec: EnvSpec
    node: str  # the machine
    bytes_to_fill: int  # of its main memory


class StageProcess:
    """A stage, called by Ray. All work happens in methods: what a Ray actor's constructor raises is lost."""

    kind: ClassVar[StageType]
    parts_read: ClassVar[int] = 0  # of each vec step
    parts_made: ClassVar[int] = 0

    def __init__(self, packed: PackedRecipe, threads: int, on_gpu: bool):
        self.packed, self.threads = packed, threads
        self.device = torch.device("cuda") if on_gpu else CPU

    def start(self, setup: Setup, beside_on: str, share: Any, *weights: Any) -> Started:
        """Build the stage, in the state of a checkpoint (None: from nothing) and with the newest `weights`.
        `beside_on`: the machine where `setup.bytes_beside` will be filled."""
        torch.set_num_threads(self.threads)
        node: str = load_ray().get_runtime_context().get_node_id()
        if beside_on != node or self.device != CPU:
            setup = setup._replace(bytes_beside=0)
        self.setup, self.recipe = setup, unpack_recipe(self.packed)
        with self._named():
            self.stage = self.kind(self.recipe, self.device, setup)
        if share is not None:
            self.stage.load(to_tensors(share))
        self.stage.agent.updates = setup.updates
        for name, arrays in zip(WEIGHTS, weights, strict=True):
            FlatVersion(0, arrays).copy(self.stage.weights(name))
        return Started(self.stage.spec, node, self.stage.bytes_to_fill)

    def _named(self) -> AbstractContextManager[None]:
        """Around work whose errors are reported with what it worked on."""
        return nullcontext()

    def round(self, order: Order, numbers: Sequence[int], *objects: Any) -> list[Any]:
        """One round; `objects` are the weights that the stage reads, with their `numbers`, then the parts of vec steps.
        Returns the outcome, which is small, and objects that stay in the store until somebody reads them: weights (None
        where they have not changed), then the parts of the vec step collected."""
        reads, step = self.kind.reads, max(1, self.parts_read)
        weights, parts = objects[: len(reads)], objects[len(reads) :]
        versions = dict(zip(reads, map(FlatVersion, numbers, weights), strict=True))
        with self._named():
            vec_steps = [self._unpack(*parts[i : i + step]) for i in range(0, len(parts), step)]
            outcome = self.stage.round(order, versions, vec_steps)
        return [outcome._replace(fresh=None), *self.publish(outcome.changed), *self._pack(outcome)]

    def publish(self, changed: Sequence[str]) -> list[Any]:
        weights = self.stage.weights
        return [flat(weights(name)) if name in changed else None for name in self.kind.writes]

    def _unpack(self, *parts: Any) -> Any:
        raise NotImplementedError

    def _pack(self, outcome: Outcome) -> Sequence[Any]:
        return ()

    def ask(self, method: str, *arguments: Any) -> Any:
        with self._named():
            answer = getattr(self.stage, method)(*arguments)
        return to_arrays(answer, copy=False) if isinstance(answer, dict) else answer


class ActorProcess(StageProcess):
    """The actor in a process of its own."""

    kind, parts_made = Actor, 2

    def _named(self) -> AbstractContextManager[None]:
        return naming_seed(Actor.seeds_of(self.recipe, self.setup).env)

    def _pack(self, outcome: Outcome) -> Sequence[Any]:
        if outcome.fresh is None:
            return None, None
        return split_lines(pack_lines([outcome.fresh], self.stage.spec))


class CriticLearnerProcess(StageProcess):
    """The critic learner in a process of its own."""

    kind, parts_read = CriticLearner, 2

    def _unpack(self, *parts: Any) -> Transition:
        obs, rest = parts
        return next(unpack_lines(obs | rest, self.stage.spec, self.device))


class PolicyLearnerProcess(StageProcess):
    """The policy learner in a process of its own."""

    kind, parts_read = PolicyLearner, 1

    def _unpack(self, *parts: Any) -> Obs:
        return unpack_obs(parts[0], self.device)


PROCESSES: dict[str, type[StageProcess]] = {
    "actor": ActorProcess,
    "critic": CriticLearnerProcess,
    "policy": PolicyLearnerProcess,
}
