"""Worker processes: how they are started, what their errors mean, and how lost ones are replaced."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from fleetfoot.errors import Halted, UserError
from fleetfoot.evaluate import Evaluator
from fleetfoot.log import Counters
from fleetfoot.run.journal import State
from fleetfoot.topologies.ray.transport import PackedRecipe, to_arrays, to_tensors, unpack_recipe

CPU = torch.device("cpu")
Metrics = dict[str, float]


def remote(ray: Any, cls: type, *, cpus: float, gpus: float = 0.0, **options: Any) -> Any:
    """`cls` as a Ray actor class. Ray restarts nothing: only the topology knows what a restart loses."""
    return ray.remote(cls).options(
        num_cpus=cpus, num_gpus=gpus, max_restarts=0, max_task_retries=0, **options
    )


def on_this_node(ray: Any) -> Any:
    """A scheduling strategy: on the caller's machine, where the run folder is."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)


def died(ray: Any, error: BaseException) -> bool:
    """Did the process that was called die, or its machine? False for an exception inside it.

    If a worker does not catch the death of another one, Ray raises an error that is of both kinds.
    """
    kinds = ray.exceptions
    if isinstance(error, kinds.RayTaskError):
        return False
    deaths = (kinds.RayActorError, kinds.WorkerCrashedError, kinds.ObjectLostError)
    # Out of memory: Ray kills processes before their machine has none left.
    return isinstance(error, (*deaths, kinds.OutOfMemoryError))


def cause(error: BaseException) -> BaseException:
    """The exception that a worker raised, without Ray's wrapper."""
    inner = getattr(error, "cause", None)
    return inner if isinstance(inner, BaseException) else error


def raise_mistake(error: BaseException) -> None:
    """Raise a worker's error again if the user caused it: a replacement would fail in the same way. An environment that
    fails is another matter."""
    if isinstance(inner := cause(error), UserError) and not isinstance(inner, Halted):
        raise UserError(str(inner)) from error


def why_lost(error: BaseException) -> str:
    """The type of an error and the last line of its message."""
    inner = cause(error)
    lines = [line.strip() for line in str(inner).splitlines() if line.strip()]
    if type(inner).__name__ in ("ActorDiedError", "RayActorError", "ActorUnavailableError"):
        return "its process died"
    if type(inner).__name__ == "OutOfMemoryError":
        return "its machine has no memory left"
    return f"{type(inner).__name__}: {lines[-1][:300]}" if lines else type(inner).__name__


class ActorFailed(Exception):  # noqa: N818
    """An actor raised an exception, most likely in its environments; the message names their seed."""


@contextmanager
def naming_seed(seed: int) -> Iterator[None]:
    """Around work with environments: exceptions become `ActorFailed`, except those that the user caused."""
    try:
        yield
    except Exception as error:
        if isinstance(error, UserError) and not isinstance(error, Halted):
            raise
        raise ActorFailed(f"environment seed {seed}: {why_lost(error)}") from error


def print_line(line: str) -> None:
    print(f"fleetfoot: {line}", file=sys.stderr, flush=True)


class Restarts:
    """Counts lost workers, reports each in one line, and gives up beyond a limit."""

    def __init__(
        self,
        limit: int,
        report: Callable[[str], object] = print_line,
        option: str = "--topology.ray.max-restarts",
    ):
        """`report`: for a Ray actor, whose own output ends up in Ray's files; `option`: the one that sets the limit."""
        self.limit, self.count, self.report, self.option = limit, 0, report, option

    def note(self, who: str, error: BaseException | str) -> None:
        """A worker is lost and will be replaced. UserError if the user caused it, or if too many were lost."""
        if isinstance(error, BaseException):
            raise_mistake(error)
        reason = error if isinstance(error, str) else why_lost(error)
        self.count += 1
        if self.count > self.limit:
            raise Halted(
                f"{who} is lost ({reason}) after {self.limit} restarts: fix the cause, or raise {self.option}."
            )
        self.report(f"{who} is lost ({reason}); restart {self.count} of {self.limit}.")


