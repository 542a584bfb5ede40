"""The three processes of PQL on Ray, and who takes the place of one that is lost."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, cast

import torch

from fleetfoot.config import part
from fleetfoot.data import EnvSpec
from fleetfoot.errors import UserError
from fleetfoot.recipe import Recipe
from fleetfoot.run.interrupt import Interrupt
from fleetfoot.topologies.pql.loop import STAGES, SplitLearnersConfig
from fleetfoot.topologies.pql.workers import CriticLearner, PolicyLearner, SplitActor
from fleetfoot.topologies.ray.cluster import check_device
from fleetfoot.topologies.ray.transport import Published, pack_recipe, to_arrays
from fleetfoot.topologies.ray.workers import Restarts, cause, died, raise_mistake, remote

WAIT_SECONDS = 0.5  # between looks at whether the run shall stop
WORKERS = {"actor": SplitActor, "critic": CriticLearner, "policy": PolicyLearner}
NAMES = {"actor": "the actor", "critic": "the critic learner", "policy": "the policy learner"}


@part
class RoleConfig:
    cpus: float = 1.0
    """Cores that it asks the cluster for; so many threads it has."""
    gpus: float = -1.0
    """GPUs that it asks for; 0: it works on the CPU; below 0: a third of one, if the recipe's device is a GPU."""

    def __post_init__(self) -> None:
        if self.cpus < 0:
            raise UserError("the cpus of a role must be 0 or more.")

    def gpus_of(self, device: torch.device) -> float:
        check_device(device)
        if device.type != "cuda":
            return 0.0
        return 0.33 if self.gpus < 0 else self.gpus


class Stages:
    """The three processes, and who takes the place of one that is lost."""

    def __init__(
        self,
        ray: Any,
        recipe: Recipe,
        roles: dict[str, RoleConfig],
        restarts: Restarts,
        interrupt: Interrupt,
    ):
        """`roles`: of each stage."""
        self.ray, self.recipe, self.roles, self.restarts = ray, recipe, roles, restarts
        self.interrupt, self.packed = interrupt, pack_recipe(recipe)
        self.handles: dict[str, Any] = {}
        self.life = 0  # actors that were lost
        self.versions = {name: Published(0, None) for name in ("policy", "critic", "statistics")}
        self.beside = ("", 0)  # where the policy learner's memory is, and the bytes it will fill

    def launch(self, stage: str) -> None:
        role = self.roles[stage]
        gpus = role.gpus_of(self.recipe.torch_device())
        make = remote(self.ray, WORKERS[stage], cpus=role.cpus, gpus=gpus)
        threads = self.recipe.threads or max(1, int(role.cpus))
        self.handles[stage] = make.remote(self.packed, threads, gpus > 0)

    def start(self, state: dict[str, Any] | None) -> EnvSpec:
        """Start all three; tells what the environments are."""
        for stage in STAGES:
            self.launch(stage)
        now = (0, 0) if state is None else (state["vec_steps"], state["updates"])
        self.spec = spec = cast(EnvSpec, self.start_one("actor", state, *now))
        # One after the other: each looks at how much memory is left.
        self.beside = self.start_one("policy", state, *now)
        self.start_one("critic", state, *now)
        self.beside = ("", 0)  # from now on it counts as used
        critic, normal = self.handles["critic"].publish.options(num_returns=2).remote()
        policy = self.handles["policy"].publish.remote()
        for name, ref in (("policy", policy), ("critic", critic), ("statistics", normal)):
            self.publish(name, ref)
        return spec

    def start_one(
        self, stage: str, state: dict[str, Any] | None, vec_steps: int, updates: int
    ) -> Any:
        """Have a new process begin in the state of a checkpoint (None: of the beginning), and with the newest weights.
        Tells what its `start` returns."""
        while True:
            start = self.handles[stage].start
            mine = self.ray.put(to_arrays(rank_state(stage, state), copy=False))
            newest = {name: version.ref for name, version in self.versions.items()}
            if stage == "actor":
                ref = start.remote(self.life, vec_steps, mine)
            elif stage == "policy":
                # The rows of the critic learner again in lockstep, otherwise others.
                topology = self.recipe.topology
                assert isinstance(topology, SplitLearnersConfig)
                seed = self.recipe.seeds().replay + (not topology.lockstep)
                ref = start.remote(self.spec, seed, mine, newest["policy"])
            else:
                weights = newest["critic"], newest["statistics"]
                ref = start.remote(self.spec, self.beside, mine, updates, *weights)
            try:
                return self.wait_for(ref)
            except Exception as error:
                self.note(stage, error)

    def wait_for(self, ref: Any) -> Any:
        """Ray may be waiting for room, in vain; Ctrl-C ends that."""
        while not self.ray.wait([ref], timeout=WAIT_SECONDS)[0]:
            if self.interrupt.asked:
                raise KeyboardInterrupt
        return self.ray.get(ref)

    def note(self, stage: str, error: Exception) -> None:
        """One is lost, and another launched; raises where that must not be."""
        if stage != "actor" and not died(self.ray, error):
            raise_mistake(error)
            raise cause(error)  # a learner that fails would fail again
        self.restarts.note(NAMES[stage], error)
        self.ray.kill(self.handles[stage])
        self.life += stage == "actor"
        self.launch(stage)

    def publish(self, name: str, ref: Any) -> None:
        self.versions[name] = Published(self.versions[name].version + 1, ref)

    def check_versions(self) -> None:
        """Forget versions that were lost with a machine: those that have older ones keep them."""
        for name, version in self.versions.items():
            try:
                self.ray.get(version.ref)
            except self.ray.exceptions.RayError:
                self.versions[name] = Published(version.version, None)

    def newest(self, *names: str) -> list[Any]:
        """Numbers and references, as the processes take them."""
        return [item for name in names for item in self.versions[name]]

    def close(self) -> None:
        with suppress(Exception):
            self.ray.wait([self.handles["actor"].close.remote()], timeout=5.0)
        for handle in self.handles.values():
            self.ray.kill(handle)


def rank_state(stage: str, state: dict[str, Any] | None) -> dict[str, Any] | None:
    """What a process needs of a checkpoint."""
    if state is None:
        return None
    if stage == "actor":
        return {name: state[name] for name in ("explorer", "env", "episodes")}
    mine = {"agent": state["agent"]}
    replay = state.get("replay")
    if replay is None:
        return mine
    if stage == "policy":
        return mine | {"observations": replay["observations"]}
    return mine | {"replay": {k: v for k, v in replay.items() if k != "observations"}}
