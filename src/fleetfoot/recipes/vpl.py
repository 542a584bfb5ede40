"""VPL recipes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from fleetfoot.agents.vpl import VPLConfig
from fleetfoot.nn.mlp import MLPConfig
from fleetfoot.optim import AdamConfig
from fleetfoot.recipe import Recipe
from fleetfoot.recipes import sac
from fleetfoot.replay.held_out import HeldOutUniformConfig
from fleetfoot.replay.replay import ReplayConfig


def dm_control(task: str) -> Recipe:
    """As SAC: one environment, two updates per step. A part of the replay is held out."""
    replay = ReplayConfig(capacity=1_000_000, sampler=HeldOutUniformConfig())
    base = sac.dm_control(f"vpl/{task}", sac.PLAIN, task=task)
    return replace(base, agent=VPLConfig(), replay=replay)


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


RECIPES: dict[str, tuple[str, Callable[[], Recipe]]] = {
    f"vpl/{task}": (f"dm_control {task}, 2 updates per step", partial(dm_control, task))
    for task in sac.DM_CONTROL
}
RECIPES["vpl/pendulum"] = "pendulum swing-up written in torch", pendulum
