"""DQN recipes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fleetfoot.agents.dqn import DQNConfig
from fleetfoot.checkpoint import CheckpointConfig
from fleetfoot.envs.atari import AtariConfig
from fleetfoot.envs.tensor import TensorConfig
from fleetfoot.evaluate import EvaluationConfig
from fleetfoot.explore import EpsilonAnnealConfig, EpsilonLadderConfig
from fleetfoot.log import LogConfig
from fleetfoot.nn.cnn import NatureCNNConfig
from fleetfoot.nn.mlp import MLPConfig
from fleetfoot.nn.torso import MLPTorsoConfig
from fleetfoot.optim import AdamConfig
from fleetfoot.pace import PaceConfig
from fleetfoot.recipe import Recipe
from fleetfoot.replay.replay import ReplayConfig
from fleetfoot.replay.samplers import ProportionalConfig
from fleetfoot.topologies.synchronous import SynchronousConfig


def cartpole() -> Recipe:
    """The tensor cartpole: solved (475 of 500) in about a minute on one core.

    All environments explore alike: on an epsilon ladder with few environments most are almost greedy, and both seeds
    that were tried stayed below 475.
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


def pong() -> Recipe:
    """Pong with the agent, epsilon ladder and replay of Ape-X in one process, on 16 cores and a GPU."""
    return Recipe(
        name="dqn/pong",
        env=AtariConfig(game="Pong"),
        agent=DQNConfig(
            target_every=1_000, critic_optim=AdamConfig(lr=1e-4, eps=1.5e-7, max_grad_norm=40.0)
        ),
        explorer=EpsilonLadderConfig(),
        replay=ReplayConfig(capacity=1_000_000, n_step=3, sampler=ProportionalConfig()),
        pace=PaceConfig(updates_per_vec_step=1.0, warmup_vec_steps=400),
        topology=SynchronousConfig(),
        # 27,000 steps of four frames are half an hour of play, after which a game ends.
        evaluation=EvaluationConfig(every_vec_steps=4_000, episodes=8, max_vec_steps=27_000),
        log=LogConfig(every_vec_steps=200),
        checkpoint=CheckpointConfig(every_vec_steps=20_000, replay=False),
        precision="tf32",
        num_envs=128,
        batch_size=512,
        total_vec_steps=80_000,
    )


RECIPES: dict[str, tuple[str, Callable[[], Recipe]]] = {
    "dqn/cartpole": ("the cartpole written in torch", cartpole),
    "dqn/pong": ("Pong on 16 cores and a GPU, one process", pong),
    "dqn/catch": ("catching a ball from images, written in torch", catch),
}
