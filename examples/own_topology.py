"""A topology of one's own: the synchronous loop, with its updates in two halves. Run it from this folder:

fleetfoot train fast_td3/pendulum --import own_topology --topology TwoHalvesConfig
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fleetfoot.config import part
from fleetfoot.recipe import Recipe, Result
from fleetfoot.rollout import rollout
from fleetfoot.run.build import Parts, open_run
from fleetfoot.run.interrupt import Interrupt
from fleetfoot.run.journal import Journal


@part
class TwoHalvesConfig:
    """The loop has a method of its own, `train`, so that --seeds can call it with the parts of several seeds."""

    def run(self, recipe: Recipe, folder: Path, state: dict[str, Any] | None) -> Result:
        with open_run(recipe, folder, state) as (journal, parts):
            self.train(journal, parts)
            return journal.result(parts.agent.policy)

    def train(self, journal: Journal, parts: Parts) -> None:
        learner = parts.learner(journal)
        vec_steps = rollout(
            parts.env.step, parts.agent.behaviour, parts.explorer, parts.obs, journal.timer
        )
        with Interrupt() as interrupt, journal.rescuing(parts, lambda: interrupt.asked):
            while not (journal.finished or interrupt.stops(journal.vec_steps)):
                fresh = next(vec_steps)
                parts.append(fresh)  # agent.observe, replay.append, and `owed` grows
                journal.record_step(fresh, parts.episodes)
                for updates in (parts.owed // 2, parts.owed - parts.owed // 2):
                    learner.start(updates)
                    journal.record_updates(updates, learner.join())
                parts.owed = 0
                journal.after_vec_step(parts)  # log, evaluate, save: each when it is due
            if interrupt.agreed:
                journal.save_interrupted(parts)
