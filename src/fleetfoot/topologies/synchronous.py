"""The loop that nothing cuts: one process collects, stores and learns, in turns or (`overlap`) at the same time."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from fleetfoot.config import part
from fleetfoot.data import Step
from fleetfoot.execution import EagerLearner
from fleetfoot.recipe import Recipe, Result
from fleetfoot.rollout import rollout
from fleetfoot.run.build import Parts, open_run
from fleetfoot.run.interrupt import Interrupt
from fleetfoot.run.journal import Journal
from fleetfoot.topologies import overlap


@part
class SynchronousConfig:
    """One process, or the same on several GPUs; after each vec step come the updates that are due."""

    across_ranks: ClassVar[bool] = True
    diagnoses: ClassVar[bool] = True

    overlap: bool = False
    """Make the updates due after a vec step while the next one is simulated. Its actions then come from a
    policy that is one vec step's updates older. Everything else stays the same, and the same seed still
    gives the same result."""

    @property
    def on_policy(self) -> bool:
        """Does the newest policy collect every vec step?"""
        return not self.overlap

    def run(self, recipe: Recipe, folder: Path, state: dict[str, Any] | None) -> Result:
        with open_run(recipe, folder, state) as (journal, parts):
            self.train(journal, parts)
            return journal.result(parts.agent.policy)

    def train(self, journal: Journal, parts: Parts) -> None:
        """Train to the end, or until Ctrl-C."""
        vec_steps = overlap.vec_steps if self.overlap else in_turns
        with Interrupt(parts.ranks) as interrupt, journal.rescuing(parts, lambda: interrupt.asked):
            journal.catch_up(parts)
            with closing(vec_steps(journal, parts, parts.learner(journal))) as steps:
                while not (journal.finished or interrupt.stops(journal.vec_steps)):
                    next(steps)
            if interrupt.agreed:
                journal.save_interrupted(parts)


def in_turns(journal: Journal, parts: Parts, learner: EagerLearner) -> Generator[None]:
    """Collect, store, learn: one vec step at a time."""
    timer = journal.timer

    def simulate(action: Tensor) -> Step:
        with timer("simulate"):
            return parts.env.step(action)

    step_env = journal.compiles_first(simulate)
    for fresh in rollout(step_env, parts.agent.behaviour, parts.explorer, parts.obs, timer):
        with timer("append"):
            parts.append(fresh)
        journal.record_step(fresh, parts.episodes)
        with journal.compiling(not learner.ready(parts.owed)):
            learner.start(parts.owed)
        journal.record_updates(parts.owed, learner.join())
        parts.owed = 0
        journal.after_vec_step(parts)
        yield
