"""DDPG recipes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fleetfoot.agents.ddpg import DDPGConfig
from fleetfoot.nn.mlp import MLPConfig
from fleetfoot.optim import AdamConfig
from fleetfoot.recipe import Recipe
from fleetfoot.recipes import fast_td3


def pendulum() -> Recipe:
    """The tensor pendulum: solved in about half a minute on one core."""
    optim = AdamConfig(lr=1e-3, lr_end=3e-4)
    agent = DDPGConfig(
        target_every=1,
        tau=0.02,
        max_action_gradient=None,
        normalize_obs=True,
        reward_scale=0.1,
        policy_net=MLPConfig(hidden=(64, 64), activation=("elu",), head_std=0.01),
        critic_net=MLPConfig(hidden=(128, 128), activation=("elu",)),
        policy_optim=optim,
        critic_optim=optim,
    )
    return replace(fast_td3.pendulum(), name="ddpg/pendulum", agent=agent)


RECIPES: dict[str, tuple[str, Callable[[], Recipe]]] = {
    "ddpg/pendulum": ("pendulum swing-up written in torch", pendulum),
}
