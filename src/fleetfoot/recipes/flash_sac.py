"""FlashSAC recipes: one setting for all robots of a suite. Between suites the discount and the steps of the return
differ, the rates (`quick`), and whether the critic sees more than the policy, which the environment says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from fleetfoot.agents.flash_sac import FlashSACConfig
from fleetfoot.checkpoint import CheckpointConfig
from fleetfoot.envs.envpool import EnvPoolConfig
from fleetfoot.envs.envpool.tasks import dm_control_id
from fleetfoot.envs.gym import GymConfig
from fleetfoot.envs.lab.mjlab import MjlabConfig
from fleetfoot.envs.playground import PlaygroundConfig
from fleetfoot.evaluate import EvaluationConfig
from fleetfoot.explore import AsSampledConfig, HeldNoiseConfig
from fleetfoot.log import LogConfig
from fleetfoot.nn.flash import FlashNetConfig
from fleetfoot.nn.xqc import XQCNetConfig
from fleetfoot.optim import AdamConfig
from fleetfoot.pace import PaceConfig
from fleetfoot.recipe import Recipe
from fleetfoot.recipes import fast_td3
from fleetfoot.replay.replay import ReplayConfig
from fleetfoot.topologies.synchronous import SynchronousConfig

START = 100_000  # transitions with random actions and no updates
WIDE: dict[str, Any] = {
    "policy_net": FlashNetConfig(width=256),
    "critic_net": FlashNetConfig(width=512),
}


def robots(name: str, env: Any, *, num_envs: int, env_steps: int, **changes: Any) -> Recipe:
    """Many robots on one GPU: 2 updates per 1,024 env steps, as published, however many robots take them."""
    start = -(-START // num_envs)
    total_vec_steps = -(-env_steps // num_envs)
    fifth = -(-total_vec_steps // 5)
    fields: dict[str, Any] = {
        "name": f"flash_sac/{name}",
        "env": env,
        "agent": FlashSACConfig(),
        "explorer": HeldNoiseConfig(random_vec_steps=start),
        "replay": ReplayConfig(capacity=10_000_000, storage="bf16"),
        "pace": PaceConfig(updates_per_vec_step=num_envs / 512, warmup_vec_steps=start),
        "topology": SynchronousConfig(),
        "evaluation": EvaluationConfig(every_vec_steps=fifth, episodes=64),
        "checkpoint": CheckpointConfig(every_vec_steps=fifth, replay=False),
        "num_envs": num_envs,
        "batch_size": 2_048,
        "total_vec_steps": total_vec_steps,
        "device": "cuda",  # so many robots are out of the reach of CPU cores
        "precision": "bf16",
    }
    return Recipe(**(fields | changes))


def playground(name: str, task: str, num_envs: int = 4_096) -> Recipe:
    """A humanoid that follows a joystick: 50 million env steps, 97,600 updates. With 4,096 robots eight updates are
    made while the next vec step is simulated; the authors have 1,024 robots and two (`-published`)."""
    return robots(
        name,
        PlaygroundConfig(task=task),
        num_envs=num_envs,
        env_steps=50_000_000,
        gamma=0.97,
        topology=SynchronousConfig(overlap=True),
        # As many episodes as there are robots: then training and evaluation share what takes minutes to compile.
        evaluation=EvaluationConfig(every_vec_steps=-(-10_000_000 // num_envs), episodes=num_envs),
        log=LogConfig(every_vec_steps=800_000 // num_envs),
    )


def quick() -> FlashSACConfig:
    """About three times the published rates, with a target that follows twice as fast: what learned soonest on T1,
    from batches half of which are mirror images."""
    optim = AdamConfig(lr=1e-3, lr_end=3e-4)
    return FlashSACConfig(tau=0.02, policy_optim=optim, critic_optim=optim, alpha_optim=optim)


def mjlab_velocity(robot: str) -> Recipe:
    """Velocity tracking on flat ground. Discount and steps of the return are those that the authors have for Isaac
    Lab, rates and mirror images those of the package's own robots."""
    return robots(
        f"mjlab-{robot.lower()}-velocity-flat",
        MjlabConfig(task=f"Mjlab-Velocity-Flat-Unitree-{robot}", spread_ends=True),
        num_envs=4_096,
        env_steps=50_000_000,
        gamma=0.99,
        agent=quick(),
        replay=ReplayConfig(capacity=10_000_000, n_step=3, storage="bf16", mirror=True),
    )


