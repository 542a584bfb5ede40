"""PQL on Ray: the actor and the two learners as processes, on one to three GPUs or on several machines.

The process that was started coordinates. It asks each of the three for its rounds, at most two ahead, so that the next
one is at hand when a round ends; `Gate` says which may be asked for. Blocks and versions go from process to process
through Ray's object store: the coordinator holds nothing but their names, the counts, the log and the checkpoints. A
round is made with the versions that are the newest when it is asked for.

    actor            collect(policy, statistics)         -> what was seen, the rest of a vec step
    critic learner   round(owed, policy, vec steps)      -> critics, statistics
    policy learner   round(owed, critics, statistics, what was seen)  -> policy

One that is lost is replaced. An actor begins new episodes, with random numbers of its own. A learner gets its weights
from the last version that the lost one published, and all else (targets, optimisers, what it remembers) from the last
checkpoint. Rounds that it had not finished are asked of the new one; updates made since the checkpoint are counted as
made. Where the checkpoint has no replay, the memories fill for a warm-up before anybody learns, as in a resumed run.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from fleetfoot.config import part
from fleetfoot.errors import UserError
from fleetfoot.recipe import Recipe, Result
from fleetfoot.run.interrupt import Interrupt
from fleetfoot.topologies.pql.coordinator import RaySplitRun
from fleetfoot.topologies.pql.loop import STAGES
from fleetfoot.topologies.pql.processes import RoleConfig, Stages
from fleetfoot.topologies.ray.cluster import ClusterFields, cluster
from fleetfoot.topologies.ray.workers import Restarts


@part
class OnRayConfig(ClusterFields):
    """Ray actors, in processes of their own. By default they share one GPU."""

    actor: RoleConfig = RoleConfig()
    critic_learner: RoleConfig = RoleConfig()
    policy_learner: RoleConfig = RoleConfig()

    def __post_init__(self) -> None:
        if self.max_restarts < 0:
            raise UserError("topology.placement.max_restarts must be 0 or more.")

    def roles(self) -> dict[str, RoleConfig]:
        three = (self.actor, self.critic_learner, self.policy_learner)
        return dict(zip(STAGES, three, strict=True))

    def place(self, recipe: Recipe, folder: Path, state: dict[str, Any] | None) -> Result:
        device, roles = recipe.torch_device(), self.roles().values()
        cpus, gpus = sum(r.cpus for r in roles), sum(r.gpus_of(device) for r in roles)
        if not self.address and gpus > torch.cuda.device_count():
            raise UserError(
                f"the three ask for {gpus:g} GPUs and this machine has {torch.cuda.device_count()}: lower "
                "--topology.placement.actor.gpus and the others', or give --topology.placement.address."
            )
        with cluster(self, cpus=cpus, gpus=gpus) as ray, Interrupt() as interrupt:
            restarts = Restarts(self.max_restarts, option="--topology.placement.max-restarts")
            stages = Stages(ray, recipe, self.roles(), restarts, interrupt)
            with ExitStack() as stack:
                stack.callback(stages.close)
                run = RaySplitRun.of(recipe, folder, state, stages)
                stack.callback(run.close)
                return split_on_ray(run, interrupt)


def split_on_ray(run: RaySplitRun, interrupt: Interrupt) -> Result:
    total = run.recipe.total_vec_steps
    while run.vec_steps < total and not interrupt.asked:
        run.stop_at = run.next_stop()
        while not run.still():
            run.take_turns() if run.cfg.lockstep else run.work()
            if interrupt.asked:
                run.stop_at = run.vec_steps + len(run.open["actor"])
        run.catch_up()
        run.bookkeep(last=run.vec_steps == total)
    if run.vec_steps < total:
        run.interrupted()
    return run.result(finished=run.vec_steps >= total)
