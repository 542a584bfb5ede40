"""A small run of Gorila."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fleetfoot import recipes
from fleetfoot.checkpoint import CheckpointConfig
from fleetfoot.evaluate import EvaluationConfig
from fleetfoot.explore import EpsilonAnnealConfig
from fleetfoot.log import LogConfig
from fleetfoot.nn.mlp import MLPConfig
from fleetfoot.nn.torso import MLPTorsoConfig
from fleetfoot.optim import AdaGradConfig
from fleetfoot.pace import PaceConfig
from fleetfoot.recipe import Recipe
from fleetfoot.replay.replay import ReplayConfig


def small(**changes: Any) -> Recipe:
    """Seconds, but with episode ends, target copies, clipping and evaluations."""
    base = recipes.get("gorila_dqn/cartpole")
    agent: Any = base.agent
    fields: dict[str, Any] = {
        "agent": replace(
            agent,
            target_every=7,
            torso=MLPTorsoConfig(hidden=(16,)),
            head=MLPConfig(hidden=(16,)),
            critic_optim=AdaGradConfig(lr=1e-2, max_grad_norm=0.5),
        ),
        "explorer": EpsilonAnnealConfig(end=0.1, over_vec_steps=50),
        "replay": ReplayConfig(capacity=8 * 60, n_step=3),
        "pace": PaceConfig(updates_per_vec_step=2.0, warmup_vec_steps=10),
        "evaluation": EvaluationConfig(every_vec_steps=50, episodes=2),
        "log": LogConfig(every_vec_steps=20, tensorboard=False, console=False),
        "checkpoint": CheckpointConfig(every_vec_steps=60),
        "num_envs": 8,
        "batch_size": 16,
        "total_vec_steps": 110,
        "threads": 1,
    }
    return replace(base, **(fields | changes))
