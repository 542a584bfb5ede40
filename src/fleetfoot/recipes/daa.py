"""Recipes of the many-actions policy gradient (DAA, published as MBMA)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fleetfoot.agents.daa import DAAConfig
from fleetfoot.checkpoint import CheckpointConfig
from fleetfoot.envs.envpool import EnvPoolConfig
from fleetfoot.envs.tensor import TensorConfig
from fleetfoot.evaluate import EvaluationConfig
from fleetfoot.explore import FromPolicyConfig
from fleetfoot.log import LogConfig
from fleetfoot.nn.mlp import MLPConfig
from fleetfoot.nn.world_model import WorldModelConfig
from fleetfoot.optim import AdamConfig
from fleetfoot.recipe import Recipe
from fleetfoot.replay.rollouts import RolloutConfig
from fleetfoot.topologies.synchronous import SynchronousConfig


def pendulum() -> Recipe:
    """100,000 steps of the tensor pendulum. Small networks and a short horizon, for a CPU.

    Rollouts are short, 512 steps: the fewer real states an update has, the more there is for imagined actions to mend.
    With 2,048 steps PPO's gradient has little noise left, and many actions gain nothing.
    """
    net = MLPConfig(hidden=(64, 64), activation=("tanh",), start="orthogonal")
    return Recipe(
        name="daa/pendulum",
        env=TensorConfig(task="pendulum"),
        agent=DAAConfig(
            horizon=3,
            start_env_steps=2_048,
            model_steps=40,
            first_model_steps=320,
            model_batch=256,
            minibatches=8,
            normalize_advantage=True,
            value_clip=None,
            tanh_mean=False,
            normalize_obs=True,
            policy_net=net,
            critic_net=net,
            policy_optim=AdamConfig(lr=1e-3, lr_end=1e-4, schedule="linear", max_grad_norm=0.5),
            model=WorldModelConfig(net=MLPConfig(hidden=(64, 64), activation=("elu",))),
            model_optim=AdamConfig(lr=1e-3),
        ),
        explorer=FromPolicyConfig(),
        replay=RolloutConfig(length=16),
        topology=SynchronousConfig(),
        evaluation=EvaluationConfig(every_vec_steps=256, episodes=32),
        log=LogConfig(every_vec_steps=64),
        checkpoint=CheckpointConfig(every_vec_steps=640),
        num_envs=32,
        total_vec_steps=3_136,
        gamma=0.9,
    )


def dm_control(name: str, task: str) -> Recipe:
    """A million actions in one environment, each held for four of its steps: 488 updates, as published. Small networks
    of a CPU's size would do as well; these are the authors'."""
    return Recipe(
        name=f"daa/{name}",
        env=EnvPoolConfig(task=task, action_repeat=4),
        agent=DAAConfig(),
        explorer=FromPolicyConfig(),
        replay=RolloutConfig(length=2_048),
        topology=SynchronousConfig(),
        evaluation=EvaluationConfig(every_vec_steps=10_240, episodes=4),
        log=LogConfig(every_vec_steps=2_048),
        checkpoint=CheckpointConfig(every_vec_steps=102_400),
        num_envs=1,
        total_vec_steps=1_000_000,
    )


def dm_control_small(name: str, task: str) -> Recipe:
    """Half a million actions on one CPU core: smaller networks, a shorter horizon and half of the model's steps.

    Updates have 2,048 states, as published, but from eight environments. Returns reach hundreds, so the critic's step
    is not clipped; observations and advantages are normalised.
    """
    net = MLPConfig(hidden=(256, 256), activation=("leaky_relu",), start="orthogonal")
    return replace(
        dm_control(f"{name}-small", task),
        agent=DAAConfig(
            horizon=4,
            model_steps=320,
            first_model_steps=2_560,
            normalize_advantage=True,
            value_clip=None,
            normalize_obs=True,
            policy_net=net,
            critic_net=net,
            model_batch=256,
            model=WorldModelConfig(net=MLPConfig(hidden=(256, 256), activation=("leaky_relu",))),
            # At 3e-4 the model predicts held-out transitions worse after as many steps.
            model_optim=AdamConfig(lr=1e-3),
        ),
        replay=RolloutConfig(length=256),
        evaluation=EvaluationConfig(every_vec_steps=2_560, episodes=8),
        log=LogConfig(every_vec_steps=1_280),
        checkpoint=CheckpointConfig(every_vec_steps=12_800),
        num_envs=8,
        total_vec_steps=62_720,
        device="cpu",  # like the physics; networks of this size are not faster on a GPU
    )


def alone(recipe: Recipe) -> Recipe:
    """The same without imagination: PPO with these settings."""
    assert isinstance(recipe.agent, DAAConfig)
    return replace(
        recipe, name=f"{recipe.name}-none", agent=replace(recipe.agent, estimator="none")
    )


RECIPES: dict[str, tuple[str, Callable[[], Recipe]]] = {
    "daa/pendulum": ("PPO with imagined actions on the pendulum, 100,000 steps", pendulum),
    "daa/pendulum-none": (
        "the same without imagined actions, to compare",
        lambda: alone(pendulum()),
    ),
    "daa/cheetah-run": (
        "PPO with imagined actions on dm_control's cheetah (EnvPool)",
        lambda: dm_control("cheetah-run", "CheetahRun-v1"),
    ),
    "daa/walker-walk": (
        "PPO with imagined actions on dm_control's walker (EnvPool)",
        lambda: dm_control("walker-walk", "WalkerWalk-v1"),
    ),
    "daa/walker-walk-small": (
        "the walker with small networks on one CPU core (EnvPool)",
        lambda: dm_control_small("walker-walk", "WalkerWalk-v1"),
    ),
    "daa/walker-walk-small-none": (
        "the same without imagined actions, to compare (EnvPool)",
        lambda: alone(dm_control_small("walker-walk", "WalkerWalk-v1")),
    ),
}
