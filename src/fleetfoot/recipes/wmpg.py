"""WMPG and AC recipes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fleetfoot.agents.wmpg import WMPGConfig
from fleetfoot.checkpoint import CheckpointConfig
from fleetfoot.envs.tensor import TensorConfig
from fleetfoot.evaluate import EvaluationConfig
from fleetfoot.explore import FromPolicyConfig
from fleetfoot.log import LogConfig
from fleetfoot.recipe import Recipe
from fleetfoot.replay.rollouts import RolloutConfig
from fleetfoot.topologies.synchronous import SynchronousConfig


def cartpole() -> Recipe:
    """The tensor cartpole, few environments: every episode counts."""
    return Recipe(
        name="wmpg/cartpole",
        env=TensorConfig(task="cartpole"),
        agent=WMPGConfig(reward_scale=0.1),
        explorer=FromPolicyConfig(),
        replay=RolloutConfig(length=32),
        topology=SynchronousConfig(),
        evaluation=EvaluationConfig(every_vec_steps=320, episodes=20),
        log=LogConfig(every_vec_steps=64),
        checkpoint=CheckpointConfig(every_vec_steps=3_200),
        num_envs=4,
        total_vec_steps=6_400,
    )


def ac_cartpole() -> Recipe:
    base = cartpole()
    assert isinstance(base.agent, WMPGConfig)
    agent = replace(base.agent, estimator="reinforce", baseline="value")
    return replace(base, name="ac/cartpole", agent=agent)


RECIPES: dict[str, tuple[str, Callable[[], Recipe]]] = {
    "wmpg/cartpole": ("the cartpole with a world model, few episodes", cartpole),
    "ac/cartpole": ("the same without a world model: actor-critic", ac_cartpole),
}
