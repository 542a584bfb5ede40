"""VPL recipes."""

from __future__ import annotations

from collections.abc import Callable

from fleetfoot.agents.vpl import VPLConfig
from fleetfoot.checkpoint import CheckpointConfig
from fleetfoot.envs.envpool import EnvPoolConfig
from fleetfoot.envs.tensor import TensorConfig
from fleetfoot.evaluate import EvaluationConfig
from fleetfoot.explore import AsSampledConfig
from fleetfoot.log import LogConfig
from fleetfoot.nn.mlp import MLPConfig
from fleetfoot.optim import AdamConfig
from fleetfoot.pace import PaceConfig
from fleetfoot.recipe import Recipe
from fleetfoot.replay.held_out import HeldOutUniformConfig
from fleetfoot.replay.replay import ReplayConfig
from fleetfoot.topologies.synchronous import SynchronousConfig

WARMUP = 10_000


def dm_control(task: str, env_id: str) -> tuple[str, Callable[[], Recipe]]:
    """One environment, two updates per step; the replay and its held-out share as the recipes of SAC plus a part."""
    name = f"vpl/{task}"

    def make() -> Recipe:
        return Recipe(
            name=name,
            env=EnvPoolConfig(task=env_id),
            agent=VPLConfig(),
            explorer=AsSampledConfig(random_vec_steps=WARMUP),
            replay=ReplayConfig(capacity=1_000_000, sampler=HeldOutUniformConfig()),
            pace=PaceConfig(updates_per_vec_step=2.0, warmup_vec_steps=WARMUP),
            topology=SynchronousConfig(),
            evaluation=EvaluationConfig(every_vec_steps=20_000, episodes=10),
            log=LogConfig(every_vec_steps=1_000),
            checkpoint=CheckpointConfig(every_vec_steps=50_000),
            precision="tf32",
            num_envs=1,
            batch_size=256,
            total_vec_steps=1_000_000,
        )

    return f"dm_control {task}, 2 updates per step", make


def pendulum() -> Recipe:
    """The tensor pendulum with small networks and ten environments."""
    net, optim = MLPConfig(hidden=(64, 64), start="orthogonal"), AdamConfig(lr=1e-3)
    agent = VPLConfig(
        tau=0.02,
        policy_net=net,
        critic_net=net,
        policy_optim=optim,
        critic_optim=optim,
        alpha_optim=optim,
    )
    return Recipe(
        name="vpl/pendulum",
        env=TensorConfig(task="pendulum"),
        agent=agent,
        explorer=AsSampledConfig(random_vec_steps=50),
        replay=ReplayConfig(capacity=100_000, sampler=HeldOutUniformConfig()),
        pace=PaceConfig(updates_per_vec_step=4.0, warmup_vec_steps=50),
        topology=SynchronousConfig(),
        evaluation=EvaluationConfig(every_vec_steps=250, episodes=16),
        log=LogConfig(every_vec_steps=50),
        checkpoint=CheckpointConfig(every_vec_steps=500),
        num_envs=10,
        batch_size=256,
        total_vec_steps=1_000,
    )


TASKS = {
    "quadruped-run": "QuadrupedRun-v1",
    "dog-stand": "DogStand-v1",
    "dog-run": "DogRun-v1",
    "humanoid-run": "HumanoidRun-v1",
    "walker-run": "WalkerRun-v1",
    "hopper-hop": "HopperHop-v1",
}

RECIPES: dict[str, tuple[str, Callable[[], Recipe]]] = {
    **{f"vpl/{task}": dm_control(task, env_id) for task, env_id in TASKS.items()},
    "vpl/pendulum": ("pendulum swing-up written in torch", pendulum),
}
