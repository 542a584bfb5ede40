"""Ape-X: many actors collect, and one learner learns from the transitions that surprise it most.

Horgan et al. 2018, "Distributed Prioritized Experience Replay", arXiv 1803.00933. The loop of `synchronous` is cut at
*append* and *refresh*:

    actor i of M, each with V environments             learner
      weights <- newest version                          take a block; append its rows with their priorities
      act on rungs i V .. i V + V - 1 of one ladder      sample in proportion to priority
      n-step windows, first priorities                   update; write the new priorities back
      send a block of rows                               every so often: publish the weights

The process that the user started only monitors. The learner has its own process, with replay, log and checkpoints, and
so have each actor and the evaluator. A lost actor is replaced by one with new seeds, in the same columns of the replay.
A lost learner starts again from its last checkpoint, with new actors.

Deviations from the paper:

    [1] The learner requests blocks instead of being sent them (see `fleet.py`); the bound on open requests replaces the
        bound on the replay's queue.
    [2] Rows arrive n steps late, when their priority is known. A window that reaches the newest row is shorter until
        the rest has arrived.
    [3] The replay is trimmed per environment, each to its share of the capacity.
    [4] Each batch is drawn when it is needed (the paper: up to 16 ahead), and the lead of a free learner is bounded
        (`max_reuse`).
"""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar, Literal

from fleetfoot import checkpoint
from fleetfoot.agents.contract import traits
from fleetfoot.config import at_least, part
from fleetfoot.errors import UserError
from fleetfoot.recipe import Recipe, Result
from fleetfoot.topologies.apex.learner import BURST, Learner
from fleetfoot.topologies.ray.cluster import RayConfig, cluster
from fleetfoot.topologies.ray.monitor import WAIT_SECONDS, Monitor


@part
class ActorLearnerConfig:
    """Actors in separate processes, one learner with a shared prioritised replay (Ape-X)."""

    loads_replay: ClassVar[bool] = True  # the learner reads the checkpoint in its own process

    actors: int = 4
    """Actor processes (M); each has num_envs / M environments."""
    block_vec_steps: int = 25
    """Steps of an actor's environments that are sent together."""
    blocks_ahead: int = 2
    """Blocks requested from each actor at once, which bounds how many may wait for the learner."""
    publish_every_vec_steps: int = 100
    """Vec steps between two versions of the weights; with Atari's four frames per step, 100 is the paper's 400."""
    initial_priorities: bool = True
    """Actors compute the first priorities; False: new rows get the largest priority so far."""
    acting: Literal["float32", "bf16"] = "float32"
    """bf16: actors run their networks in bfloat16, which makes convolutions faster on cores that support it."""
    free: bool = False
    """The learner and the actors do not wait for each other; False: the learner makes the updates that are
    due by `pace`."""
    max_reuse: float = 32.0
    """With free: at most this many rows learned from per row received. Beyond that the learner waits for the
    actors."""
    lockstep: bool = False
    """One actor and the learner take turns; the same weights as `synchronous`, for tests."""
    ray: RayConfig = RayConfig()

    def __post_init__(self) -> None:
        at_least(self, "topology", actors=1, block_vec_steps=1, blocks_ahead=1)
        at_least(self, "topology", publish_every_vec_steps=1)
        if not 0 < self.max_reuse < float("inf"):
            raise UserError(f"topology.max_reuse must be above 0, not {self.max_reuse}.")
        if self.lockstep and (self.actors > 1 or self.free):
            raise UserError("topology.lockstep needs one actor, and no topology.free.")

    def run(self, recipe: Recipe, folder: Path, state: dict[str, Any] | None) -> Result:
        self.check(recipe)
        # The learner reads the checkpoint itself, in its own process, so it must be the last one.
        if state and checkpoint.load(folder, with_replay=False).step != state["vec_steps"]:
            raise UserError("Ape-X can only resume from the last checkpoint: give the run folder.")
        cpus = (self.actors + 1) * self.ray.worker_cpus + self.ray.learner_cpus
        with closing(Monitor(self.ray, recipe, folder)) as monitor:
            here = (self.ray.learner_cpus, monitor.gpus)
            gpus = monitor.gpus
            with cluster(self.ray, cpus=cpus, gpus=gpus, here=here, folder=folder) as ray:
                return monitor.run(ray, Learner, resumed=state is not None)

    def check(self, recipe: Recipe) -> None:
        agent = type(recipe.agent).__name__
        if recipe.num_envs % self.actors:
            raise UserError(
                f"{recipe.num_envs} environments cannot be shared equally by {self.actors} actors: "
                "make --num-envs a multiple of --topology.actors."
            )
        if self.computes_priorities(recipe) and not traits(recipe.agent).gives_initial_priorities:
            raise UserError(
                f"actors with {agent} cannot compute first priorities: use "
                "--topology.no-initial-priorities, or --replay.sampler UniformConfig."
            )
        if self.actors > 1 and traits(recipe.agent).follows_episodes:
            fixed = ", or give --agent.v-min and --agent.v-max as numbers"
            raise UserError(
                f"{agent} follows the episodes of all environments (to scale rewards, or for its bound), which "
                "several actors do not report: use --topology.actors 1"
                f"{fixed if getattr(recipe.agent, 'v_min', None) == 'auto' else ''}."
            )

    def computes_priorities(self, recipe: Recipe) -> bool:
        """Do the actors compute first priorities? Only where the sampler uses them."""
        prioritised = recipe.off_policy_replay().sampler.prioritised
        return self.initial_priorities and not self.lockstep and prioritised

    def learn(self, learner: Learner) -> None:
        """In the learner's process."""
        (free if self.free else paced)(learner)


