"""The stages as Ray actors: processes on one to three GPUs, or on several machines.

The process that was started coordinates. It asks each of the three for its rounds, at most two at once, so that the
next one is there when a round ends. Vec steps and weights go from process to process through Ray's object store; the
coordinator holds only references. A round is made with the versions that are the newest when it is asked for.

A process that is lost is replaced. An actor begins new episodes, with its own random numbers. A learner gets the
weights that were published last, and everything else (targets, optimisers, memory) from the last checkpoint. The new
process makes the rounds that the lost one had not finished; updates since the checkpoint count as made. Where the
checkpoint has no replay, the memories fill for a warm-up before anybody learns, as in a resumed run.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from fleetfoot.agents.contract import as_actor_critic
from fleetfoot.config import at_least, part
from fleetfoot.errors import Halted, UserError
from fleetfoot.guard import GRACE
from fleetfoot.recipe import Recipe
from fleetfoot.run.interrupt import Interrupt
from fleetfoot.run.journal import State
from fleetfoot.topologies.pql.exchange import WEIGHTS, FlatVersion, Outcome, Setup
from fleetfoot.topologies.pql.lost_actor import LostActor
from fleetfoot.topologies.pql.processes import CPU, PROCESSES, Started
from fleetfoot.topologies.pql.schedule import Round, share_of
from fleetfoot.topologies.pql.stages import STAGES
from fleetfoot.topologies.ray.cluster import ClusterFields, check_device, cluster
from fleetfoot.topologies.ray.transport import pack_recipe, to_arrays, to_tensors
from fleetfoot.topologies.ray.workers import Restarts, cause, died, raise_mistake, remote

if TYPE_CHECKING:
    from fleetfoot.topologies.pql.loop import Coordinator

WAIT_SECONDS = 0.5  # between looks at whether the run shall stop


@part
class RoleConfig:
    """What one of the three processes asks the cluster for."""

    cpus: float = 1.0
    """Cores that it asks the cluster for, and threads that it uses."""
    gpus: float = -1.0
    """GPUs that it asks for; 0: it runs on the CPU; below 0: a third of one, if the recipe's device is a GPU."""

    def __post_init__(self) -> None:
        at_least(self, "role", cpus=0)

    def gpus_of(self, device: torch.device) -> float:
        check_device(device)
        if device.type != "cuda":
            return 0.0
        return 0.33 if self.gpus < 0 else self.gpus


@part
class OnRayConfig(ClusterFields):
    """Ray actors, in separate processes. By default they share one GPU."""

    actor: RoleConfig = RoleConfig()
    critic_learner: RoleConfig = RoleConfig()
    policy_learner: RoleConfig = RoleConfig()

    def __post_init__(self) -> None:
        at_least(self, "topology.placement", max_restarts=0)

    def roles(self) -> dict[str, RoleConfig]:
        roles = (self.actor, self.critic_learner, self.policy_learner)
        return dict(zip(STAGES, roles, strict=True))

    @contextmanager
    def open(
        self, recipe: Recipe, state: State | None, same_rows: bool, interrupt: Interrupt
    ) -> Iterator[Processes]:
        device, roles = recipe.torch_device(), self.roles().values()
        cpus, gpus = sum(r.cpus for r in roles), sum(r.gpus_of(device) for r in roles)
        if not self.address and gpus > torch.cuda.device_count():
            raise UserError(
                f"the actor and both learners ask for {gpus:g} GPUs, and this machine has {torch.cuda.device_count()}: "
                "lower --topology.placement.actor.gpus and the others', or give --topology.placement.address."
            )
        with cluster(self, cpus=cpus, gpus=gpus) as ray:
            processes = Processes(ray, recipe, self, interrupt)
            try:
                processes.start_all(state, same_rows)
                yield processes
            finally:
                processes.close()


class Call(NamedTuple):
    """A round that a process was asked for."""

    planned: Round
    objects: list[Any]  # references to what it returns


