"""Gorila recipes: DQN with a parameter server."""

from __future__ import annotations

from collections.abc import Callable

from fleetfoot.agents.dqn import DQNConfig
from fleetfoot.checkpoint import CheckpointConfig
from fleetfoot.envs.atari import AtariConfig
from fleetfoot.envs.tensor import TensorConfig
from fleetfoot.evaluate import EvaluationConfig
from fleetfoot.explore import EpsilonAnnealConfig
from fleetfoot.log import LogConfig
from fleetfoot.nn.cnn import NatureCNNConfig
from fleetfoot.nn.mlp import MLPConfig
from fleetfoot.nn.torso import MLPTorsoConfig
from fleetfoot.optim import AdaGradConfig
from fleetfoot.pace import PaceConfig
from fleetfoot.recipe import Recipe
from fleetfoot.replay.replay import ReplayConfig
from fleetfoot.topologies.gorila.loop import ParameterServerConfig


def cartpole() -> Recipe:
    """The tensor cartpole without double and dueling, as in the paper. n-step returns, the squared loss and the small
    network differ from it.

    The constants are the best of about 25 short trials, nearly all with seed 0; most stayed below 400. Activation,
    learning rate, n and the size of the replays changed together, so the effect of each is unknown.
    """
    return Recipe(
        name="gorila_dqn/cartpole",
        env=TensorConfig(task="cartpole"),
        agent=DQNConfig(
            double=False,
            dueling=False,
            loss="squared",
            target_every=50,
            torso=MLPTorsoConfig(hidden=(64,), activation=("tanh",)),
            head=MLPConfig(hidden=(64,), activation=("tanh",)),
            critic_optim=AdaGradConfig(lr=5e-2, max_grad_norm=10.0),
        ),
        explorer=EpsilonAnnealConfig(end=0.1, over_vec_steps=800),
        replay=ReplayConfig(capacity=10_000, n_step=5),
        pace=PaceConfig(updates_per_vec_step=2.0, warmup_vec_steps=100),
        topology=ParameterServerConfig(bundles=2),
        evaluation=EvaluationConfig(every_vec_steps=500, episodes=20),
        log=LogConfig(every_vec_steps=100),
        checkpoint=CheckpointConfig(every_vec_steps=500),
        num_envs=32,
        batch_size=128,
        total_vec_steps=3_000,
        device="cpu",
    )


def pong() -> Recipe:
    """Pong from pixels: the constants of the paper where they are known, at a smaller scale."""
    return Recipe(
        name="gorila_dqn/pong",
        env=AtariConfig(game="Pong", threads=1),
        agent=DQNConfig(
            double=False,
            dueling=False,
            target_every=10_000,
            torso=NatureCNNConfig(),
            head=MLPConfig(hidden=(512,)),
            critic_optim=AdaGradConfig(lr=1e-3, max_grad_norm=40.0),
        ),
        explorer=EpsilonAnnealConfig(end=0.1, over_vec_steps=250_000),
        replay=ReplayConfig(capacity=200_000),
        pace=PaceConfig(updates_per_vec_step=1.0, warmup_vec_steps=2_500),
        topology=ParameterServerConfig(bundles=8, shards=2),
        evaluation=EvaluationConfig(every_vec_steps=50_000, episodes=8),
        log=LogConfig(every_vec_steps=2_000),
        checkpoint=CheckpointConfig(every_vec_steps=50_000, replay=False),
        num_envs=4,
        batch_size=32,
        total_vec_steps=2_500_000,
    )


RECIPES: dict[str, tuple[str, Callable[[], Recipe]]] = {
    "gorila_dqn/cartpole": ("the cartpole written in torch, with two bundles", cartpole),
    "gorila_dqn/pong": ("Pong from pixels, with eight bundles", pong),
}
