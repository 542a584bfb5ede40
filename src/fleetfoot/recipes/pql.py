"""PQL and PQL-D recipes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from fleetfoot.agents.ddpg import DDPGConfig
from fleetfoot.checkpoint import CheckpointConfig
from fleetfoot.envs.lab.mjlab import MjlabConfig
from fleetfoot.envs.playground import PlaygroundConfig
from fleetfoot.envs.tensor import TensorConfig
from fleetfoot.envs.vec_env import EnvConfig
from fleetfoot.evaluate import EvaluationConfig
from fleetfoot.explore import NoiseLadderConfig
from fleetfoot.log import LogConfig
from fleetfoot.nn.mlp import MLPConfig
from fleetfoot.optim import AdamWConfig
from fleetfoot.pace import PaceConfig
from fleetfoot.recipe import Recipe
from fleetfoot.recipes import fast_td3
from fleetfoot.replay.replay import ReplayConfig
from fleetfoot.topologies.pql.loop import SplitLearnersConfig


def agent(**changes: Any) -> DDPGConfig:
    """As published. The squared loss has a factor 1/2 here and none there, so half of the published bound on its
    gradient clips the same."""
    optim = AdamWConfig(lr=5e-4, weight_decay=0.01, max_grad_norm=0.5)
    bound = 0.25 if changes.get("num_atoms") is None else 0.5
    fields: dict[str, Any] = {
        "num_critics": 2,
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
        "critic_optim": replace(optim, max_grad_norm=bound),
    }
    return DDPGConfig(**(fields | changes))


def pendulum(name: str = "pql/pendulum", **of_agent: Any) -> Recipe:
    """The tensor pendulum on two cores.

    As published but for the sizes and for the policy's first actions, which are small. With torch's own initialisation
    one seed of two went to full torque at once and learned little from there.
    """
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
    """The pendulum with categorical critics.

    Values of one that nobody swings up reach -165. With a range that holds them, one of three seeds had learned nothing
    after twice as many vec steps; this one clips them, and learns.
    """
    return pendulum("pql_d/pendulum", num_atoms=51, v_min=-30.0, v_max=0.0)


NUM_ENVS = 4096


def published(name: str, env: EnvConfig, total_vec_steps: int, **of_agent: Any) -> Recipe:
    """Everything as published but the task.

    4,096 environments, batches of 8,192, 5 million transitions, n = 3, noise from 0.05 to 0.8, 8 critic updates per vec
    step and 1 policy update for 2 of them, networks of 512, 256 and 128.

    `reward_scale` keeps values within about 10, as the constants of the paper do for its tasks.
    """
    return Recipe(
        name=name,
        env=env,
        agent=agent(**of_agent),
        explorer=NoiseLadderConfig(std_min=0.05, std_max=0.8, redraw="never", random_vec_steps=32),
        replay=ReplayConfig(capacity=5_000_000, n_step=3),
        pace=PaceConfig(updates_per_vec_step=8.0, warmup_vec_steps=32),
        topology=SplitLearnersConfig(),
        evaluation=EvaluationConfig(every_vec_steps=total_vec_steps // 10, episodes=64),
        log=LogConfig(every_vec_steps=200),
        checkpoint=CheckpointConfig(every_vec_steps=total_vec_steps // 10, replay=False),
        num_envs=NUM_ENVS,
        batch_size=8_192,
        total_vec_steps=total_vec_steps,
    )


def pendulum_published(name: str = "pql/pendulum-published", **of_agent: Any) -> Recipe:
    """4,096 pendulums. As in `pendulum`, the initial policy has small actions."""
    policy_net = MLPConfig(hidden=(512, 256, 128), activation=("elu",), head_std=0.01)
    env = TensorConfig(task="pendulum")
    return published(name, env, 2_000, reward_scale=0.1, policy_net=policy_net, **of_agent)


def playground(name: str, task: str, **of_agent: Any) -> Recipe:
    """Humanoids that follow a joystick. There are as many evaluation episodes as robots, so that training and
    evaluation share code that takes minutes to compile.
    """
    base = published(name, PlaygroundConfig(task=task), 20_000, **of_agent)
    evaluation = EvaluationConfig(every_vec_steps=2_000, episodes=NUM_ENVS)
    return replace(base, evaluation=evaluation, device="cuda")


def mjlab(name: str, robot: str, **of_agent: Any) -> Recipe:
    """Velocity tracking on flat ground. Rewards of mjlab reach 0.12 per step, so values reach 12, scaled to 6."""
    env = MjlabConfig(task=f"Mjlab-Velocity-Flat-Unitree-{robot}", spread_ends=True)
    return published(name, env, 50_000, reward_scale=0.5, **of_agent)


FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {  # what the list says, and the critics
    "pql": ("at the sizes of the paper", {}),
    "pql_d": ("categorical critics", {"num_atoms": 51, "v_min": -10.0, "v_max": 10.0}),
}
TASKS = {
    "t1-joystick-flat": ("T1JoystickFlatTerrain", "Booster T1 follows a joystick"),
    "g1-joystick-flat": ("G1JoystickFlatTerrain", "Unitree G1 follows a joystick"),
}
RECIPES: dict[str, tuple[str, Callable[[], Recipe]]] = {
    "pql/pendulum": ("pendulum swing-up, actor and two learners at the same time", pendulum),
    "pql_d/pendulum": ("pendulum swing-up with categorical critics", pendulum_d),
    "pql/pendulum-published": ("4,096 pendulums at the sizes of the paper", pendulum_published),
    "pql_d/pendulum-published": (
        "4,096 pendulums at the sizes of the paper, categorical critics",
        partial(
            pendulum_published, "pql_d/pendulum-published", num_atoms=51, v_min=-30.0, v_max=0.0
        ),
    ),
}
for _family, (_what, _critics) in FAMILIES.items():
    for _task, (_id, _line) in TASKS.items():
        _make = partial(playground, f"{_family}/{_task}", _id, **_critics)
        RECIPES[f"{_family}/{_task}"] = f"{_line}, {_what}; needs a GPU", _make
    _name = f"{_family}/mjlab-go1-velocity-flat"
    _line = f"Unitree Go1 follows velocity commands, mjlab, {_what}"
    RECIPES[_name] = _line, partial(mjlab, _name, "Go1", **_critics)
