"""The processes of a Gorila run on Ray: shards of the server, bundles, and who takes the place of those that are lost.

A bundle that dies or fails is replaced by one with an empty replay and random numbers of its own, which goes on
exploring where the lost one was; the work it had not reported is void and is done again. Where a shard dies, the whole
server goes back to the last checkpoint: with one slice older than the others it would be no network that ever was.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from fleetfoot.recipe import Recipe
from fleetfoot.run.interrupt import Interrupt
from fleetfoot.topologies.gorila.bundle import (
    CARRIED_STATE,
    Bundle,
    Replica,
    Report,
    Served,
    ServerLost,
    bundle_seeds,
    flat,
    make_rule,
    total_updates,
)
from fleetfoot.topologies.gorila.server import (
    Pulled,
    Server,
    ServerConfig,
    ServerShard,
    ShardSlice,
    Version,
    cut,
)
from fleetfoot.topologies.ray.cluster import RayConfig, load_ray
from fleetfoot.topologies.ray.transport import PackedRecipe, pack_recipe, unpack_recipe
from fleetfoot.topologies.ray.workers import Restarts, Workers, died, remote

T = TypeVar("T")
LOOK_SECONDS = 0.5  # between two looks at whether the user has pressed Ctrl-C


class FleetConfig(Protocol):
    """The fields of the topology that the processes read."""

    @property
    def bundles(self) -> int: ...
    @property
    def shards(self) -> int: ...
    @property
    def max_age(self) -> int | None: ...
    @property
    def outlier_stds(self) -> float | None: ...
    @property
    def outlier_memory(self) -> int: ...
    @property
    def shift_vec_steps(self) -> int: ...
    @property
    def lockstep(self) -> bool: ...
    @property
    def ray(self) -> RayConfig: ...


class RayShard:
    """A shard as a process. Gradients and weights travel as arrays, and are copied: those from the object store cannot
    be written to."""

    def __init__(self, weights: NDArray[np.float32], pieces: list[int], rule: ServerConfig):
        torch.set_num_threads(1)
        self.shard = ServerShard(torch.tensor(weights), pieces, rule)

    def pull(self, known: Version) -> Pulled:
        stamp, *slices = self.shard.pull(known)
        return Pulled(stamp, *(None if x is None else x.numpy() for x in slices))  # type: ignore[arg-type]

    def push(self, gradient: NDArray[np.float32], known: Version, bundle: int) -> Version | None:
        return self.shard.push(torch.tensor(gradient), known, bundle)

    def apply(self, gradient: NDArray[np.float32], number: Version) -> None:
        self.shard.apply(torch.tensor(gradient), number)

    def other(self, method: str, *arguments: Any) -> Any:
        return getattr(self.shard, method)(*arguments)


def call_there(
    shards: Sequence[Any], method: str, arguments: Sequence[tuple[Any, ...]]
) -> list[Any]:
    """Call shards that are processes, all at once, and wait for their answers."""
    ray = load_ray()
    sent = [tuple(x.numpy() if isinstance(x, torch.Tensor) else x for x in a) for a in arguments]
    try:
        if method not in ("pull", "push", "apply"):
            return ray.get([s.other.remote(method, *a) for s, a in zip(shards, sent, strict=True)])  # type: ignore[no-any-return]
        answers = [getattr(s, method).remote(*a) for s, a in zip(shards, sent, strict=True)]
        return [_as_tensors(answer) for answer in ray.get(answers)]
    except Exception as error:
        if died(ray, error):
            raise ServerLost from error
        raise


def _as_tensors(answer: Any) -> Any:
    if not isinstance(answer, Pulled):
        return answer
    slices = (None if x is None else torch.tensor(x) for x in answer[1:])
    return Pulled(answer.stamp, *slices)


def is_lost(shard: Any) -> bool:
    try:
        call_there([shard], "stamp", [()])
    except ServerLost:
        return True
    return False


class RayBundle:
    """A bundle as a process."""

    def __init__(self, packed: PackedRecipe, cuts: list[ShardSlice], index: int, life: int):
        self.packed, self.cuts, self.index, self.life = packed, cuts, index, life

    def start(self, shards: list[Any], habits: Any = None, state: Any = None) -> None:
        """Build everything. Not in `__init__`, whose errors Ray would only tell as the death of the process."""
        recipe = unpack_recipe(self.packed)
        cfg: FleetConfig = recipe.topology  # type: ignore[assignment]
        torch.set_num_threads(recipe.threads or max(1, int(cfg.ray.worker_cpus)))
        self.bundle = Bundle(
            recipe,
            Server(shards, self.cuts, call_there),
            bundles=cfg.bundles,
            index=self.index,
            life=self.life,
            lockstep=cfg.lockstep,
            outlier_stds=cfg.outlier_stds,
            outlier_memory=cfg.outlier_memory,
        )
        if habits is not None:
            self.bundle.succeed(habits)
        if state is not None:
            self.bundle.load_state_dict(state)

    def work(self, vec_steps: int, shards: list[Any]) -> Report:
        self.bundle.replica.server.shards = shards
        return self.bundle.work(vec_steps)

    def state_dict(self, with_replay: bool) -> dict[str, Any]:
        return self.bundle.state_dict(with_replay)


class BundleFleet:
    """The processes of a run: who they are, what they work at, and who takes the place of those that are lost."""

    def __init__(self, ray: Any, cfg: FleetConfig, recipe: Recipe, agent: Served):
        """`agent`: of the starting process, whose first weights the server takes over."""
        self.ray, self.cfg, self.recipe, self.packed = ray, cfg, recipe, pack_recipe(recipe)
        cpus, gpus = cfg.ray.worker_cpus, cfg.ray.gpus_of(recipe.torch_device()) / cfg.bundles
        self.shard_class = remote(ray, RayShard, cpus=cpus)
        self.bundle_class = remote(ray, RayBundle, cpus=cpus, gpus=gpus)
        self.restarts = Restarts(cfg.ray.max_restarts)
        parameters = agent.step_critic.parameters
        self.weights = flat(parameters)
        self.cuts = cut([p.numel() for p in parameters], cfg.shards)
        max_age = 4 * cfg.bundles if cfg.max_age is None else cfg.max_age
        self.rule = make_rule(agent, total_updates(recipe, cfg.bundles), max_age)
        self.server = Server([self.new_shard(c) for c in self.cuts], self.cuts, call_there)
        self.replica = Replica(self.server, agent)
        self.generation = 0
        self.workers = Workers(
            ray, self.launch, incarnations=[0] * cfg.bundles, name=self.name, restarts=self.restarts
        )
        self.habits: list[dict[str, Any] | None] = [None] * cfg.bundles
        self.saved: list[Any] = [None] * cfg.bundles  # states that the bundles begin with
        self.idle = deque(range(cfg.bundles))  # in the order of their turns

    def new_shard(self, place: ShardSlice) -> Any:
        return self.shard_class.remote(
            self.weights[place.start : place.stop].numpy(), place.pieces, self.rule
        )

    def name(self, index: int) -> str:
        seed = bundle_seeds(self.recipe.seed, index, self.workers.incarnations[index]).env
        return f"bundle {index} (environments of seed {seed})"

    def launch(self, index: int) -> tuple[Any, Any]:
        """A bundle that goes on from a saved state, or with the habits of one that was lost."""
        bundle = self.bundle_class.remote(
            self.packed, self.cuts, index, self.workers.incarnations[index]
        )
        state, self.saved[index] = self.saved[index], None
        habits = self.habits[index] if state is None else None
        return bundle, bundle.start.remote(self.server.shards, habits, state)

    def start(self, state: dict[str, Any] | None) -> None:
        """Start all bundles, from the beginning or from a checkpoint."""
        if state is not None:
            self.generation, self.idle = state["generation"], deque(state["turns"])
            self.workers.incarnations[:] = state["lives"]
            self.server.load_state_dict(state["server"], self.generation)
            self.habits = [{name: b[name] for name in CARRIED_STATE} for b in state["bundles"]]
            replays = state.pop("replay", [None] * self.cfg.bundles)
            both = zip(state["bundles"], replays, strict=True)
            self.saved = [bundle | {"replay": replay} for bundle, replay in both]
        self.workers.launch_all()
        self.kept = self.server.state_dict()  # what a lost shard is restored from

    def work(self, vec_steps: int, interrupt: Interrupt) -> Iterator[Report]:
        """Have the bundles make so many vec steps together, and tell what each reports. All are idle afterwards."""
        busy: dict[Any, tuple[int, int]] = {}  # call -> bundle and vec steps
        most = 1 if self.cfg.lockstep else self.cfg.bundles
        left, server_lost = vec_steps, False
        starting = self.workers.starting
        while busy or server_lost or starting or (left and not interrupt.asked):
            if server_lost and not busy:
                self.restore()
                server_lost = False
            go_on = not (interrupt.asked or server_lost)
            while go_on and left and self.idle and len(busy) < most:
                index = self.idle.popleft()
                steps = min(self.cfg.shift_vec_steps, left)
                bundle = self.workers.handles[index]
                busy[bundle.work.remote(steps, self.server.shards)] = index, steps
                left -= steps
            if not busy and not starting:
                continue
            built = {call: index for index, call in starting.items()}
            done, _ = self.ray.wait([*busy, *built], num_returns=1, timeout=LOOK_SECONDS)
            for call in done:
                if call in built:
                    if self.workers.started(built[call]):
                        self.idle.append(built[call])
                    continue
                index, steps = busy.pop(call)
                try:
                    report: Report = self.ray.get(call)
                except Exception as error:
                    left += steps
                    self.workers.replace(index, error)  # the others work on while it is built
                else:
                    left += steps - report.vec_steps
                    self.habits[index] = report.habits
                    server_lost = server_lost or report.server_lost
                    yield report
                    self.idle.append(index)

    def restore(self) -> None:
        """Where a shard is lost, the whole server goes back to the last checkpoint. Where none is, nothing happens:
        several bundles may have met the loss of one shard."""
        while lost := [i for i, shard in enumerate(self.server.shards) if is_lost(shard)]:
            for i in lost:
                self.restarts.note(f"shard {i} of the server", "its process died")
                self.server.shards[i] = self.new_shard(self.cuts[i])
            self.generation += 1  # gradients that are still on their way belong to another server
            with suppress(ServerLost):
                self.server.load_state_dict(self.kept, self.generation)

    def ask(self, question: Callable[[], T]) -> T:
        """Ask the server; restore it first if it turns out to be lost."""
        while True:
            try:
                return question()
            except ServerLost:
                self.restore()

    def state_dict(self, with_replay: bool) -> dict[str, Any]:
        self.kept = self.ask(self.server.state_dict)
        bundles = []
        for index in range(self.cfg.bundles):
            while True:
                try:
                    ref = self.workers.handles[index].state_dict.remote(with_replay)
                    bundles.append(self.ray.get(ref))
                    break
                except Exception as error:
                    self.workers.replace(index, error)
                    self.workers.wait_for(index)
        state = {
            "server": self.kept,
            "bundles": [{k: v for k, v in b.items() if k != "replay"} for b in bundles],
            "generation": self.generation + 1,
            "lives": list(self.workers.incarnations),
            "turns": list(self.idle),
        }
        return state | ({"replay": [b["replay"] for b in bundles]} if with_replay else {})

    def close(self) -> None:
        """End all processes of the run; a cluster that goes on should not keep them."""
        self.workers.close()
        for shard in self.server.shards:
            self.ray.kill(shard)
