"""Ape-X DQN recipes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fleetfoot.agents.dqn import DQNConfig
from fleetfoot.explore import EpsilonLadderConfig
from fleetfoot.recipe import Recipe
from fleetfoot.recipes import dqn
from fleetfoot.replay.replay import ReplayConfig
from fleetfoot.replay.samplers import ProportionalConfig
from fleetfoot.topologies.actor_learner import ActorLearnerConfig


def cartpole() -> Recipe:
    """The tensor cartpole with four actors.

    A curious ladder, 0.7 to 0.49: on the paper's, 0.4 to 0.0007, most of so few environments are almost greedy, and the
    pole was balanced for 140 steps and no longer.
    """
    base = dqn.cartpole()
    assert isinstance(base.agent, DQNConfig)
    return replace(
        base,
        name="apex_dqn/cartpole",
        explorer=EpsilonLadderConfig(epsilon=0.7, alpha=1.0),
        replay=ReplayConfig(capacity=100_000, n_step=3, sampler=ProportionalConfig()),
        num_envs=32,
        topology=ActorLearnerConfig(actors=4, block_vec_steps=10, publish_every_vec_steps=5),
    )


RECIPES: dict[str, tuple[str, Callable[[], Recipe]]] = {
    "apex_dqn/cartpole": ("the cartpole with four actors and prioritised replay", cartpole),
}