def large(make: Callable[[], Recipe]) -> Recipe:
    """Twice the width and twice the batch, as many updates: what the authors' ablations found to be better."""
    base = make()
    agent: Any = base.agent
    return replace(base, name=f"{base.name}-large", agent=replace(agent, **WIDE), batch_size=4_096)


def small(base: Recipe, policy: FlashNetConfig, critic: FlashNetConfig) -> Recipe:
    """FlashSAC in place of FastTD3 on a few CPU cores: the same data and as many updates of 256 rows, in narrower
    networks. So few updates want longer steps, and a quicker target, than the hundred thousands of a robot."""
    optim = AdamConfig(lr=3e-3, lr_end=1e-3)
    agent = FlashSACConfig(
        tau=0.05,
        policy_net=policy,
        critic_net=critic,
        policy_optim=optim,
        critic_optim=optim,
        alpha_optim=optim,
    )
    return replace(
        base,
        name=base.name.replace("fast_td3", "flash_sac"),
        agent=agent,
        explorer=HeldNoiseConfig(random_vec_steps=base.pace.warmup_vec_steps),
        batch_size=256,
    )


def pendulum() -> Recipe:
    """The tensor pendulum."""
    policy, critic = FlashNetConfig(width=32, blocks=1), FlashNetConfig(width=64, blocks=1)
    return small(fast_td3.pendulum(), policy, critic)


def mujoco(base: Recipe) -> Recipe:
    """Gymnasium's MuJoCo tasks."""
    return small(base, FlashNetConfig(width=64, blocks=1), FlashNetConfig(width=96, blocks=1))


def own() -> Recipe:
    """For a task that nobody has tuned anything for, on a few CPU cores: nothing in it depends on the units of rewards
    or observations. The environment in it only stands for yours."""
    base = mujoco(fast_td3.pendulum())
    return replace(
        base,
        name="flash_sac/own",
        env=GymConfig(),
        replay=ReplayConfig(capacity=1_000_000, n_step=3),
        pace=PaceConfig(updates_per_vec_step=4.0, warmup_vec_steps=50),
        evaluation=EvaluationConfig(every_vec_steps=1_000, episodes=16),
        checkpoint=CheckpointConfig(every_vec_steps=1_000),
        explorer=HeldNoiseConfig(random_vec_steps=50),
        num_envs=32,
        total_vec_steps=5_000,
        device="cpu",
    )


def one_environment(name: str, env: Any) -> Recipe:
    """As published for simulators in which each step is expensive: one environment, one update of 512 rows per step,
    and a million of them. Evaluations are five episodes, as in the other recipes of this kind."""
    start = 10_000
    return Recipe(
        name=f"flash_sac/{name}",
        env=env,
        agent=FlashSACConfig(),
        explorer=HeldNoiseConfig(random_vec_steps=start),
        replay=ReplayConfig(capacity=1_000_000),
        pace=PaceConfig(updates_per_vec_step=1.0, warmup_vec_steps=start),
        topology=SynchronousConfig(),
        evaluation=EvaluationConfig(every_vec_steps=25_000, episodes=5),
        log=LogConfig(every_vec_steps=1_000),
        checkpoint=CheckpointConfig(every_vec_steps=50_000),
        num_envs=1,
        batch_size=512,
        total_vec_steps=1_000_000,
    )


def xqc(
    tau: float, optim: AdamConfig, policy: XQCNetConfig, critic: XQCNetConfig
) -> FlashSACConfig:
    """XQC's networks, and those of its settings that do not depend on the length of a run. What FlashSAC does
    otherwise is listed in docs/algorithms/flash_sac.md."""
    return FlashSACConfig(
        tau=tau,
        policy_every=3,
        target_std=0.14676,  # 1 / (e root(2 pi)): a target entropy of -1/2 for each action component
        policy_net=policy,
        critic_net=critic,
        policy_optim=optim,
        critic_optim=optim,
        alpha_optim=optim,
    )


