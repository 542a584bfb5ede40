"""Ape-X DPG recipes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fleetfoot.explore import NoiseLadderConfig
from fleetfoot.recipe import Recipe
from fleetfoot.recipes import ddpg
from fleetfoot.replay.evict import InverseConfig
from fleetfoot.replay.replay import ReplayConfig
from fleetfoot.replay.samplers import ProportionalConfig
from fleetfoot.topologies.actor_learner import ActorLearnerConfig


def pendulum() -> Recipe:
    """The tensor pendulum with four actors."""
    sampler = ProportionalConfig(eviction=InverseConfig())
    return replace(
        ddpg.pendulum(),
        name="apex_dpg/pendulum",
        explorer=NoiseLadderConfig(std_min=0.05, std_max=0.8, redraw="never"),
        replay=ReplayConfig(capacity=100_000, n_step=3, sampler=sampler),
        topology=ActorLearnerConfig(actors=4, block_vec_steps=10, publish_every_vec_steps=5),
    )


RECIPES: dict[str, tuple[str, Callable[[], Recipe]]] = {
    "apex_dpg/pendulum": ("the pendulum with four actors and prioritised replay", pendulum),
}
