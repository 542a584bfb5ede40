"""Ray, for the topologies that are spread over processes and machines.

Without an address a run starts a Ray of its own, which ends with it and listens on this machine alone. With one it
joins the cluster there and leaves it running. What travels: recipes as JSON, weights and transitions as numpy arrays
through Ray's object store, which pickles what carries them. Nothing here unpickles a file; a Ray whose object store is
full moves objects to files of its own session folder and reads them back.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fleetfoot.config import from_json, part, to_json
from fleetfoot.errors import UserError
from fleetfoot.recipe import Recipe

GIB = 1024**3

# Arrays from the object store cannot be written to. Nothing here writes to them, and torch would warn each time.
warnings.filterwarnings("ignore", message="The given NumPy array is not writable")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClusterFields:
    """What every way to use Ray has to say."""

    address: str = ""
    """Of a running cluster (host:port, or auto for the one on this machine); empty: start one for this run alone."""
    object_store_gib: float = 1.0
    """Shared memory of a Ray started here."""
    max_restarts: int = 10
    """Workers that may die or fail before the run ends with an error. A learner that begins again, and a resumed
    run, count from 0; losses of the learner itself are counted apart, to the same limit."""


@part
class RayConfig(ClusterFields):
    worker_cpus: float = 1.0
    """Cores that each worker (actor, bundle, shard, evaluator) asks the cluster for."""
    learner_cpus: float = 1.0
    """Cores that the learner asks for."""
    learner_gpus: float = -1.0
    """GPUs that the learner asks for; below 0: one if the recipe's device is a GPU."""

    def __post_init__(self) -> None:
        if self.max_restarts < 0 or self.worker_cpus < 0 or self.learner_cpus < 0:
            raise UserError("ray.max_restarts, worker_cpus and learner_cpus must be 0 or more.")

    def gpus_of(self, device: torch.device) -> float:
        """GPUs for a learner on `device`."""
        check_device(device)
        if self.learner_gpus >= 0:
            return self.learner_gpus
        return 1.0 if device.type == "cuda" else 0.0


def check_device(device: torch.device) -> None:
    """UserError for a certain GPU: which one a process gets is for Ray to say, and it sees no other."""
    if device.type == "cuda" and device.index:
        raise UserError(
            f"under Ray a learner cannot choose {device}: use --device cuda, and to choose a GPU start "
            f"fleetfoot (or ray start) with CUDA_VISIBLE_DEVICES={device.index}."
        )


def load_ray() -> Any:
    """The module `ray`, or one line about how to get it."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "1")  # no GPU asked for, none seen
    try:
        return importlib.import_module("ray")
    except ImportError:
        raise UserError("this topology needs Ray: pip install 'fleetfoot[ray]'") from None


@contextmanager
def cluster(
    cfg: ClusterFields, *, cpus: float, gpus: float, here: tuple[float, float] = (0.0, 0.0)
) -> Iterator[Any]:
    """The module `ray`, connected; `cpus` and `gpus` are what the roles of the run ask for together, `here` is what
    those of them ask for that must be on this machine.

    A Ray started here promises just that many cores, whatever the machine has: four actors then run on two cores too,
    in turns. A Ray that the program is connected to already is used, and left as it is.
    """
    if not cfg.address:
        # Ray then takes the loopback address for this machine's, and all its services listen there alone.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    ray = load_ray()
    if ray.is_initialized():
        check_room(ray, cpus, gpus, here)
        yield ray
        return
    quiet = {"log_to_driver": False, "logging_level": "ERROR", "configure_logging": False}
    try:
        if cfg.address:
            ray.init(cfg.address, **quiet)
        else:
            ray.init(
                "local",
                _node_ip_address="127.0.0.1",
                include_dashboard=False,
                num_cpus=int(np.ceil(cpus)),
                num_gpus=int(np.ceil(gpus)),
                object_store_memory=int(cfg.object_store_gib * GIB),
                **quiet,
            )
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        where = f"connect to Ray at {cfg.address}" if cfg.address else "start Ray"
        raise UserError(f"cannot {where}: {one_line(error)}") from error
    try:
        if cfg.address:
            check_room(ray, cpus, gpus)
        yield ray
    finally:
        ray.shutdown()


def check_room(ray: Any, cpus: float, gpus: float, here: tuple[float, float] = (0, 0)) -> None:
    """Refuse a cluster that could never hold the run: Ray itself would wait for ever.

    What other programs use now may become free, so it counts as room.
    """
    mine = ray.get_runtime_context().get_node_id()
    alive = {node["NodeID"]: node["Resources"] for node in ray.nodes() if node["Alive"]}
    own = alive.get(mine, {})
    whole = ray.cluster_resources()
    for name, all_roles, learner in (("CPU", cpus, here[0]), ("GPU", gpus, here[1])):
        if own.get(name, 0.0) < learner:
            raise UserError(
                f"the learner asks for {learner:g} {name}s, Ray has {own.get(name, 0.0):g} on this machine, where "
                f"the learner must be: start Ray here with more, or lower --topology.ray.learner-{name.lower()}s."
            )
        if whole.get(name, 0.0) < all_roles:
            raise UserError(
                f"the run asks for {all_roles:g} {name}s, the cluster has {whole.get(name, 0.0):g}: "
                "add nodes, take fewer workers, or let each ask for less."
            )


def on_this_node(ray: Any) -> Any:
    """A scheduling strategy: on the machine of the caller, where its run folder is."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)


