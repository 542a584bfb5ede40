"""Ape-X: many actors collect, one learner learns from what is worth it.

Horgan et al. 2018, "Distributed Prioritized Experience Replay", arXiv 1803.00933. The loop of `synchronous` is cut at
*append* and *refresh*:

    actor i of M, each with V environments             learner
      weights <- newest version                          take a block; append its rows with their priorities
      act on rungs i V .. i V + V - 1 of one ladder      sample in proportion to priority
      n-step windows, first priorities                   update; write the new priorities back
      send a block of rows                               every so often: publish the weights

Three kinds of processes: the one that was started watches and prints; the learner, which owns replay, log and
checkpoints; the actors, and one more that evaluates. An actor that is lost is replaced, in its columns of the replay,
with seeds of its own. A learner that is lost begins again from its last checkpoint, with new actors.

Deviations from the paper:

    [1] The learner asks for blocks instead of being sent them (see `actor_fleet.py`); the bound on open requests
        replaces the bound on the replay's queue.
    [2] Rows arrive n steps late, when their priority is known; a window at the end of what has arrived is shorter
        until its rest is there.
    [3] The replay is trimmed per environment, each to its share of the capacity.
    [4] Each batch is drawn when it is needed (the paper: up to 16 ahead), and the lead of a free learner is bounded
        (`max_reuse`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch

from fleetfoot import checkpoint
from fleetfoot.agents.contract import traits
from fleetfoot.config import part
from fleetfoot.errors import UserError
from fleetfoot.execution import make_learner
from fleetfoot.recipe import Recipe, Result
from fleetfoot.run.interrupt import Interrupt
from fleetfoot.topologies.apex.learner import BURST, FleetRun
from fleetfoot.topologies.ray.cluster import (
    PackedRecipe,
    RayConfig,
    cluster,
    pack_recipe,
    to_tensors,
)
from fleetfoot.topologies.ray.monitor import WAIT_SECONDS, News, Watch
from fleetfoot.topologies.ray.transport import unpack_lines

CPU = torch.device("cpu")


@part
class ActorLearnerConfig:
    """Actors in processes of their own, one learner with a shared prioritised replay (Ape-X)."""

    loads_replay: ClassVar[bool] = True  # the learner reads the checkpoint, in a process of its own

    actors: int = 4
    """Actor processes (M); each has num_envs / M environments."""
    block_vec_steps: int = 25
    """Steps of an actor's environments that travel together."""
    blocks_ahead: int = 2
    """Blocks asked of each actor at once, the bound on what may wait for the learner."""
    publish_every_vec_steps: int = 100
    """Vec steps between two versions of the weights; Atari's four frames a step make 100 the paper's 400."""
    initial_priorities: bool = True
    """Actors state the first priorities; False: new rows get the largest so far."""
    acting: Literal["float32", "bf16"] = "float32"
    """bf16: actors choose actions with products in bfloat16, faster on cores that have it. Convolutions gain."""
    free: bool = False
    """The learner does not wait for the actors, nor they for it; False: updates as the pace owes them."""
    max_reuse: float = 32.0
    """free: rows learned from per row received, at most. A learner that has had its share waits for actors."""
    lockstep: bool = False
    """One actor and the learner take turns: the same weights as `synchronous`, for tests."""
    ray: RayConfig = RayConfig()

    def __post_init__(self) -> None:
        for name in ("actors", "block_vec_steps", "blocks_ahead", "publish_every_vec_steps"):
            if getattr(self, name) < 1:
                raise UserError(f"topology.{name} must be at least 1, not {getattr(self, name)}.")
        if not 0 < self.max_reuse < float("inf"):
            raise UserError(f"topology.max_reuse must be above 0, not {self.max_reuse}.")
        if self.lockstep and (self.actors > 1 or self.free):
            raise UserError("topology.lockstep is for one actor, and not free.")

    def run(self, recipe: Recipe, folder: Path, state: dict[str, Any] | None) -> Result:
        if recipe.num_envs % self.actors:
            raise UserError(
                f"{recipe.num_envs} environments cannot be shared equally by {self.actors} actors: "
                "make --num-envs a multiple of --topology.actors."
            )
        if self.states_priorities(recipe) and not traits(recipe.agent).gives_initial_priorities:
            raise UserError(
                f"actors with {type(recipe.agent).__name__} cannot state first priorities: use "
                "--topology.no-initial-priorities, or --replay.sampler UniformConfig."
            )
        if self.actors > 1 and traits(recipe.agent).follows_episodes:
            raise UserError(
                f"{type(recipe.agent).__name__} follows the episodes of all environments (to scale rewards, or "
                "for its bound), which several actors do not tell: use --topology.actors 1, or turn that off."
            )
        packed, device = pack_recipe(recipe), recipe.torch_device()
        if state is not None:
            check_is_last(folder, state)
        cpus = (self.actors + 1) * self.ray.worker_cpus + self.ray.learner_cpus
        gpus = self.ray.gpus_of(device)
        here = (self.ray.learner_cpus, gpus)
        with cluster(self.ray, cpus=cpus, gpus=gpus, here=here) as ray, Interrupt() as interrupt:
            watch = Watch(ray, self.ray, Learner, recipe, packed, folder, interrupt)
            try:
                return watch.until_done(resumed=state is not None, gpus=gpus)
            finally:
                watch.close()

    def states_priorities(self, recipe: Recipe) -> bool:
        """Do the actors compute first priorities? Only where there is a use for them."""
        useful = recipe.replay.sampler.prioritised
        return self.initial_priorities and not self.lockstep and useful


