"""FastTD3 recipes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fleetfoot.agents.fast_td3 import FastTD3Config
from fleetfoot.checkpoint import CheckpointConfig
from fleetfoot.envs.envpool import EnvPoolTasksConfig
from fleetfoot.envs.envpool.tasks import SETS
from fleetfoot.envs.lab.mjlab import MjlabConfig
from fleetfoot.envs.mujoco import MuJoCoConfig
from fleetfoot.envs.playground import PlaygroundConfig
from fleetfoot.envs.tensor import TensorConfig
from fleetfoot.evaluate import EvaluationConfig
from fleetfoot.explore import NoiseLadderConfig
from fleetfoot.log import LogConfig
from fleetfoot.nn.mlp import MLPConfig
from fleetfoot.nn.simba import SimbaV2Config
from fleetfoot.optim import AdamWConfig
from fleetfoot.pace import PaceConfig
from fleetfoot.recipe import Recipe
from fleetfoot.replay.replay import ReplayConfig
from fleetfoot.replay.samplers import ProportionalConfig
from fleetfoot.topologies.pql.loop import SplitLearnersConfig
from fleetfoot.topologies.synchronous import SynchronousConfig


def mujoco(task: str, total_vec_steps: int, **changes: Any) -> Recipe:
    """The MuJoCo tasks of Gymnasium on a few CPU cores: small networks and batches, few environments. Nothing in it
    depends on the units of the task's rewards."""
    optim = AdamWConfig(lr=1e-3, lr_end=3e-4, weight_decay=0.01)
    agent = FastTD3Config(
        v_min="auto",
        v_max="auto",
        num_atoms=51,
        tau=0.02,
        policy_noise=0.1,
        noise_clip=0.3,
        policy_net=MLPConfig(hidden=(256, 256), head_std=0.01),
        critic_net=MLPConfig(hidden=(256, 256)),
        policy_optim=optim,
        critic_optim=optim,
    )
    fields: dict[str, Any] = {
        "name": f"fast_td3/{task.split('-')[0].lower()}",
        "env": MuJoCoConfig(task=task),
        "agent": agent,
        "explorer": NoiseLadderConfig(std_min=0.05, std_max=0.8),
        "replay": ReplayConfig(capacity=1_000_000, n_step=3),
        "pace": PaceConfig(updates_per_vec_step=8.0, warmup_vec_steps=50),
        "topology": SynchronousConfig(),
        "evaluation": EvaluationConfig(every_vec_steps=total_vec_steps // 10, episodes=8),
        "checkpoint": CheckpointConfig(every_vec_steps=total_vec_steps // 5),
        "num_envs": 64,
        "batch_size": 256,
        "total_vec_steps": total_vec_steps,
        "device": "cpu",  # like the physics; networks of this size are not faster on a GPU
    }
    return Recipe(**(fields | changes))


def halfcheetah() -> Recipe:
    """The default recipe, with short episodes.

    A cheetah that has fallen on its back stays there until its episode ends. If all environments begin together, the
    learner may see little else, and settle for sliding on the back.
    """
    env = MuJoCoConfig(task="HalfCheetah-v5", episode_length=100)
    return mujoco("HalfCheetah-v5", 3_000, env=env)


def pendulum() -> Recipe:
    """The tensor pendulum: solved in about half a minute on one core."""
    optim = AdamWConfig(lr=1e-3, lr_end=3e-4, weight_decay=0.01)
    return Recipe(
        name="fast_td3/pendulum",
        env=TensorConfig(task="pendulum"),
        agent=FastTD3Config(
            v_min=-1_650.0,  # no state is worth less: -16.3 at each step, 1 / (1 - gamma) = 100 of them
            v_max=0.0,
            num_atoms=51,
            tau=0.05,
            policy_noise=0.1,
            policy_net=MLPConfig(hidden=(64, 64), head_std=0.01),
            critic_net=MLPConfig(hidden=(128, 128)),
            policy_optim=optim,
            critic_optim=optim,
        ),
        explorer=NoiseLadderConfig(std_min=0.05, std_max=0.8),
        replay=ReplayConfig(capacity=200_000),
        pace=PaceConfig(updates_per_vec_step=2.0, warmup_vec_steps=20),
        topology=SynchronousConfig(),
        evaluation=EvaluationConfig(every_vec_steps=500, episodes=32),
        log=LogConfig(every_vec_steps=50),
        checkpoint=CheckpointConfig(every_vec_steps=500),
        num_envs=128,
        batch_size=512,
        total_vec_steps=1_500,
    )


def pendulum_split() -> Recipe:
    """Actor, critic learner and policy learner work at the same time."""
    return replace(pendulum(), name="fast_td3/pendulum-split", topology=SplitLearnersConfig())


def pendulum_simba() -> Recipe:
    """SimbaV2 networks, trained as published: no weight decay, a learning rate that falls tenfold."""
    base = pendulum()
    assert isinstance(base.agent, FastTD3Config)
    optim = AdamWConfig(lr=1e-3, lr_end=1e-4, weight_decay=0.0)
    agent = replace(
        base.agent,
        policy_net=SimbaV2Config(width=32, blocks=1),
        critic_net=SimbaV2Config(width=64, blocks=1),
        policy_optim=optim,
        critic_optim=optim,
    )
    return replace(base, name="fast_td3/pendulum-simba", agent=agent)


def pendulum_prioritised() -> Recipe:
    """Prioritised replay: rows with large errors are sampled more often, with a smaller weight."""
    base = pendulum()
    replay = replace(base.off_policy_replay(), sampler=ProportionalConfig())
    return replace(base, name="fast_td3/pendulum-prioritised", replay=replay)


def point_mass() -> Recipe:
    """Four tasks at once, with privileged observations for the critic and rewards normalised per task."""
    base = pendulum()
    assert isinstance(base.agent, FastTD3Config)
    return replace(
        base,
        name="fast_td3/point-mass",
        env=TensorConfig(task="point_mass", privileged=True, num_tasks=4),
        agent=replace(base.agent, v_min=-10.0, v_max=10.0, normalize_reward=True),
        total_vec_steps=1_000,
    )


def playground(name: str, task: str) -> Recipe:
    """A humanoid that follows a joystick, on one GPU.

    FastTD3's settings for Playground, with four times its robots and twice its updates per vec step, which cost little
    while the next step is simulated.

    The replay holds 10,240 steps of each robot. In bfloat16, and with the features that policy and critic share stored
    once, it takes about 16 GiB for T1 and 20 GiB for G1; a smaller GPU needs a smaller --replay.capacity.
    Checkpoints do not include it.
    """
    num_envs, rows = 4096, 10_240
    return Recipe(
        name=f"fast_td3/{name}",
        env=PlaygroundConfig(task=task),
        agent=FastTD3Config(v_min=-10.0, v_max=10.0),
        explorer=NoiseLadderConfig(std_min=0.001, std_max=0.4),
        replay=ReplayConfig(capacity=num_envs * rows, storage="bf16"),
        pace=PaceConfig(updates_per_vec_step=4.0, warmup_vec_steps=10),
        topology=SynchronousConfig(overlap=True),
        # As many episodes as robots, so that training and evaluation share code that takes minutes to compile.
        evaluation=EvaluationConfig(every_vec_steps=3_000, episodes=num_envs),
        log=LogConfig(every_vec_steps=200),
        checkpoint=CheckpointConfig(every_vec_steps=3_000, replay=False),
        num_envs=num_envs,
        batch_size=32_768,
        total_vec_steps=15_000,
        gamma=0.97,
        device="cuda",  # too many robots for a CPU
        precision="bf16",
    )


def mjlab_velocity(robot: str, total_vec_steps: int) -> Recipe:
    """Velocity tracking on flat ground on one GPU, with the settings of FastTD3 for the G1 of Isaac Lab: long n-step
    returns, 251 atoms.

    The value range is wider than the published 10: rewards of mjlab reach 0.12 per step here, so values reach 12.
    """
    num_envs = 4_096
    return Recipe(
        name=f"fast_td3/mjlab-{robot.lower()}-velocity-flat",
        env=MjlabConfig(task=f"Mjlab-Velocity-Flat-Unitree-{robot}", spread_ends=True),
        agent=FastTD3Config(v_min=-15.0, v_max=15.0, num_atoms=251),
        explorer=NoiseLadderConfig(std_min=0.001, std_max=0.4),
        replay=ReplayConfig(capacity=10_240 * num_envs, n_step=8, storage="bf16"),
        pace=PaceConfig(updates_per_vec_step=4.0, warmup_vec_steps=10),
        topology=SynchronousConfig(),
        evaluation=EvaluationConfig(every_vec_steps=5_000, episodes=64),
        checkpoint=CheckpointConfig(
            every_vec_steps=5_000, replay=False
        ),  # the replay takes many GiB
        num_envs=num_envs,
        batch_size=32_768,
        total_vec_steps=total_vec_steps,
        precision="bf16",
    )


def meta_world(tasks: str, envs_per_task: int, gamma: float) -> Recipe:
    """Many Meta-World tasks at once, on CPU cores and a GPU: FastTD3's settings for MTBench, whose 4,096 or 8,192
    environments are simulated on a GPU, with as many environments as CPU cores can hold (15 MB and half a second to
    build each) and with as many steps and updates as it has for HumanoidBench. Episodes are as long as BRC's."""
    num_envs = envs_per_task * len(SETS[tasks])
    return Recipe(
        name=f"fast_td3/{tasks}",
        env=EnvPoolTasksConfig(set=tasks, max_episode_steps=200),
        agent=FastTD3Config(v_min=-10.0, v_max=10.0, normalize_reward=True),
        explorer=NoiseLadderConfig(std_min=0.001, std_max=0.4),
        replay=ReplayConfig(capacity=8_388_608, n_step=8),
        pace=PaceConfig(updates_per_vec_step=2.0, warmup_vec_steps=10),
        topology=SynchronousConfig(overlap=True),
        evaluation=EvaluationConfig(every_vec_steps=5_000, episodes=max(50, 2 * len(SETS[tasks]))),
        checkpoint=CheckpointConfig(every_vec_steps=5_000, replay=False),
        num_envs=num_envs,
        batch_size=32_768,
        total_vec_steps=100_000,
        gamma=gamma,
        precision="bf16",
    )


RECIPES: dict[str, tuple[str, Callable[[], Recipe]]] = {
    "fast_td3/halfcheetah": (
        "HalfCheetah-v5 on CPU cores: the default",
        halfcheetah,
    ),
    "fast_td3/walker2d": (
        "Walker2d-v5 on CPU cores",
        lambda: mujoco("Walker2d-v5", 5_000),
    ),
    "fast_td3/pendulum": ("pendulum swing-up written in torch", pendulum),
    "fast_td3/pendulum-split": (
        "the pendulum with an actor and two learners at the same time",
        pendulum_split,
    ),
    "fast_td3/pendulum-simba": ("the pendulum with SimbaV2 networks", pendulum_simba),
    "fast_td3/pendulum-prioritised": ("the pendulum with prioritised replay", pendulum_prioritised),
    "fast_td3/mjlab-g1-velocity-flat": (
        "Unitree G1 follows velocity commands, mjlab on one GPU",
        lambda: mjlab_velocity("G1", 50_000),
    ),
    "fast_td3/mjlab-go1-velocity-flat": (
        "Unitree Go1 follows velocity commands, mjlab on one GPU",
        lambda: mjlab_velocity("Go1", 50_000),
    ),
    "fast_td3/mt10": (
        "ten Meta-World tasks at once, on CPU cores and a GPU",
        lambda: meta_world("mt10", 16, 0.97),
    ),
    "fast_td3/mt50": (
        "fifty Meta-World tasks at once, on CPU cores and a GPU",
        lambda: meta_world("mt50", 8, 0.99),
    ),
    "fast_td3/point-mass": (
        "four tasks at once, privileged observations for the critic",
        point_mass,
    ),
    "fast_td3/t1-joystick-flat": (
        "Booster T1 follows a joystick (MuJoCo Playground); needs a GPU",
        lambda: playground("t1-joystick-flat", "T1JoystickFlatTerrain"),
    ),
    "fast_td3/t1-joystick-rough": (
        "Booster T1 follows a joystick on rough ground; needs a GPU",
        lambda: playground("t1-joystick-rough", "T1JoystickRoughTerrain"),
    ),
    "fast_td3/g1-joystick-flat": (
        "Unitree G1 follows a joystick (MuJoCo Playground); needs a GPU",
        lambda: playground("g1-joystick-flat", "G1JoystickFlatTerrain"),
    ),
    "fast_td3/g1-joystick-rough": (
        "Unitree G1 follows a joystick on rough ground; needs a GPU",
        lambda: playground("g1-joystick-rough", "G1JoystickRoughTerrain"),
    ),
}
