"""DAC recipes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from fleetfoot.agents.dac import DACConfig
from fleetfoot.checkpoint import CheckpointConfig
from fleetfoot.envs.envpool import EnvPoolConfig
from fleetfoot.envs.envpool.tasks import dm_control_id
from fleetfoot.evaluate import EvaluationConfig
from fleetfoot.explore import AsSampledConfig
from fleetfoot.log import LogConfig
from fleetfoot.nn.mlp import MLPConfig
from fleetfoot.nn.optimist import IndependentConfig
from fleetfoot.optim import AdamConfig
from fleetfoot.pace import PaceConfig
from fleetfoot.recipe import Recipe
from fleetfoot.recipes import bro
from fleetfoot.replay.replay import ReplayConfig
from fleetfoot.topologies.synchronous import SynchronousConfig


def dm_control(task: str) -> Recipe:
    """The low replay ratio of the paper: three updates per action, each action repeated twice, the first update at vec
    step 25,000.
    """
    return Recipe(
        name=f"dac/{task}",
        env=EnvPoolConfig(task=dm_control_id(task), action_repeat=2),
        agent=DACConfig(),
        explorer=AsSampledConfig(random_vec_steps=24_999),
        replay=ReplayConfig(capacity=3_000_000),
        pace=PaceConfig(updates_per_vec_step=3.0, warmup_vec_steps=24_999),
        topology=SynchronousConfig(),
        evaluation=EvaluationConfig(every_vec_steps=25_000, episodes=5),
        log=LogConfig(every_vec_steps=1_000),
        checkpoint=CheckpointConfig(every_vec_steps=50_000),
        precision="tf32",
        num_envs=1,
        batch_size=256,
        total_vec_steps=3_000_000,
    )


def pendulum() -> Recipe:
    """The tensor pendulum on a CPU: small networks, higher learning rates, four environments."""
    net, optim = MLPConfig(hidden=(64, 64), start="orthogonal"), AdamConfig(lr=1e-3)
    agent = DACConfig(
        tau=0.02,
        reward_scale=0.1,
        alpha=0.1,
        renew_every=2_000,
        resets=(),
        policy_net=net,
        optimist=IndependentConfig(net=net),
        critic_net=MLPConfig(hidden=(64, 64), layer_norm=True, start="orthogonal"),
        policy_optim=optim,
        critic_optim=optim,
        optimist_optim=optim,
        alpha_optim=AdamConfig(lr=3e-3),
    )
    base = bro.pendulum("dac/pendulum", bro.FULL)
    return replace(base, agent=agent, total_vec_steps=1_000)


RECIPES: dict[str, tuple[str, Callable[[], Recipe]]] = {
    f"dac/{task}": (f"dm_control {task}, 3 updates per action", partial(dm_control, task))
    for task in ("hopper-hop", "quadruped-run")
}
RECIPES["dac/pendulum"] = "pendulum swing-up written in torch", pendulum
