"""The robots of the package as an environment of recipes."""

from __future__ import annotations

import dataclasses
import functools
from typing import Literal, TypeAlias

import torch

from fleetfoot.config import at_least, part
from fleetfoot.data import EnvSpec
from fleetfoot.envs.robot import robots, terms
from fleetfoot.envs.robot.conditions import ConditionsConfig, by_name
from fleetfoot.envs.robot.env import RobotEnv
from fleetfoot.envs.robot.heights import Heights
from fleetfoot.envs.robot.joystick import Joystick
from fleetfoot.envs.robot.physics import EngineName, Execution, PhysicsConfig
from fleetfoot.envs.robot.robot import Robot
from fleetfoot.errors import UserError

Ground: TypeAlias = Literal["flat", "rough", "heights"]

# Timestep of the physics (s) and timesteps per control step of 0.02 s.
PHYSICS = {
    "stock": {"go1": (0.004, 5), "t1": (0.002, 10), "g1": (0.002, 10)},
    "fast": {"go1": (0.005, 4), "t1": (0.004, 5), "g1": (0.004, 5)},
}


# In Playground's rough task Go1 has more friction than on its flat ground.
HEIGHTS = {"go1": Heights(friction=1.0), "t1": Heights(), "g1": Heights()}
SPHERES = {"go1": 4, "t1": 8, "g1": 0}  # with which feet touch the ground


def names() -> list[str]:
    return list(robots.ROBOTS)


def stock_of(task: str) -> EnvSpec | None:
    """The spec of our robot whose stock task is this one of Playground: the same observations and actions."""
    robot, _, ground = task.partition("Joystick")
    known = robot.lower() in robots.ROBOTS and ground in ("FlatTerrain", "RoughTerrain")
    return _stock_spec(robot.lower()) if known else None


@functools.cache
def _stock_spec(robot: str) -> EnvSpec:
    env = RobotConfig(robot=robot, variant="stock", engine="cpu", threads=1).build(
        1, 0, torch.device("cpu")
    )
    env.close()
    return env.spec


def on_ground(ground: Ground, robot: Robot) -> Robot:
    """The robot on this ground, with room for its contacts on a GPU."""
    if ground == "rough":  # a foot may touch four plates at once
        return dataclasses.replace(
            robot,
            roughness=0.05,
            max_contacts=3 * robot.max_contacts,
            max_rows=robot.max_rows + 8 * robot.max_contacts,
        )
    if ground == "heights":
        # MuJoCo Warp keeps at most four contacts of a geom with a field. That is what a box has on a plane too, where a
        # sphere has one. A contact takes four rows. At the edge feet also touch the plane around it: 8 contacts more.
        more = 3 * SPHERES[robot.name] + 8
        return dataclasses.replace(
            robot,
            heights=HEIGHTS[robot.name],
            max_contacts=robot.max_contacts + more,
            max_rows=robot.max_rows + 4 * more,
        )
    return robot


@part
class RobotConfig:
    """A robot that follows a joystick, on CPU cores or on a GPU."""

    robot: str = "go1"
    """go1, t1 or g1."""
    variant: Literal["stock", "fast"] = "fast"
    """stock: the physics of MuJoCo Playground's task for this robot. fast: longer timesteps, for training."""
    ground: Ground = "flat"
    """rough: plates of up to 5 cm. heights: a field of random heights up to 5 cm, as in Playground's rough tasks.
    Evaluation keeps the ground."""
    gait: Literal["stock", "trot"] = "stock"
    """stock: that of Playground's task. trot (Go1): another task, in evaluation too. The policy also sees a clock of
    2.5 Hz, and the reward favours lifting the feet in time with it, and progress towards the commanded velocity."""
    engine: EngineName = "auto"
    """cpu: MuJoCo's threads; warp: MuJoCo Warp, which needs a GPU; auto: warp on a GPU, otherwise cpu."""
    threads: int = 0
    """Threads of the CPU engine; 0: all available cores."""
    episode_length: int | None = None
    """Length of training episodes; None: the task's own, 1000 control steps of 0.02 s."""
    reward: tuple[str, ...] = ()
    """Reward weights to change in training, as in action_rate=-0.01."""
    clip_reward: bool = True
    """As in Playground, negative rewards of Go1 and T1 count as zero (never with a trot). Without clipping, an
    exploring agent gets more signal."""
    curriculum: bool = False
    """Commands begin small and grow with success, for each robot separately."""
    conditions: ConditionsConfig = ConditionsConfig()
    execution: Execution = "auto"
    """How a GPU runs the vec step; auto: captured as a CUDA graph."""
    deterministic: bool = False
    """On a GPU: the same bits from the same seed. Such steps cannot be captured and are much slower."""
    render_width: int = 640
    """Pixels."""
    render_height: int = 480
    """Pixels."""

    def __post_init__(self) -> None:
        at_least(self, "env", threads=0, episode_length=1, render_width=1, render_height=1)
        self._weights()

    @property
    def on_host(self) -> bool:
        return self.engine == "cpu"

    def build(self, num_envs: int, seed: int, device: torch.device) -> RobotEnv:
        robot = on_ground(self.ground, robots.find(self.robot))
        timestep, substeps = PHYSICS[self.variant][self.robot]
        spec = terms.SPECS[self.robot]
        if self.gait == "trot":
            if self.robot != "go1":
                raise UserError(f"{self.robot} has no trot; use --env.gait stock.")
            if self.ground != "flat":
                raise UserError(
                    "a trot is judged by heights above flat ground: use --env.ground flat."
                )
            spec = terms.GO1_TROT
        if not self.clip_reward:
            spec = dataclasses.replace(spec, lowest_reward=None)
        task = Joystick(spec, self._weights(), self.curriculum)
        if self.episode_length is not None:
            task.episode_length = self.episode_length
        physics = PhysicsConfig(
            timestep=timestep,
            substeps=substeps,
            engine=self.engine,
            threads=self.threads,
            execution=self.execution,
            deterministic=self.deterministic,
        )
        size = (self.render_width, self.render_height)
        return RobotEnv(
            robot,
            task,
            num_envs,
            seed,
            device,
            physics=physics,
            conditions=self.conditions,
            render_size=size,
        )

    def for_evaluation(self) -> RobotConfig:
        """The task as its return is reported: stock physics, the gait's own reward, nobody pushes, all robots alike."""
        return dataclasses.replace(
            self,
            variant="stock",
            episode_length=None,
            reward=(),
            clip_reward=True,
            curriculum=False,
            conditions=self.conditions.for_evaluation(),
            # A GPU may have trained what a CPU evaluates, where nothing can be captured.
            execution="auto" if self.execution == "captured" else self.execution,
        )

    def _weights(self) -> dict[str, float]:
        return by_name("env.reward", self.reward)
