"""Ape-X DQN recipes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fleetfoot.agents.dqn import DQNConfig
from fleetfoot.checkpoint import CheckpointConfig
from fleetfoot.envs.atari import AtariConfig
from fleetfoot.evaluate import EvaluationConfig
from fleetfoot.explore import EpsilonLadderConfig
from fleetfoot.log import LogConfig
from fleetfoot.pace import PaceConfig
from fleetfoot.recipe import Recipe
from fleetfoot.recipes import dqn
from fleetfoot.replay.replay import ReplayConfig
from fleetfoot.replay.samplers import ProportionalConfig
from fleetfoot.topologies.apex.loop import ActorLearnerConfig


def cartpole() -> Recipe:
    """The tensor cartpole with four actors.

    Epsilons are high, 0.7 to 0.49: with few environments most of a lower ladder is almost greedy. With 0.4 to 0.064,
    two of three runs never balanced the pole for more than 175 steps.
    """
    base = dqn.cartpole()
    assert isinstance(base.agent, DQNConfig)
    return replace(
        base,
        name="apex_dqn/cartpole",
        explorer=EpsilonLadderConfig(epsilon=0.7, alpha=1.0),
        replay=ReplayConfig(capacity=100_000, n_step=3, sampler=ProportionalConfig()),
        topology=ActorLearnerConfig(actors=4, block_vec_steps=10, publish_every_vec_steps=5),
        total_vec_steps=2_000,
    )


def pong() -> Recipe:
    """Pong on 16 cores and a GPU: twelve actors with 32 games each, and a learner that never waits.

    The constants of the paper (centred RMSProp at 6.25e-5, the squared loss, a target update every 2,500 updates, two
    million rows, new weights every 400 frames) are for days on 376 cores. For a run of minutes this recipe has Adam at
    1e-4, the Huber loss, a target update every 1,000 updates, one million rows and new weights every 100 frames.
    `--agent.critic-optim RMSPropConfig --agent.critic-optim.max-grad-norm 40 --agent.loss squared
    --agent.target-every 2500 --replay.capacity 2000000 --topology.publish-every-vec-steps 100
    --topology.acting float32` restore those of the paper, except for the number of actors and the deviations that the
    page about Ape-X lists.
    """
    return replace(
        dqn.pong(),
        name="apex_dqn/pong",
        env=AtariConfig(game="Pong", threads=1),  # each actor has one core
        pace=PaceConfig(updates_per_vec_step=3.0, warmup_vec_steps=130),
        topology=ActorLearnerConfig(
            actors=12, block_vec_steps=16, publish_every_vec_steps=25, acting="bf16", free=True
        ),
        evaluation=EvaluationConfig(every_vec_steps=1_000, episodes=8, max_vec_steps=27_000),
        checkpoint=CheckpointConfig(every_vec_steps=5_000, replay=False),
        log=LogConfig(every_vec_steps=100),
        num_envs=384,
        total_vec_steps=40_000,
    )


RECIPES: dict[str, tuple[str, Callable[[], Recipe]]] = {
    "apex_dqn/cartpole": ("the cartpole with four actors and prioritised replay", cartpole),
    "apex_dqn/pong": ("Pong with twelve actors and a GPU", pong),
}
