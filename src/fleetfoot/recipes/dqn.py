"""DQN recipes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fleetfoot.agents.dqn import DQNConfig
from fleetfoot.checkpoint import CheckpointConfig
from fleetfoot.envs.tensor import TensorConfig
from fleetfoot.evaluate import EvaluationConfig
from fleetfoot.explore import EpsilonAnnealConfig
from fleetfoot.log import LogConfig
from fleetfoot.nn.cnn import NatureCNNConfig
from fleetfoot.nn.mlp import MLPConfig
from fleetfoot.nn.torso import MLPTorsoConfig
from fleetfoot.optim import AdamConfig
from fleetfoot.pace import PaceConfig
from fleetfoot.recipe import Recipe
from fleetfoot.replay.replay import ReplayConfig
from fleetfoot.topologies.synchronous import SynchronousConfig


def cartpole() -> Recipe:
    """The tensor cartpole: solved (475 of 500) in about a minute on one core.

    All environments go on exploring: on a ladder of so few, most are almost greedy, and two seeds of two stayed below
    475.
    """
    return Recipe(
        name="dqn/cartpole",
        env=TensorConfig(task="cartpole"),
        agent=DQNConfig(
            loss="squared",
            target_every=1,
            tau=0.05,
            normalize_obs=True,
            torso=MLPTorsoConfig(hidden=(64,)),
            head=MLPConfig(hidden=(64,)),
            critic_optim=AdamConfig(lr=2e-3, lr_end=2e-4, max_grad_norm=10.0),
        ),
        explorer=EpsilonAnnealConfig(end=0.1, over_vec_steps=400),
        replay=ReplayConfig(capacity=100_000, n_step=3),
        pace=PaceConfig(updates_per_vec_step=4.0, warmup_vec_steps=50),
        topology=SynchronousConfig(),
        evaluation=EvaluationConfig(every_vec_steps=250, episodes=32),
        log=LogConfig(every_vec_steps=50),
        checkpoint=CheckpointConfig(every_vec_steps=500),
        num_envs=64,
        batch_size=128,
        total_vec_steps=1_500,
    )


def catch() -> Recipe:
    """The smallest task with images: a ball falls, the paddle must be below it."""
    base = cartpole()
    assert isinstance(base.agent, DQNConfig)
    cnn = NatureCNNConfig(channels=(16, 16), kernels=(4, 3), strides=(2, 1))
    return replace(
        base,
        name="dqn/catch",
        env=TensorConfig(task="catch"),
        agent=replace(base.agent, normalize_obs=False, torso=cnn),
        evaluation=EvaluationConfig(every_vec_steps=250, episodes=256),
        explorer=EpsilonAnnealConfig(end=0.2, over_vec_steps=800),
        replay=ReplayConfig(capacity=100_000),
        total_vec_steps=1_000,
    )


RECIPES: dict[str, tuple[str, Callable[[], Recipe]]] = {
    "dqn/cartpole": ("the cartpole written in torch", cartpole),
    "dqn/catch": ("catching a ball from images, written in torch", catch),
}