def pendulum_xqc() -> Recipe:
    """The pendulum with XQC's networks, of about as many weights, and its settings, but for `tau` and the first rate,
    which are `small`'s. The rate falls tenfold on a straight line, as XQC's does."""
    base, optim = pendulum(), AdamConfig(lr=3e-3, lr_end=3e-4, schedule="linear")
    return replace(
        base,
        name="flash_sac/pendulum-xqc",
        agent=xqc(0.05, optim, XQCNetConfig(width=48), XQCNetConfig(width=96)),
        explorer=AsSampledConfig(random_vec_steps=base.pace.warmup_vec_steps),
    )


def humanoid_run_xqc() -> Recipe:
    """One environment with XQC's settings as published: a million steps, two of them with each action, and two updates
    of 256 rows after it."""
    start, optim = 5_000, AdamConfig(lr=3e-4, lr_end=3e-5, schedule="linear")
    return replace(
        one_environment(
            "humanoid-run-xqc", EnvPoolConfig(task=dm_control_id("humanoid-run"), action_repeat=2)
        ),
        agent=xqc(0.005, optim, XQCNetConfig(width=256), XQCNetConfig(width=512)),
        explorer=AsSampledConfig(random_vec_steps=start),
        pace=PaceConfig(updates_per_vec_step=2.0, warmup_vec_steps=start),
        batch_size=256,
        total_vec_steps=500_000,
    )


def dm_control(task: str) -> Recipe:
    return one_environment(task, EnvPoolConfig(task=dm_control_id(task)))


TASKS = {
    "t1-joystick-flat": ("T1JoystickFlatTerrain", "Booster T1 follows a joystick"),
    "t1-joystick-rough": ("T1JoystickRoughTerrain", "Booster T1, the same on rough ground"),
    "g1-joystick-flat": ("G1JoystickFlatTerrain", "Unitree G1 follows a joystick"),
    "g1-joystick-rough": ("G1JoystickRoughTerrain", "Unitree G1, the same on rough ground"),
}
RECIPES: dict[str, tuple[str, Callable[[], Recipe]]] = {
    "flash_sac/halfcheetah": (
        "HalfCheetah-v5 on CPU cores",
        lambda: mujoco(fast_td3.halfcheetah()),
    ),
    "flash_sac/walker2d": (
        "Walker2d-v5 on CPU cores",
        lambda: mujoco(fast_td3.mujoco("Walker2d-v5", 5_000)),
    ),
    "flash_sac/own": (
        "your own environment (--env ...), whatever its rewards, on CPU cores",
        own,
    ),
    "flash_sac/pendulum": ("pendulum swing-up written in torch", pendulum),
    "flash_sac/pendulum-xqc": ("the pendulum with XQC's networks and settings", pendulum_xqc),
}
for _name, (_task, _what) in TASKS.items():
    _plain = partial(playground, _name, _task)
    RECIPES |= {
        f"flash_sac/{_name}": (f"{_what} (MuJoCo Playground); needs a GPU", _plain),
        f"flash_sac/{_name}-published": (
            "the same with as many robots as the authors used",
            partial(playground, f"{_name}-published", _task, 1_024),
        ),
        f"flash_sac/{_name}-large": (
            "the same with wider networks and larger batches",
            partial(large, _plain),
        ),
    }
for _task in ("walker-run", "quadruped-run", "humanoid-run", "dog-run"):
    RECIPES[f"flash_sac/{_task}"] = (f"dm_control {_task}", partial(dm_control, _task))
RECIPES["flash_sac/humanoid-run-xqc"] = (
    "dm_control humanoid-run with XQC's networks and settings",
    humanoid_run_xqc,
)
for _robot in ("G1", "Go1"):
    _name, _plain = f"mjlab-{_robot.lower()}-velocity-flat", partial(mjlab_velocity, _robot)
    RECIPES |= {
        f"flash_sac/{_name}": (
            f"Unitree {_robot} follows velocity commands, mjlab on one GPU",
            _plain,
        ),
        f"flash_sac/{_name}-large": (
            "the same with wider networks and larger batches",
            partial(large, _plain),
        ),
    }
