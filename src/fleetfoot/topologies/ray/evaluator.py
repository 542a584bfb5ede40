"""Greedy episodes in a process of their own, while training goes on."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from fleetfoot.evaluate import Evaluator
from fleetfoot.log import Counters
from fleetfoot.topologies.ray.cluster import (
    PackedRecipe,
    Restarts,
    remote,
    to_arrays,
    to_tensors,
    unpack_recipe,
)

CPU = torch.device("cpu")


class RemoteEvaluator:
    """Lives in that process."""

    def __init__(self, packed: PackedRecipe):
        self.packed = packed
        self.evaluator: Evaluator | None = None

    def evaluate(self, policy: Any) -> dict[str, float]:
        if self.evaluator is None:
            torch.set_num_threads(1)
            recipe = unpack_recipe(self.packed)
            seeds = recipe.seeds()
            self.evaluator = Evaluator(recipe.env, recipe.evaluation, seeds.evaluation, CPU)
            agent = recipe.build_agent(self.evaluator.env.spec, CPU, total_updates=1)
            self.policy = agent.policy
        self.policy.load_state_dict(to_tensors(policy))
        return self.evaluator(self.policy).metrics()


class Evaluated(NamedTuple):
    counters: Counters  # when it was asked for
    metrics: dict[str, float]
    state: dict[str, Any]  # of the run then


class Evaluations:
    """The learner's side: one evaluation at a time, by a process that is replaced where it is lost."""

    def __init__(self, ray: Any, packed: PackedRecipe, *, cpus: float, restarts: Restarts):
        self.ray, self.packed, self.cpus, self.restarts = ray, packed, cpus, restarts
        self.process: Any = None
        self.asked: tuple[Any, Counters, dict[str, Any]] | None = None

    def ask(self, policy: torch.nn.Module, counters: Counters, state: dict[str, Any]) -> None:
        """Have `policy`, as it is now, evaluated. Nothing else may be on its way."""
        assert self.asked is None
        self.asked = self._call(policy), counters, state

    def take(self, *, wait: bool = False) -> Evaluated | None:
        """What came back. None: nothing yet, or its process was lost, and that evaluation with it."""
        if self.asked is None:
            return None
        call, counters, state = self.asked
        if not self.ray.wait([call], timeout=None if wait else 0)[0]:
            return None
        self.asked = None
        metrics = self._answer(call)
        return None if metrics is None else Evaluated(counters, metrics, state)

    def now(self, policy: torch.nn.Module) -> dict[str, float]:
        """Wait for an evaluation, with another process where one is lost."""
        while (metrics := self._answer(self._call(policy))) is None:
            ...
        return metrics

    def _call(self, policy: torch.nn.Module) -> Any:
        if self.process is None:
            make = remote(self.ray, RemoteEvaluator, cpus=self.cpus)
            self.process = make.remote(self.packed)
        return self.process.evaluate.remote(to_arrays(policy.state_dict()))

    def _answer(self, call: Any) -> dict[str, float] | None:
        try:
            metrics: dict[str, float] = self.ray.get(call)
            return metrics
        except Exception as error:
            self.restarts.note("the evaluator", error)
            self.close()
            return None

    def close(self) -> None:
        if self.process is not None:
            self.ray.kill(self.process)
            self.process = None
