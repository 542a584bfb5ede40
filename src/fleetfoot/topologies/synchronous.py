"""The uncut loop: one process collects, stores and learns, in turns or (`overlap`) at the same time."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from fleetfoot.data import Step
from fleetfoot.part import part
from fleetfoot.recipe import Recipe, Result
from fleetfoot.rollout import Background, rollout
from fleetfoot.speed import learner
from fleetfoot.topologies.run import Interrupt, Run


@part
class SynchronousConfig:
    """One process, or the same on several GPUs; after each vec step the updates that the pace owes."""

    across_ranks: ClassVar[bool] = True

    overlap: bool = False
    """Make the updates owed after a vec step while the next one is simulated. Its actions then come from a policy that
    is one vec step's updates older; everything else stays, and the same seed gives the same result every time."""

    def run(self, recipe: Recipe, folder: Path, state: dict[str, Any] | None) -> Result:
        run = Run.build(recipe, folder, state)
        try:
            return synchronous(run, overlap=self.overlap)
        finally:
            run.close()


def synchronous(run: Run, *, overlap: bool) -> Result:
    total = run.recipe.total_vec_steps
    with Interrupt(run.ranks) as interrupt, closing(vec_steps(run, overlap=overlap)) as steps:
        while run.vec_steps < total and not interrupt.stops(run.vec_steps):
            next(steps)
        if interrupt.agreed:
            run.interrupted()
    return run.result(finished=run.vec_steps >= total)


def vec_steps(run: Run, *, overlap: bool) -> Generator[None, None, None]:
    """The loop, one vec step at a time."""
    recipe, agent, replay, split = run.recipe, run.agent, run.replay, run.split
    learn = learner(
        agent,
        replay,
        run.share.batch_size,
        precision=recipe.precision,
        mode=recipe.execution,
        device=run.device,
        split=split,
        world=run.ranks.world,
    )

    def in_turn(action: Tensor) -> Step:
        with split("simulate"):
            return run.env.step(action)

    def start_learning() -> None:
        learn.start(run.owed)

    # The first vec steps compile the simulator and the learner, where they compile.
    run.clock.stop()
    settled, begun = False, time.perf_counter()
    background = (
        Background(run.env, start_learning, lambda: learn.settled, split) if overlap else None
    )
    with closing(background) if background else nullcontext():
        for transition in rollout(
            background or in_turn, agent.behaviour, run.explorer, run.obs, split
        ):
            if overlap:
                run.learned(learn.join())
            with split("append"):
                agent.observe(transition)
                replay.append(transition)
            run.collected(transition)
            run.owed = run.pace.owed()
            last = run.vec_steps == recipe.total_vec_steps
            if last or not overlap:
                run.learned(learn(run.owed))
            run.bookkeep(last=last)
            if not settled and learn.settled:
                run.settled(time.perf_counter() - begun)
                settled = True
            yield
