"""PPO recipes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fleetfoot.agents.ppo import PPOConfig
from fleetfoot.checkpoint import CheckpointConfig
from fleetfoot.envs.lab.mjlab import MjlabConfig
from fleetfoot.envs.mujoco import MuJoCoConfig
from fleetfoot.envs.playground import PlaygroundConfig
from fleetfoot.envs.robot import RobotConfig
from fleetfoot.envs.tensor import TensorConfig
from fleetfoot.envs.vec_env import EnvConfig
from fleetfoot.evaluate import EvaluationConfig
from fleetfoot.explore import FromPolicyConfig
from fleetfoot.log import LogConfig
from fleetfoot.nn.mlp import MLPConfig
from fleetfoot.optim import AdamConfig
from fleetfoot.recipe import Recipe
from fleetfoot.replay.rollouts import RolloutConfig
from fleetfoot.topologies.synchronous import SynchronousConfig


def pendulum() -> Recipe:
    """The tensor pendulum on one core."""
    net = MLPConfig(hidden=(64, 64), activation=("tanh",), start="orthogonal")
    return Recipe(
        name="ppo/pendulum",
        env=TensorConfig(task="pendulum"),
        agent=PPOConfig(
            epochs=10,
            minibatches=32,
            entropy_coef=0.0,
            value_clip=None,
            target_kl=None,
            policy_net=net,
            critic_net=net,
            policy_optim=AdamConfig(lr=1e-3, lr_end=1e-4, schedule="linear", max_grad_norm=0.5),
        ),
        explorer=FromPolicyConfig(),
        replay=RolloutConfig(length=64),
        topology=SynchronousConfig(),
        evaluation=EvaluationConfig(every_vec_steps=448, episodes=32),
        log=LogConfig(every_vec_steps=128),
        checkpoint=CheckpointConfig(every_vec_steps=1_280),
        num_envs=32,
        total_vec_steps=3_136,
        gamma=0.9,
    )


def cartpole() -> Recipe:
    """The tensor cartpole on one core, with discrete actions."""
    base = pendulum()
    assert isinstance(base.agent, PPOConfig)
    return replace(
        base,
        name="ppo/cartpole",
        agent=replace(
            base.agent,
            minibatches=8,
            target_kl=0.01,
            policy_optim=AdamConfig(lr=1e-3, max_grad_norm=1.0),
        ),
        env=TensorConfig(task="cartpole"),
        replay=RolloutConfig(length=32),
        evaluation=EvaluationConfig(every_vec_steps=320, episodes=32),
        log=LogConfig(every_vec_steps=64),
        checkpoint=CheckpointConfig(every_vec_steps=1_280),
        total_vec_steps=1_600,
        gamma=0.99,
    )


def halfcheetah() -> Recipe:
    """HalfCheetah-v5 on CPU cores, with the settings of Stable-Baselines3's PPO, whose defaults these are."""
    net = MLPConfig(hidden=(64, 64), activation=("tanh",), start="orthogonal")
    return Recipe(
        name="ppo/halfcheetah",
        env=MuJoCoConfig(task="HalfCheetah-v5"),
        agent=PPOConfig(
            epochs=10,
            minibatches=32,
            entropy_coef=0.0,
            value_clip=None,
            value_coef=0.5,
            normalize_advantage="minibatch",
            target_kl=None,
            policy_net=net,
            critic_net=net,
            policy_optim=AdamConfig(lr=3e-4, eps=1e-5, max_grad_norm=0.5),
        ),
        explorer=FromPolicyConfig(),
        replay=RolloutConfig(length=256),
        topology=SynchronousConfig(),
        evaluation=EvaluationConfig(every_vec_steps=12_800, episodes=8),
        log=LogConfig(every_vec_steps=1_024),
        checkpoint=CheckpointConfig(every_vec_steps=25_600),
        num_envs=8,
        total_vec_steps=128_000,
        device="cpu",  # like the physics; networks of this size are not faster on a GPU
    )


def robots(name: str, env: EnvConfig, total_vec_steps: int) -> Recipe:
    """4,096 robots on one GPU with the defaults of PPOConfig, which are those of rsl_rl for legged robots."""
    num_envs = 4_096
    return Recipe(
        name=f"ppo/{name}",
        env=env,
        agent=PPOConfig(entropy_coef=0.005),
        explorer=FromPolicyConfig(),
        replay=RolloutConfig(length=24),
        topology=SynchronousConfig(),
        # As many episodes as robots, so that training and evaluation share code that takes minutes to compile.
        evaluation=EvaluationConfig(every_vec_steps=4_800, episodes=num_envs),
        log=LogConfig(every_vec_steps=240),
        checkpoint=CheckpointConfig(every_vec_steps=4_800, replay=False),
        num_envs=num_envs,
        total_vec_steps=total_vec_steps,
        device="cuda",  # too many robots for a CPU
        precision="tf32",
    )


def t1_joystick_flat() -> Recipe:
    """200 million steps, for which PPO's return is published (34.5). gamma as Playground's own PPO has it."""
    env = PlaygroundConfig(task="T1JoystickFlatTerrain")
    return replace(robots("t1-joystick-flat", env, 48_000), gamma=0.97)


def native_t1() -> Recipe:
    """The same robot and task with the package's own physics (MuJoCo Warp)."""
    env = RobotConfig(robot="t1")
    evaluation = EvaluationConfig(every_vec_steps=4_800, episodes=1_024)
    return replace(robots("t1", env, 48_000), gamma=0.97, evaluation=evaluation)


def mjlab_g1() -> Recipe:
    """As mjlab trains it itself; its evaluation needs fewer episodes."""
    env = MjlabConfig(task="Mjlab-Velocity-Flat-Unitree-G1", spread_ends=True)
    base = robots("mjlab-g1-velocity-flat", env, 36_000)
    return replace(base, evaluation=EvaluationConfig(every_vec_steps=4_800, episodes=64))


RECIPES: dict[str, tuple[str, Callable[[], Recipe]]] = {
    "ppo/pendulum": ("pendulum swing-up written in torch", pendulum),
    "ppo/cartpole": ("the cartpole written in torch, discrete actions", cartpole),
    "ppo/halfcheetah": ("HalfCheetah-v5 on CPU cores", halfcheetah),
    "ppo/t1-joystick-flat": (
        "Booster T1 follows a joystick (MuJoCo Playground); needs a GPU",
        t1_joystick_flat,
    ),
    "ppo/t1": ("Booster T1 follows a joystick, native physics on one GPU", native_t1),
    "ppo/mjlab-g1-velocity-flat": (
        "Unitree G1 follows velocity commands, mjlab on one GPU",
        mjlab_g1,
    ),
}
