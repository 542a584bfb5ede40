"""PQL and PQL-D recipes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fleetfoot.agents.ddpg import DDPGConfig
from fleetfoot.explore import NoiseLadderConfig
from fleetfoot.nn.mlp import MLPConfig
from fleetfoot.optim import AdamWConfig
from fleetfoot.pace import PaceConfig
from fleetfoot.recipe import Recipe
from fleetfoot.recipes import fast_td3
from fleetfoot.replay.replay import ReplayConfig
from fleetfoot.topologies.split_learners import SplitLearnersConfig


def agent(**changes: Any) -> DDPGConfig:
    """As published."""
    optim = AdamWConfig(lr=5e-4, lr_end=5e-4, weight_decay=0.01, max_grad_norm=0.5)
    fields: dict[str, Any] = {
        "critics": 2,
        "target_policy": False,
        "target_every": 1,
        "tau": 0.05,
        "policy_every": 2,
        "policy_noise": 0.8,
        "noise_clip": 0.2,
        "max_action_gradient": None,
        "normalize_obs": True,
        "obs_clamp": 5.0,
        "policy_net": MLPConfig(hidden=(512, 256, 128), activation=("elu",)),
        "critic_net": MLPConfig(hidden=(512, 256, 128), activation=("elu",)),
        "policy_optim": optim,
        "critic_optim": optim,
    }
    return DDPGConfig(**(fields | changes))


def pendulum(name: str = "pql/pendulum", **of_agent: Any) -> Recipe:
    """The tensor pendulum on two cores. As published but for sizes, and for the policy's first actions: they are small.
    With torch's own start one seed of two went to full torque at once, and learned little from there."""
    small = agent(
        reward_scale=0.1,
        policy_net=MLPConfig(hidden=(64, 64), activation=("elu",), head_std=0.01),
        critic_net=MLPConfig(hidden=(128, 128), activation=("elu",)),
        **of_agent,
    )
    return replace(
        fast_td3.pendulum(),
        name=name,
        agent=small,
        explorer=NoiseLadderConfig(std_min=0.05, std_max=0.8, redraw="never", random_vec_steps=32),
        replay=ReplayConfig(capacity=200_000, n_step=3),
        pace=PaceConfig(updates_per_vec_step=8.0, warmup_vec_steps=32),
        topology=SplitLearnersConfig(),
        num_envs=256,
        batch_size=512,
        total_vec_steps=1_000,
    )


def pendulum_d() -> Recipe:
    """The same with categorical critics."""
    return pendulum("pql_d/pendulum", atoms=51, v_min=-30.0, v_max=0.0)


RECIPES: dict[str, tuple[str, Callable[[], Recipe]]] = {
    "pql/pendulum": ("pendulum swing-up, three learners at once", pendulum),
    "pql_d/pendulum": ("the same with categorical critics", pendulum_d),
}