class Workers:
    """All workers of one kind. A worker is a Ray actor whose method `start` builds everything it needs: an exception in
    the constructor of a Ray actor gets lost."""

    def __init__(
        self,
        ray: Any,
        launch: Callable[[int], tuple[Any, Any]],
        incarnations: list[int],
        name: Callable[[int], str],
        restarts: Restarts,
    ):
        """`launch(place)` creates a worker and calls its `start`; it returns the handle and the call. `incarnations`:
        how many workers each place has had before; `name(place)`: for messages."""
        self.ray, self.make, self.name, self.restarts = ray, launch, name, restarts
        self.incarnations = incarnations
        self.handles: list[Any] = [None] * len(incarnations)
        self.starting: dict[int, Any] = {}  # place -> call of `start` that nobody has waited for

    def launch(self, place: int) -> None:
        self.handles[place], self.starting[place] = self.make(place)

    def launch_all(self) -> list[Any]:
        """Launch all at once, wait until they are built, and return what their `start` returned."""
        for place in range(len(self.handles)):
            self.launch(place)
        return [self.wait_for(place) for place in range(len(self.handles))]

    def wait_for(self, place: int) -> Any:
        """What `start` returned at `place`, after replacing workers there until one is built."""
        while True:
            call = self.starting[place]
            if self.started(place):
                return self.ray.get(call)

    def started(self, place: int) -> bool:
        """Wait until the worker at `place` is built. False: that failed, and its replacement is being built."""
        if place not in self.starting:
            return True
        try:
            self.ray.get(self.starting.pop(place))
        except Exception as error:
            self.replace(place, error)
            return False
        return True

    def replace(self, place: int, error: Exception) -> None:
        """Start to build a replacement for a worker that died or raised `error`. UserError as in `Restarts.note`."""
        self.restarts.note(self.name(place), error)
        self.ray.kill(self.handles[place])
        self.incarnations[place] += 1
        self.launch(place)

    def close(self) -> None:
        for handle in self.handles:
            if handle is not None:
                self.ray.kill(handle)


class RemoteEvaluator:
    """Plays greedy episodes in its own process, while training continues."""

    def __init__(self, packed: PackedRecipe):
        self.packed = packed
        self.evaluator: Evaluator | None = None

    def evaluate(self, policy: Any) -> Metrics:
        if self.evaluator is None:
            torch.set_num_threads(1)
            recipe = unpack_recipe(self.packed)
            seed = recipe.seeds().evaluation
            self.evaluator = Evaluator(recipe.env, recipe.evaluation, seed, CPU, recipe.env_timeout)
            self.policy = recipe.build_agent(self.evaluator.env.spec, CPU, total_updates=1).policy
        self.policy.load_state_dict(to_tensors(policy))
        return self.evaluator(self.policy).metrics()


class Evaluations:
    """The learner's side of the evaluator: at most one evaluation at a time, and a new process if one is lost."""

    def __init__(self, ray: Any, packed: PackedRecipe, cpus: float, restarts: Restarts):
        self.ray, self.packed, self.cpus, self.restarts = ray, packed, cpus, restarts
        self.process: Any = None
        self.pending: tuple[Any, Counters, State] | None = None

    def request(self, policy: torch.nn.Module, counters: Counters, state: State) -> None:
        """Evaluate `policy` as it is now. There must be no pending evaluation."""
        assert self.pending is None
        self.pending = self._call(policy), counters, state

    def take(self, *, wait: bool = False) -> tuple[Counters, Metrics, State] | None:
        """The metrics, with what they were requested with. None: not finished, or lost together with the process."""
        if self.pending is None:
            return None
        call, counters, state = self.pending
        if not self.ray.wait([call], timeout=None if wait else 0)[0]:
            return None
        self.pending = None
        metrics = self._result(call)
        return None if metrics is None else (counters, metrics, state)

    def now(self, policy: torch.nn.Module) -> Metrics:
        """Evaluate and wait; repeated with a new process if one is lost."""
        while (metrics := self._result(self._call(policy))) is None:
            ...
        return metrics

    def _call(self, policy: torch.nn.Module) -> Any:
        if self.process is None:
            self.process = remote(self.ray, RemoteEvaluator, cpus=self.cpus).remote(self.packed)
        return self.process.evaluate.remote(to_arrays(policy.state_dict()))

    def _result(self, call: Any) -> Metrics | None:
        try:
            metrics: Metrics = self.ray.get(call)
            return metrics
        except Exception as error:
            self.restarts.note("the evaluator", error)
            self.close()
            return None

    def close(self) -> None:
        if self.process is not None:
            self.ray.kill(self.process)
            self.process = None
