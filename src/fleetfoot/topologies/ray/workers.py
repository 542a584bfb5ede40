"""Worker processes of which each has a place, and who takes the place of one that is lost."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from fleetfoot.errors import UserError
from fleetfoot.evaluate import Evaluator
from fleetfoot.log import Counters
from fleetfoot.topologies.ray.transport import PackedRecipe, to_arrays, to_tensors, unpack_recipe

CPU = torch.device("cpu")


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


def on_this_node(ray: Any) -> Any:
    """A scheduling strategy: on the machine of the caller, where its run folder is."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)


def remote(ray: Any, cls: type, *, cpus: float, gpus: float = 0.0, **options: Any) -> Any:
    """`cls` as a Ray actor class. Restarting is the topology's business: only it knows what a restart loses."""
    return ray.remote(cls).options(
        num_cpus=cpus, num_gpus=gpus, max_restarts=0, max_task_retries=0, **options
    )


class Restarts:
    """Counts workers that were lost, says so in one line each, and gives up beyond a limit.

    What a Ray actor prints ends in Ray's own files, so those that restart others hand their lines to `say`.
    """

    def __init__(
        self,
        limit: int,
        say: Callable[[str], object] | None = None,
        option: str = "--topology.ray.max-restarts",
    ):
        """`option`: where the limit can be raised."""
        self.limit, self.count, self.say, self.option = limit, 0, say or tell, option

    def note(self, who: str, error: BaseException | str) -> None:
        """A worker is lost and will be replaced. UserError where its error is one, or where there were too many."""
        if isinstance(error, BaseException):
            raise_mistake(error)
        reason = error if isinstance(error, str) else one_line(error)
        self.count += 1
        if self.count > self.limit:
            raise UserError(
                f"{who} is lost ({reason}) after {self.limit} restarts: put that right, or raise {self.option}."
            )
        self.say(f"{who} is lost ({reason}); restart {self.count} of {self.limit}.")


def tell(line: str) -> None:
    print(f"fleetfoot: {line}", file=sys.stderr, flush=True)


def died(ray: Any, error: BaseException) -> bool:
    """Is this the death of the process asked, or of its machine, and not an exception inside it?

    Where a worker meets the death of another and does not catch it, Ray makes that an error of both kinds.
    """
    if isinstance(error, ray.exceptions.RayTaskError):
        return False
    kinds = ray.exceptions
    ends = (kinds.RayActorError, kinds.WorkerCrashedError, kinds.ObjectLostError)
    return isinstance(
        error, (*ends, kinds.OutOfMemoryError)
    )  # Ray ends processes before memory does


def cause(error: BaseException) -> BaseException:
    """What a worker raised, out of what Ray makes of it."""
    inner = getattr(error, "cause", None)
    return inner if isinstance(inner, BaseException) else error


def raise_mistake(error: BaseException) -> None:
    """Raise what a worker raised, if that is a mistake of the user: another worker would make it too."""
    if isinstance(inner := cause(error), UserError):
        raise UserError(str(inner)) from error


def one_line(error: BaseException) -> str:
    """The kind of an error and the last line of what it says."""
    inner = cause(error)
    lines = [line.strip() for line in str(inner).splitlines() if line.strip()]
    if type(inner).__name__ in ("ActorDiedError", "RayActorError", "ActorUnavailableError"):
        return "its process died"
    if type(inner).__name__ == "OutOfMemoryError":
        return "its machine has no memory left"
    return f"{type(inner).__name__}: {lines[-1][:300]}" if lines else type(inner).__name__


class ActorFailed(Exception):  # noqa: N818
    """Something in an actor raised, most likely its environments; the message names their seed."""


class Reported:
    """Makes what is raised inside an `ActorFailed` that names the seed. Mistakes of the user stay what they are."""

    def __init__(self, what: str):
        self.what = what

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, Exception) and not isinstance(error, UserError):
            raise ActorFailed(f"{self.what}: {one_line(error)}") from error


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
