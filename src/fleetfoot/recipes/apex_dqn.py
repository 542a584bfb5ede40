"""Ape-X DQN recipes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fleetfoot.agents.dqn import DQNConfig
from fleetfoot.explore import EpsilonLadderConfig
from fleetfoot.pace import PaceConfig
from fleetfoot.recipe import Recipe
from fleetfoot.recipes import dqn
from fleetfoot.replay.replay import ReplayConfig
from fleetfoot.replay.samplers import ProportionalConfig
from fleetfoot.topologies.actor_learner import ActorLearnerConfig


def cartpole() -> Recipe:
    """The tensor cartpole with four actors."""
    base = dqn.cartpole()
    assert isinstance(base.agent, DQNConfig)
    return replace(
        base,
        name="apex_dqn/cartpole",
        explorer=EpsilonLadderConfig(epsilon=0.4, alpha=2.0),
        replay=ReplayConfig(capacity=100_000, n_step=3, sampler=ProportionalConfig()),
        topology=ActorLearnerConfig(actors=4, block_vec_steps=10, publish_every_vec_steps=5),
    )


RECIPES: dict[str, tuple[str, Callable[[], Recipe]]] = {
    "apex_dqn/cartpole": ("the cartpole with four actors and prioritised replay", cartpole),
}
