"""The uncut loop: one process collects, stores and learns, in turns."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from fleetfoot.part import part
from fleetfoot.recipe import Recipe, Result
from fleetfoot.rollout import rollout
from fleetfoot.speed import learner
from fleetfoot.topologies.run import Interrupt, Run


@part
class SynchronousConfig:
    """One process, or the same on several GPUs; after each vec step the updates that the pace owes."""

    across_ranks: ClassVar[bool] = True

    def run(self, recipe: Recipe, folder: Path, state: dict[str, Any] | None) -> Result:
        run = Run.build(recipe, folder, state)
        try:
            return synchronous(run)
        finally:
            run.close()


def synchronous(run: Run) -> Result:
    recipe, agent, replay = run.recipe, run.agent, run.replay
    update = learner(agent, precision=recipe.precision, compile=recipe.compile, device=run.device)
    steps = rollout(run.env, agent.behaviour, run.explorer, run.obs)
    with Interrupt(run.ranks) as interrupt:
        while run.vec_steps < recipe.total_vec_steps and not interrupt.stops(run.vec_steps):
            transition = next(steps)
            agent.observe(transition)
            replay.append(transition)
            run.collected(transition)
            for batch in replay.batches(run.pace.owed(), run.share.batch_size):
                learned = update(batch)
                replay.reprioritize(batch.row_id, learned.td_error)
                run.updates += 1
                run.log.add(learned.metrics)
            run.bookkeep(last=run.vec_steps == recipe.total_vec_steps)
        if interrupt.agreed:
            run.interrupted()
    return run.result(finished=run.vec_steps >= recipe.total_vec_steps)
