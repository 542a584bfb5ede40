"""VPL recipes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fleetfoot.agents.vpl import VPLConfig
from fleetfoot.nn.mlp import MLPConfig
from fleetfoot.optim import AdamConfig
from fleetfoot.recipe import Recipe
from fleetfoot.recipes import sac
from fleetfoot.replay.held_out import HeldOutUniformConfig
from fleetfoot.replay.replay import ReplayConfig


def dm_control(task: str, env_id: str) -> tuple[str, Callable[[], Recipe]]:
    """As SAC: one environment, two updates per step. A part of the replay is held out."""
    name = f"vpl/{task}"

    def make() -> Recipe:
        replay = ReplayConfig(capacity=1_000_000, sampler=HeldOutUniformConfig())
        return replace(sac.dm_control(env_id)(name, sac.PLAIN), agent=VPLConfig(), replay=replay)

    return f"dm_control {task}, 2 updates per step", make


def pendulum() -> Recipe:
    """The tensor pendulum, as for SAC."""
    net, optim = MLPConfig(hidden=(64, 64), start="orthogonal"), AdamConfig(lr=1e-3)
    agent = VPLConfig(
        tau=0.02,
        policy_net=net,
        critic_net=net,
        policy_optim=optim,
        critic_optim=optim,
        alpha_optim=optim,
    )
    replay = ReplayConfig(capacity=100_000, sampler=HeldOutUniformConfig())
    return replace(sac.pendulum("vpl/pendulum", sac.PLAIN), agent=agent, replay=replay)


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