def paced(learner: Learner) -> None:
    """After each vec step, whoever has collected its rows, make the updates that the pace owes."""
    fleet, journal = learner.fleet, learner.journal
    while not learner.done():
        learner.take_evaluation()
        learner.publish_when_due()
        fleet.request_blocks()
        if (block := fleet.next_block(WAIT_SECONDS)) is None:
            continue
        if not learner.cfg.lockstep:
            fleet.request_blocks()  # the actor continues while its block is learned from
        steps, td_error = learner.unpack(block)
        learner.note(block)
        for i, transition in enumerate(steps):
            learner.agent.observe(transition)
            known = None if td_error is None else td_error[i]
            learner.replay.append(transition, known, block.actor)
            if learner.count([transition], block.actor):
                journal.vec_steps += 1
                learner.start_updates(learner.pace.owed())
                learner.finish_updates()
                journal.after_vec_step(learner)
                if learner.done():
                    break


def free(learner: Learner) -> None:
    """Learn without waiting for the actors, within `max_reuse`, and take in the blocks that arrive meanwhile."""
    fleet, journal = learner.fleet, learner.journal
    rows = BURST * learner.recipe.batch_size
    while not learner.done():
        learner.take_evaluation()
        learner.publish_when_due()
        fleet.request_blocks()
        learns = learner.warm() and learner.lead.allows(rows)
        enough = 0.0  # the time at which blocks have had their share
        if learns:
            learner.lead.spend(rows)
            journal.wait_for_device()  # for the burst before: no queue may build up on a GPU
            begun = time.perf_counter()
            learner.start_updates(BURST)
            enough = 2 * time.perf_counter() - begun
        for block in fleet.blocks(timeout=0.0 if learns else WAIT_SECONDS):
            steps, td_error = learner.unpack(block)  # on a GPU: while it updates
            learner.finish_updates()
            learner.note(block)
            for transition in steps:
                learner.agent.observe(transition)
            learner.replay.append_lines(steps, td_error, block.actor)
            for _ in range(learner.count(steps, block.actor)):
                journal.vec_steps += 1
                learner.pace.owed()
                journal.after_vec_step(learner)
                if learner.done():
                    break
            # Blocks get as much of the learner's time as updates, and all of it while a GPU updates.
            shared = learns and not learner.updates.busy() and time.perf_counter() > enough
            if shared or learner.done():
                break
        learner.finish_updates()
