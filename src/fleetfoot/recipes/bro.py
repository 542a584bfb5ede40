"""BRO recipes: replay ratio 10 (bro), 2 with one reset (bro_fast), 10 without optimist and resets (bro_minimal)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from fleetfoot.agents.bro import BROConfig
from fleetfoot.checkpoint import CheckpointConfig
from fleetfoot.envs.envpool import EnvPoolConfig
from fleetfoot.envs.envpool.tasks import dm_control_id
from fleetfoot.envs.tensor import TensorConfig
from fleetfoot.evaluate import EvaluationConfig
from fleetfoot.explore import AsSampledConfig
from fleetfoot.log import LogConfig
from fleetfoot.nn.bronet import BroNetConfig
from fleetfoot.nn.optimist import DeltaConfig
from fleetfoot.optim import AdamConfig, AdamWConfig
from fleetfoot.pace import PaceConfig
from fleetfoot.recipe import Recipe
from fleetfoot.replay.replay import ReplayConfig
from fleetfoot.topologies.synchronous import SynchronousConfig

FULL = BROConfig()
FAST = replace(FULL, resets=(15_001,))
MINIMAL = replace(FULL, optimist=None, resets=())


def dm_control(name: str, task: str, agent: BROConfig, updates: int) -> Recipe:
    """As published: one environment, the first update at env step 2,500, five evaluation episodes every 25,000."""
    return Recipe(
        name=name,
        env=EnvPoolConfig(task=dm_control_id(task)),
        agent=agent,
        explorer=AsSampledConfig(random_vec_steps=2_499),
        replay=ReplayConfig(capacity=1_000_000),
        pace=PaceConfig(updates_per_vec_step=float(updates), warmup_vec_steps=2_499),
        topology=SynchronousConfig(),
        evaluation=EvaluationConfig(every_vec_steps=25_000, episodes=5),
        log=LogConfig(every_vec_steps=1_000),
        checkpoint=CheckpointConfig(every_vec_steps=50_000),
        precision="tf32",
        num_envs=1,
        batch_size=128,
        total_vec_steps=1_000_000,
    )


def pendulum(name: str, agent: BROConfig) -> Recipe:
    """The tensor pendulum on a CPU: small networks, higher learning rates, four environments, one early reset."""
    optim = AdamWConfig(lr=1e-3, weight_decay=1e-4)
    small = BroNetConfig(width=64, blocks=1)
    delta = DeltaConfig(net=replace(small, head_gain=0.01, head_bias=False))
    agent = replace(
        agent,
        quantiles=20,
        tau=0.02,
        reward_scale=0.1,
        alpha=0.1,
        resets=(1_001,) if agent.resets else (),
        optimist=None if agent.optimist is None else delta,
        policy_net=small,
        critic_net=small,
        policy_optim=optim,
        critic_optim=optim,
        optimist_optim=optim,
        alpha_optim=AdamConfig(lr=3e-3, beta1=0.5),
    )
    return Recipe(
        name=name,
        env=TensorConfig(task="pendulum"),
        agent=agent,
        explorer=AsSampledConfig(random_vec_steps=100),
        replay=ReplayConfig(capacity=100_000),
        pace=PaceConfig(updates_per_vec_step=2.0, warmup_vec_steps=100),
        topology=SynchronousConfig(),
        evaluation=EvaluationConfig(every_vec_steps=250, episodes=10),
        log=LogConfig(every_vec_steps=50),
        checkpoint=CheckpointConfig(every_vec_steps=500),
        num_envs=4,
        batch_size=128,
        total_vec_steps=1_250,
    )


TASKS = ("walker-run", "quadruped-run")
FAMILIES = {  # the agent, its updates per step, what the list says about it, and its tasks
    "bro": (FULL, 10, "10 updates per step", TASKS),
    "bro_fast": (FAST, 2, "2 updates per step", TASKS),
    "bro_minimal": (MINIMAL, 10, "no optimistic actor, no resets", TASKS[:1]),
}
RECIPES: dict[str, tuple[str, Callable[[], Recipe]]] = {
    f"{family}/{task}": (
        f"dm_control {task}, {what}",
        partial(dm_control, f"{family}/{task}", task, agent, updates),
    )
    for family, (agent, updates, what, tasks) in FAMILIES.items()
    for task in tasks
}
RECIPES |= {
    "bro/pendulum": (
        "pendulum swing-up written in torch",
        partial(pendulum, "bro/pendulum", FULL),
    ),
    "bro_minimal/pendulum": (
        "pendulum swing-up written in torch, no optimistic actor, no resets",
        partial(pendulum, "bro_minimal/pendulum", MINIMAL),
    ),
}
