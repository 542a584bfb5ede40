"""BRC recipes: several tasks learned at once, with one environment per task."""

from __future__ import annotations

from collections.abc import Callable

from fleetfoot.agents.brc import BRCConfig
from fleetfoot.checkpoint import CheckpointConfig
from fleetfoot.envs.envpool import EnvPoolTasksConfig
from fleetfoot.envs.envpool.tasks import SETS
from fleetfoot.envs.tensor import TensorConfig
from fleetfoot.evaluate import EvaluationConfig
from fleetfoot.explore import AsSampledConfig
from fleetfoot.log import LogConfig
from fleetfoot.nn.bronet import BroNetConfig
from fleetfoot.optim import AdamConfig, AdamWConfig
from fleetfoot.pace import PaceConfig
from fleetfoot.recipe import Recipe
from fleetfoot.replay.replay import ReplayConfig
from fleetfoot.topologies.synchronous import SynchronousConfig


def tasks(name: str, tasks: str, episodes: int = 10, max_episode_steps: int = 0) -> Recipe:
    """As published: the first update at vec step 5,000, a million steps per task, an evaluation every 50,000."""
    count = len(SETS[tasks])
    return Recipe(
        name=name,
        env=EnvPoolTasksConfig(set=tasks, max_episode_steps=max_episode_steps),
        agent=BRCConfig(),
        explorer=AsSampledConfig(random_vec_steps=4_999),
        replay=ReplayConfig(capacity=1_000_000 * count),
        pace=PaceConfig(updates_per_vec_step=2.0, warmup_vec_steps=4_999),
        topology=SynchronousConfig(),
        evaluation=EvaluationConfig(every_vec_steps=50_000, episodes=episodes * count),
        log=LogConfig(every_vec_steps=1_000),
        checkpoint=CheckpointConfig(every_vec_steps=50_000),
        precision="tf32",
        num_envs=count,
        batch_size=1_024,
        total_vec_steps=1_000_000,
    )


def pendulums() -> Recipe:
    """Four tensor pendulums on a CPU, whose rewards are 1, 10, 100 and 1,000 times as large.

    Small networks, higher learning rates, a shorter horizon.
    """
    optim = AdamWConfig(lr=1e-3, weight_decay=1e-4)
    small = BroNetConfig(width=64, blocks=1)
    agent = BRCConfig(
        num_atoms=51,
        tau=0.05,
        alpha=0.02,
        task_embedding=8,
        policy_net=small,
        critic_net=small,
        policy_optim=optim,
        critic_optim=optim,
        alpha_optim=AdamConfig(lr=3e-3, beta1=0.5),
    )
    return Recipe(
        name="brc/pendulums",
        env=TensorConfig(task="pendulum", num_tasks=4),
        agent=agent,
        explorer=AsSampledConfig(random_vec_steps=200),
        replay=ReplayConfig(capacity=100_000),
        pace=PaceConfig(updates_per_vec_step=2.0, warmup_vec_steps=200),
        topology=SynchronousConfig(),
        evaluation=EvaluationConfig(every_vec_steps=300, episodes=40),
        log=LogConfig(every_vec_steps=100),
        checkpoint=CheckpointConfig(every_vec_steps=300),
        num_envs=8,
        batch_size=256,
        total_vec_steps=1_200,
        gamma=0.95,
    )


RECIPES: dict[str, tuple[str, Callable[[], Recipe]]] = {
    "brc/dogs": (
        "dm_control's four dog tasks at once",
        lambda: tasks("brc/dogs", "dogs"),
    ),
    "brc/humanoids": (
        "dm_control's three humanoid tasks at once",
        lambda: tasks("brc/humanoids", "humanoids"),
    ),
    "brc/mt10": (
        "ten Meta-World tasks at once",
        lambda: tasks("brc/mt10", "mt10", episodes=5, max_episode_steps=200),
    ),
    "brc/mt50": (
        "fifty Meta-World tasks at once",
        lambda: tasks("brc/mt50", "mt50", episodes=2, max_episode_steps=200),
    ),
    "brc/pendulums": (
        "four pendulums written in torch, with rewards of very different scale",
        pendulums,
    ),
}