def check_is_last(folder: Path, state: dict[str, Any]) -> None:
    """The learner reads its checkpoint itself, after a crash as well, so it must be the last one."""
    if checkpoint.load(folder, with_replay=False).step != state["vec_steps"]:
        raise UserError(
            "this topology goes on from the last checkpoint alone: give the run folder."
        )


class Learner:
    """Lives in a process of its own, with one thread for `train` and one for the other two."""

    def __init__(self, packed: PackedRecipe, folder: str):
        self.packed, self.folder = packed, Path(folder)
        self.told, self.asked, self.begun = News(), False, False

    def stop(self) -> bool:
        """Save and return from `train` as soon as possible; False: its actors are not all there yet."""
        self.asked = True
        return self.begun

    def news(self) -> list[Any]:
        return self.told.take()

    def train(self, resumed: bool, again: bool) -> Result:
        """`again`: an earlier learner of this run was lost, before its first checkpoint unless `resumed`."""
        try:
            state = checkpoint.load(self.folder).state if resumed else None
            run = FleetRun.of(self.packed, self.folder, state, self.told, again)
            self.begun = True
            try:
                result = actor_learner(run, lambda: self.asked)
                return replace(result, policy=result.policy.to(CPU))
            finally:
                run.close()
        except UserError as error:  # its own kind may not survive the way to another process
            raise UserError(str(error)) from None


def actor_learner(run: FleetRun, asked: Callable[[], bool]) -> Result:
    recipe, agent, replay, fleet = run.recipe, run.agent, run.replay, run.fleet
    cfg = run.cfg
    updates = make_learner(
        agent,
        replay,
        recipe.batch_size,
        precision=recipe.precision,
        mode=recipe.execution,
        device=run.device,
        timer=run.split,
    )

    def begin(count: int) -> None:
        with nullcontext() if updates.ready(count) else run.compiling():
            updates.start(count)
        run.owed = count

    def settle() -> None:
        """From here on the updates begun count."""
        run.learned_rows += run.owed * recipe.batch_size
        run.learned(updates.join() if run.owed else {})

    def cut(actor: int) -> None:
        settle()  # updates on a GPU read the rows that this changes
        run.mark_break(actor)

    def over() -> bool:
        return run.vec_steps >= recipe.total_vec_steps or asked()

    fleet.launched = cut
    run.publish()
    fleet.ask()
    while not over():
        warm = cfg.free and run.vec_steps >= recipe.pace.warmup_vec_steps
        warm = warm and run.pace.held_vec_steps == 0  # a replay that was not saved fills first
        ready = warm and run.lead.allows(BURST * recipe.batch_size)
        until = 0.0  # when it is enough of collecting
        if ready:
            run.lead.spend(BURST * recipe.batch_size)
            run.wait()  # for those before: no queue may build up on a GPU
            begun = time.perf_counter()
            begin(BURST)  # a GPU is at it while blocks are unpacked
            now = time.perf_counter()
            until = now + (now - begun)
        for block in fleet.blocks(
            most=cfg.actors * cfg.blocks_ahead if cfg.free else 1,
            timeout=0.0 if ready else WAIT_SECONDS,
            ask=not cfg.lockstep,  # the actor goes on while its block is learned from
        ):
            td_error = None if block.td_error is None else to_tensors(block.td_error).to(run.device)
            lines = unpack_lines(block.lines, run.spec, run.device)
            if cfg.free:
                steps = list(lines)
                settle()
                for transition in steps:
                    agent.observe(transition)
                replay.append_lines(steps, td_error, block.actor)
                for _ in range(run.collected(steps, block.actor)):
                    run.vec_steps += 1
                    run.pace.owed()
                    run.bookkeep(last=run.vec_steps == recipe.total_vec_steps)
                    if over():
                        break
            else:
                for i, transition in enumerate(lines):
                    agent.observe(transition)
                    error = None if td_error is None else td_error[i]
                    replay.append(transition, error, block.actor)
                    if run.collected([transition], block.actor):
                        run.vec_steps += 1
                        begin(run.pace.owed())
                        settle()
                        run.bookkeep(last=run.vec_steps == recipe.total_vec_steps)
                        if over():
                            break
            run.note(block)
            if over():
                break
            if ready and not updates.busy() and time.perf_counter() > until:
                break  # who collects gets as much of the learner's time as learning itself, not more
        settle()
        if run.vec_steps - run.published_at >= cfg.publish_every_vec_steps or cfg.lockstep:
            run.publish()
        if cfg.lockstep:
            fleet.ask()
        run.take_evaluation()
    if run.vec_steps < recipe.total_vec_steps:
        run.interrupted()
    return run.result(finished=run.vec_steps >= recipe.total_vec_steps)
