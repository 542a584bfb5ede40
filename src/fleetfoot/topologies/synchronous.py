"""The uncut loop: one process collects, stores and learns, in turns or (`overlap`) at the same time."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from fleetfoot.config import part
from fleetfoot.data import Step
from fleetfoot.errors import UserError
from fleetfoot.execution import make_learner
from fleetfoot.recipe import Recipe, Result
from fleetfoot.rollout import rollout
from fleetfoot.run.build import Run
from fleetfoot.run.interrupt import Interrupt
from fleetfoot.topologies.overlap import Background


@part
class SynchronousConfig:
    """One process, or the same on several GPUs; after each vec step the updates that the pace owes."""

    across_ranks: ClassVar[bool] = True
    diagnoses: ClassVar[bool] = True

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
    learn = make_learner(
        agent,
        replay,
        run.share.batch_size,
        precision=recipe.precision,
        mode=recipe.execution,
        device=run.device,
        split=split,
        world=run.ranks.world,
    )

    def start_learning() -> None:
        with nullcontext() if learn.ready(run.owed) else run.compiling():
            learn.start(run.owed)

    def in_turn(action: Tensor) -> Step:
        with split("simulate"):
            return run.env.step(action)

    background = None
    if overlap:
        if not run.env.spec.any_stream:
            raise UserError(
                f"{run.env.spec.name} can only be stepped on the GPU's default stream: use --topology.no-overlap."
            )
        background = Background(run.env, start_learning, lambda: learn.ready(run.owed), split)
    first = True

    def step_env(action: Tensor) -> Step:
        nonlocal first
        with run.compiling() if first else nullcontext():
            first = False
            return in_turn(action) if background is None else background(action)

    with closing(background) if background else nullcontext():
        for transition in rollout(step_env, agent.behaviour, run.explorer, run.obs, split):
            if overlap:
                with split("wait"):
                    found = learn.join()
                run.learned(found)
            with split("append"):
                agent.observe(transition)
                replay.append(transition)
            run.collected(transition)
            run.owed += run.pace.owed()
            last = run.vec_steps == recipe.total_vec_steps
            if last or not overlap:
                start_learning()
                run.learned(learn.join())
            run.bookkeep(last=last)
            yield