class Processes:
    """Carries weights and vec steps between the stages through Ray's object store, and replaces processes."""

    ahead, device, all_here = 2, CPU, False
    coordinator: Coordinator

    def __init__(self, ray: Any, recipe: Recipe, cfg: OnRayConfig, interrupt: Interrupt):
        self.ray, self.recipe, self.roles, self.interrupt = ray, recipe, cfg.roles(), interrupt
        self.restarts = Restarts(cfg.max_restarts, option="--topology.placement.max-restarts")
        self.packed = pack_recipe(recipe)
        self.handles: dict[str, Any] = {}
        # References in place of the arrays, which only the processes have.
        self.versions = {name: FlatVersion(0, None) for name in WEIGHTS}
        self.calls: dict[str, deque[Call]] = {stage: deque() for stage in STAGES}
        self.beside_on = ""  # the machine where the policy learner will fill memory
        self.failing = ""  # the stage whose process was lost last
        self.without: LostActor | None = None  # in place of an actor that is not replaced any more

    def start_all(self, state: State | None, same_rows: bool) -> None:
        for stage in STAGES:
            self._launch(stage)
        now = {} if state is None else {name: state[name] for name in ("vec_steps", "updates")}
        self.setup = Setup(same_rows=same_rows, **now)
        self.spec = spec = self._start("actor", state).spec
        self.setup = self.setup._replace(spec=spec)
        # One after the other: each checks how much memory is left.
        policy = self._start("policy", state)
        self.setup = self.setup._replace(bytes_beside=policy.bytes_to_fill)
        self.beside_on = policy.node
        self._start("critic", state)
        self.setup = self.setup._replace(bytes_beside=0)  # from now on it counts as used
        agent = self.recipe.build_agent(replace(spec, device=CPU), CPU, total_updates=1)
        self.agent = as_actor_critic(agent)

    def _launch(self, stage: str) -> None:
        role = self.roles[stage]
        gpus = role.gpus_of(self.recipe.torch_device())
        make = remote(self.ray, PROCESSES[stage], cpus=role.cpus, gpus=gpus)
        threads = self.recipe.threads or max(1, int(role.cpus))
        self.handles[stage] = make.remote(self.packed, threads, gpus > 0)

    def _start(self, stage: str, state: State | None) -> Started:
        """Have a new process build its stage; if it fails, its replacements try."""
        share = None if state is None else share_of(stage, state)
        while True:
            # Put again for each: it may be lost with the machine.
            stored = self.ray.put(to_arrays(share, copy=False))
            weights = [version.arrays for version in self.versions.values()]
            ref = self.handles[stage].start.remote(self.setup, self.beside_on, stored, *weights)
            while not self.ray.wait([ref], timeout=WAIT_SECONDS)[0]:
                if self.interrupt.asked:  # Ray may be waiting for room, in vain
                    if stage == "actor" and self.setup.spec:  # the learners are well, and are saved
                        raise Halted("the run was stopped while its actor was being replaced")
                    raise KeyboardInterrupt
            try:
                started: Started = self.ray.get(ref)
                return started
            except Exception as error:
                self._replace(stage, error)

    def _replace(self, stage: str, error: Exception) -> None:
        """Launch a process for one that is lost; raises where that must not be."""
        if stage != "actor" and not died(self.ray, error):
            raise_mistake(error)
            raise cause(error)  # a learner that fails would fail again
        self.failing = stage
        self.restarts.note(STAGES[stage].title, error)
        self.ray.kill(self.handles[stage])
        lost = self.setup.actors_lost + (stage == "actor")
        self.setup = self.setup._replace(actors_lost=lost)
        self._launch(stage)

    def submit(self, planned: Round) -> None:
        self.calls[planned.stage].append(self._call(planned))

    def _call(self, planned: Round) -> Call:
        stage, kind = planned.stage, STAGES[planned.stage]
        process = PROCESSES[stage]
        versions = [self.versions[name] for name in kind.reads]
        parts = [p for block in planned.blocks for p in block.data[: process.parts_read]]
        returns = 1 + len(kind.writes) + process.parts_made
        call = self.handles[stage].round.options(num_returns=returns)
        numbers, weights = zip(*versions, strict=True)
        return Call(planned, call.remote(planned.order(), numbers, *weights, *parts))

    def wait_until(self, done: Callable[[], bool]) -> None:
        heard = time.monotonic()  # of the actor
        while not done():
            first = {calls[0].objects[0]: stage for stage, calls in self.calls.items() if calls}
            ready, _ = self.ray.wait(list(first), num_returns=len(first), timeout=0)
            if not ready:
                ready, _ = self.ray.wait(list(first), num_returns=1, timeout=WAIT_SECONDS)
            answered = any(first[ref] == "actor" for ref in ready)
            if answered or not self.calls["actor"] or not self.interrupt.asked:
                heard = time.monotonic()
            elif (silent := time.monotonic() - heard) > GRACE:
                self.failing = "actor"
                raise Halted(f"the actor has not answered for {silent:.0f} s")
            for ref in ready:
                self._receive(first[ref])

    def run(self, planned: Round) -> None:
        if self.without is not None and planned.stage == "actor":
            self.coordinator.finished(planned, Outcome({}))
            return
        self.submit(planned)
        while self.calls[planned.stage]:
            self._receive(planned.stage)

    def _receive(self, stage: str) -> None:
        """Take in the first round of a stage, finished or lost."""
        planned, (first, *objects) = self.calls[stage][0]
        try:
            outcome: Outcome = self.ray.get(first)
        except Exception as error:
            self._recover(stage, error)
            return
        self.calls[stage].popleft()
        writes = STAGES[stage].writes
        for name, ref in zip(writes, objects, strict=False):
            if name in outcome.changed:
                self.versions[name] = FlatVersion(self.versions[name].number + 1, ref)
        self.coordinator.finished(planned, outcome, tuple(objects[len(writes) :]))

    def _recover(self, stage: str, error: Exception) -> None:
        """After the loss of objects that the process needs, or of the process itself."""
        calls, coordinator = self.calls[stage], self.coordinator
        if _objects_lost(self.ray, error):  # together with another machine
            self._forget_lost_weights()
            if calls:
                coordinator.schedule.drop_blocks(calls[0].planned)
                calls[0] = self._call(calls[0].planned)
            return
        self._replace(stage, error)
        self._forget_lost_weights()
        state, journal = coordinator.lost(stage), coordinator.journal
        self.setup = self.setup._replace(vec_steps=journal.vec_steps, updates=journal.updates)
        self._start(stage, state)
        self.calls[stage] = deque(self._call(call.planned) for call in calls)

    def _forget_lost_weights(self) -> None:
        """Those who have an older version keep it."""
        for name, version in self.versions.items():
            try:
                self.ray.get(version.arrays)
            except self.ray.exceptions.RayError:
                self.versions[name] = FlatVersion(version.number, None)

    def ask(self, stage: str, method: str, *arguments: Any) -> Any:
        if self.without is not None and stage == "actor":
            return getattr(self.without, method)(*arguments)
        while True:
            try:
                answer = self.ray.get(self.handles[stage].ask.remote(method, *arguments))
            except Exception as error:
                self._recover(stage, error)
            else:
                return to_tensors(answer) if isinstance(answer, dict) else answer

    def metrics(self) -> dict[str, float]:
        return {"split/restarts": float(self.restarts.count)}

    def leave_actor(self) -> bool:
        if self.failing != "actor":
            return False
        self.calls["actor"].clear()
        vec_steps = self.coordinator.journal.vec_steps
        self.without = LostActor(self.recipe, self.spec, vec_steps, self.agent)
        return True

    def close(self) -> None:
        if "actor" in self.handles:  # simulators may have processes of their own
            with suppress(Exception):
                self.ray.wait([self.handles["actor"].ask.remote("close")], timeout=5.0)
        for handle in self.handles.values():
            self.ray.kill(handle)


def _objects_lost(ray: Any, error: BaseException) -> bool:
    """Is this the loss of something that the process asked needs, and not of that process?"""
    kind = ray.exceptions.ObjectLostError
    return isinstance(error, kind) or isinstance(cause(error), kind)
