"""PPO recipes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fleetfoot.agents.ppo import PPOConfig
from fleetfoot.checkpoint import CheckpointConfig
from fleetfoot.envs.tensor import TensorConfig
from fleetfoot.evaluate import EvaluationConfig
from fleetfoot.explore import FromPolicyConfig
from fleetfoot.log import LogConfig
from fleetfoot.nn.mlp import MLPConfig
from fleetfoot.recipe import Recipe
from fleetfoot.replay.rollouts import RolloutConfig
from fleetfoot.topologies.synchronous import SynchronousConfig


def pendulum() -> Recipe:
    """The tensor pendulum on one core."""
    net = MLPConfig(hidden=(64, 64), activation=("tanh",), start="orthogonal")
    return Recipe(
        name="ppo/pendulum",
        env=TensorConfig(task="pendulum"),
        agent=PPOConfig(
            epochs=10,
            minibatches=8,
            entropy_coef=0.0,
            value_clip=None,
            policy_net=net,
            critic_net=net,
        ),
        explorer=FromPolicyConfig(),
        replay=RolloutConfig(length=64),
        topology=SynchronousConfig(),
        evaluation=EvaluationConfig(every_vec_steps=640, episodes=32),
        log=LogConfig(every_vec_steps=128),
        checkpoint=CheckpointConfig(every_vec_steps=1_280),
        num_envs=32,
        total_vec_steps=6_400,
        gamma=0.95,
    )


def cartpole() -> Recipe:
    """The tensor cartpole on one core, with discrete actions."""
    base = pendulum()
    return replace(
        base,
        name="ppo/cartpole",
        env=TensorConfig(task="cartpole"),
        replay=RolloutConfig(length=32),
        evaluation=EvaluationConfig(every_vec_steps=320, episodes=32),
        log=LogConfig(every_vec_steps=64),
        checkpoint=CheckpointConfig(every_vec_steps=1_280),
        total_vec_steps=3_200,
        gamma=0.99,
    )


RECIPES: dict[str, tuple[str, Callable[[], Recipe]]] = {
    "ppo/pendulum": ("pendulum swing-up written in torch", pendulum),
    "ppo/cartpole": ("the cartpole written in torch, discrete actions", cartpole),
}
