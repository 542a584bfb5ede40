"""Ape-X DPG recipes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fleetfoot.agents.ddpg import DDPGConfig
from fleetfoot.explore import NoiseLadderConfig
from fleetfoot.optim import AdamConfig
from fleetfoot.recipe import Recipe
from fleetfoot.recipes import ddpg, fast_td3
from fleetfoot.replay.evict import InverseConfig
from fleetfoot.replay.replay import ReplayConfig
from fleetfoot.replay.samplers import ProportionalConfig
from fleetfoot.topologies.apex.loop import ActorLearnerConfig


def pendulum() -> Recipe:
    """The tensor pendulum with four actors."""
    sampler = ProportionalConfig(eviction=InverseConfig())
    return replace(
        ddpg.pendulum(),
        name="apex_dpg/pendulum",
        explorer=NoiseLadderConfig(std_min=0.05, std_max=0.8, redraw="never"),
        replay=ReplayConfig(capacity=100_000, n_step=3, sampler=sampler),
        topology=ActorLearnerConfig(actors=4, block_vec_steps=10, publish_every_vec_steps=5),
    )


def halfcheetah() -> Recipe:
    """HalfCheetah-v5 on CPU cores, with the networks of Ape-X DPG and constants for a run of minutes, not days."""
    optim = AdamConfig(lr=3e-4)
    agent = DDPGConfig(
        num_critics=2,
        target_every=1,
        tau=0.01,
        normalize_obs=True,
        reward_scale=0.1,
        policy_optim=optim,
        critic_optim=optim,
    )
    return replace(
        fast_td3.halfcheetah(),
        name="apex_dpg/halfcheetah",
        agent=agent,
        explorer=NoiseLadderConfig(std_min=0.05, std_max=0.8, redraw="never"),
        replay=ReplayConfig(
            capacity=500_000, n_step=5, sampler=ProportionalConfig(eviction=InverseConfig())
        ),
        topology=ActorLearnerConfig(actors=4, block_vec_steps=25, publish_every_vec_steps=10),
    )


RECIPES: dict[str, tuple[str, Callable[[], Recipe]]] = {
    "apex_dpg/pendulum": ("the pendulum with four actors and prioritised replay", pendulum),
    "apex_dpg/halfcheetah": ("HalfCheetah-v5 with four actors", halfcheetah),
}