def remote(ray: Any, cls: type, *, cpus: float, gpus: float = 0.0, **options: Any) -> Any:
    """`cls` as a Ray actor class. Restarting is the topology's business: only it knows what a restart loses."""
    return ray.remote(cls).options(
        num_cpus=cpus, num_gpus=gpus, max_restarts=0, max_task_retries=0, **options
    )


class PackedRecipe(NamedTuple):
    """A recipe on its way to another process."""

    text: str  # JSON
    modules: tuple[str, ...]  # that define its parts, the user's own among them
    path: tuple[str, ...]  # where this process finds modules


def pack_recipe(recipe: Recipe) -> PackedRecipe:
    modules = sorted(set(_modules(recipe)))
    if "__main__" in modules:
        raise UserError(
            "a part of this recipe is defined in the program itself, where other processes do not find it: "
            "move it to a module of its own and import it."
        )
    path = tuple(os.path.abspath(place) for place in sys.path if os.path.isdir(place or "."))
    return PackedRecipe(json.dumps(to_json(recipe)), tuple(modules), path)


def unpack_recipe(packed: PackedRecipe) -> Recipe:
    known = set(sys.path)
    sys.path += [place for place in packed.path if place not in known and os.path.isdir(place)]
    for module in packed.modules:
        importlib.import_module(module)
    recipe = from_json(json.loads(packed.text))
    assert isinstance(recipe, Recipe)
    return recipe


def _modules(value: Any) -> Iterator[str]:
    if dataclasses.is_dataclass(value):
        yield type(value).__module__
        for field in dataclasses.fields(value):
            yield from _modules(getattr(value, field.name))
    elif isinstance(value, (tuple, list)):
        for one in value:
            yield from _modules(one)
    elif isinstance(value, dict):
        for one in value.values():
            yield from _modules(one)


class Bfloat16(NamedTuple):
    """Numbers that numpy does not know, by their bits."""

    bits: Any


def to_arrays(tree: Any, *, copy: bool = True) -> Any:
    """Tensors, in dictionaries, tuples and lists, as numpy arrays that nobody will write to.

    A tensor on the CPU is copied: the object store may read it later, when training may have changed it. What is read
    at once, as that which a worker returns, need not be.
    """
    if isinstance(tree, Tensor):
        if tree.dtype == torch.bfloat16:
            return Bfloat16(to_arrays(tree.view(torch.int16), copy=copy))
        host = tree.detach().to("cpu")
        shared = host.data_ptr() == tree.data_ptr()
        return (host.clone() if copy and shared else host).numpy()
    if isinstance(tree, dict):
        return {key: to_arrays(value, copy=copy) for key, value in tree.items()}
    if isinstance(tree, (tuple, list)):
        return [to_arrays(value, copy=copy) for value in tree]
    return tree


def to_tensors(tree: Any) -> Any:
    """The inverse of `to_arrays`, but for tuples, which are lists now. Do not write to the tensors."""
    if isinstance(tree, np.ndarray):
        return torch.from_numpy(tree)
    if isinstance(tree, Bfloat16):
        return torch.from_numpy(tree.bits).view(torch.bfloat16)
    if isinstance(tree, dict):
        return {key: to_tensors(value) for key, value in tree.items()}
    if isinstance(tree, (tuple, list)):
        return [to_tensors(value) for value in tree]
    return tree


class Published(NamedTuple):
    """Weights in the object store. Pass it to workers as it is; `fetch` gives the arrays' tensors."""

    version: int
    ref: Any  # None in `version` 0, where workers build the initial weights themselves


def publish(ray: Any, version: int, weights: Any) -> Published:
    """Put `weights` (any tree of tensors) into the object store under a version number."""
    return Published(version, ray.put(to_arrays(weights)))


def fetch(ray: Any, published: Published) -> Any:
    return to_tensors(ray.get(published.ref))


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
