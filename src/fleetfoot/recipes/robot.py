"""Recipes of the robots that come with the package: on CPU cores, and by the thousands on one GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from fleetfoot.agents.fast_sac import FastSACConfig
from fleetfoot.agents.fast_td3 import FastTD3Config
from fleetfoot.checkpoint import CheckpointConfig
from fleetfoot.envs.robot import RobotConfig
from fleetfoot.envs.robot.config import Ground
from fleetfoot.evaluate import EvaluationConfig
from fleetfoot.explore import AsSampledConfig, NoiseLadderConfig
from fleetfoot.log import LogConfig
from fleetfoot.nn.mlp import MLPConfig
from fleetfoot.optim import AdamWConfig
from fleetfoot.pace import PaceConfig
from fleetfoot.recipe import Recipe
from fleetfoot.recipes import flash_sac
from fleetfoot.replay.replay import ReplayConfig
from fleetfoot.topologies.synchronous import SynchronousConfig


def go1() -> Recipe:
    """Unitree Go1 on a few CPU cores: small networks and batches, few robots, many updates at a high learning rate.

    A policy without entropy (FastTD3) ends at the bounds of its actions, in a pose that does not fall; hence FastSAC.
    Matrices this small gain little from a second thread, and wait for it where something else runs on its core; so
    torch has one, and the physics runs beside it.
    """
    total_vec_steps, num_envs = 1_800, 128
    optim = AdamWConfig(lr=3e-3, lr_end=3e-4, weight_decay=0.001)
    return Recipe(
        name="fast_sac/go1",
        env=RobotConfig(robot="go1", gait="trot", engine="cpu"),
        agent=FastSACConfig(
            v_min=-3.0,
            v_max=6.0,
            num_atoms=51,
            tau=0.05,
            policy_every=2,
            alpha=0.005,
            target_entropy_per_action=-1.0,
            policy_net=MLPConfig(hidden=(256, 128), head_std=0.01),
            critic_net=MLPConfig(hidden=(256, 128)),
            policy_optim=optim,
            critic_optim=optim,
            alpha_optim=AdamWConfig(lr=1e-3, lr_end=3e-4, weight_decay=0.0),
        ),
        explorer=AsSampledConfig(),
        replay=ReplayConfig(capacity=1_000_000, n_step=3, mirror=True),
        pace=PaceConfig(updates_per_vec_step=8.0, warmup_vec_steps=20),
        topology=SynchronousConfig(overlap=True),
        evaluation=EvaluationConfig(every_vec_steps=total_vec_steps // 8, episodes=32),
        log=LogConfig(every_vec_steps=100),
        checkpoint=CheckpointConfig(every_vec_steps=total_vec_steps // 4),
        num_envs=num_envs,
        batch_size=256,
        total_vec_steps=total_vec_steps,
        gamma=0.97,
        device="cpu",
        threads=1,
    )


def fast_td3(robot: str, **changes: Any) -> Recipe:
    """Thousands of robots on one GPU with FastTD3's settings for Playground, but with the native physics."""
    num_envs, rows = 4_096, 10_240
    fields: dict[str, Any] = {
        "name": f"fast_td3/{robot}",
        "env": RobotConfig(robot=robot),
        "agent": FastTD3Config(v_min=-10.0, v_max=10.0),
        "explorer": NoiseLadderConfig(std_min=0.001, std_max=0.4),
        "replay": ReplayConfig(capacity=num_envs * rows, storage="bf16"),
        "pace": PaceConfig(updates_per_vec_step=4.0, warmup_vec_steps=10),
        "topology": SynchronousConfig(overlap=True),
        "evaluation": EvaluationConfig(every_vec_steps=3_000, episodes=1_024),
        "log": LogConfig(every_vec_steps=200),
        "checkpoint": CheckpointConfig(every_vec_steps=3_000, replay=False),
        "num_envs": num_envs,
        "batch_size": 32_768,
        "total_vec_steps": 15_000,
        "gamma": 0.97,
        "device": "cuda",
        "precision": "bf16",
    }
    return Recipe(**(fields | changes))


def flash(robot: str, total_vec_steps: int, ground: Ground = "flat") -> Recipe:
    """FlashSAC for some minutes of training, with the native physics.

    The published rates are for 100,000 updates. These runs have 40,000 (Go1 and T1 on flat ground) or 97,000, and learn
    at higher rates from batches half of which are mirror images. A vec step on a height field takes so long that the
    updates beside it can be those of wider networks.
    """
    num_envs, agent = 4_096, flash_sac.quick()
    if ground == "heights":
        agent = replace(agent, **flash_sac.WIDE)
    return flash_sac.robots(
        robot if ground == "flat" else f"{robot}-{ground}",
        RobotConfig(robot=robot, ground=ground),
        num_envs=num_envs,
        env_steps=total_vec_steps * num_envs,
        gamma=0.97,
        agent=agent,
        replay=ReplayConfig(capacity=10_000_000, storage="bf16", mirror=True),
        topology=SynchronousConfig(overlap=True),
        evaluation=EvaluationConfig(every_vec_steps=1_250, episodes=1_024),
        log=LogConfig(every_vec_steps=250),
    )


LENGTH = 12_210  # vec steps of 4,096 robots: 50 million env steps, as in the recipes for Playground
# Name, and vec steps that FlashSAC learns from on flat ground.
ROBOTS = {
    "go1": ("Unitree Go1", 5_000),
    "t1": ("Booster T1", 5_000),
    "g1": ("Unitree G1", LENGTH),
}
RECIPES: dict[str, tuple[str, Callable[[], Recipe]]] = {
    "fast_sac/go1": ("Unitree Go1 follows a joystick, on CPU cores", go1),
    "fast_td3/t1": ("Booster T1 follows a joystick, on one GPU", partial(fast_td3, "t1")),
    "fast_td3/g1": ("Unitree G1 follows a joystick, on one GPU", partial(fast_td3, "g1")),
}
for _robot, (_name, _length) in ROBOTS.items():
    RECIPES |= {
        f"flash_sac/{_robot}": (
            f"{_name} follows a joystick, on one GPU",
            partial(flash, _robot, _length),
        ),
        f"flash_sac/{_robot}-rough": (
            "the same on rough ground",
            partial(flash, _robot, LENGTH, "rough"),
        ),
        f"flash_sac/{_robot}-heights": (
            "the same on a height field like that of Playground's rough tasks",
            partial(flash, _robot, LENGTH, "heights"),
        ),
    }
