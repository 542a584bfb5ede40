"""A robot of the package in plain MuJoCo, behind the four methods that `fleetfoot.deploy` asks of any robot.

Nothing here knows how the policy was trained: the model is the robot's MJCF, and what moves it is `mj_step`. On top of
what a real robot has there are the hands of whoever plays: pushes, a rope to pull it by, another friction, another
mass, a delay of the orders, noise of the senses.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, get_args

import mujoco
import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from fleetfoot import deploy
from fleetfoot.deploy.fields import Reader
from fleetfoot.envs.robot import Robot, RobotEnv, robots
from fleetfoot.envs.robot.config import Ground, on_ground
from fleetfoot.envs.robot.joints import at_rest
from fleetfoot.envs.vec_env import EnvConfig
from fleetfoot.errors import UserError
from fleetfoot.guard import build_env

Array: TypeAlias = NDArray[np.float64]
GAINS = ("actuator_gainprm", "actuator_biasprm")
STIFFNESS = 12.0  # N/m of the rope, per kg of the robot: a pull of 1 m is stronger than its weight
MOST_STEPS = 1000  # of the physics in one control step; robots have about ten
FASTEST = 1e3  # rad/s or m/s: beyond it the simulation has exploded


@dataclass
class World:
    """What whoever plays changes about the world."""

    friction: float = 1.0  # factor on that of all surfaces
    mass: float = 1.0  # factor on that of all bodies
    delay: int = 0  # control steps until an order arrives
    noise: float = 0.0  # factor on the noise that the policy was trained with


def find(about: deploy.About, model: Path | None = None, ground: Ground | None = None) -> Robot:
    """The robot an exported policy is for: of the package, or the MJCF file `model` with the site and the keyframe
    that it was trained with.

    `ground` is for robots of the package; None: the one that the policy was trained on.
    """
    name = str(_told(about).get("robot", ""))
    if model is not None:
        if ground is not None:
            raise UserError("--ground is for robots of the package; a --model has its own ground.")
        if not model.is_file():
            raise UserError(f"there is no model {model}.")
        told = Reader({"imu": "imu", "standing": "home", **_told(about)}, about.name, "robot.")
        return Robot(
            name=name or model.stem,
            model=str(model),
            imu=told.text("imu"),
            standing=told.text("standing"),
        )
    if name not in robots.ROBOTS:
        raise UserError(
            f"{about.name} is for the robot {name!r}, which does not come with the package; name its MJCF with "
            "--model robot.xml."
        )
    return on_ground(ground or trained_on(about), robots.find(name))


def is_known(about: deploy.About) -> bool:
    """Is it for a robot of the package?"""
    return str(_told(about).get("robot", "")) in robots.ROBOTS


def of_ones_own(config: EnvConfig) -> RobotEnv | None:
    """Environments of the user's own that simulate a robot which does not come with the package."""
    if type(config).__module__.partition(".")[0] == "fleetfoot":
        return None
    env: Any = build_env(config.for_evaluation(), 1, 0, torch.device("cpu"))
    env.close()
    inner = env.env
    if not isinstance(inner, RobotEnv):
        return None
    known = robots.ROBOTS.get(inner.robot.name)
    return None if known is not None and known.model == inner.robot.model else inner


def trained_on(about: deploy.About) -> Ground:
    """The ground in the recipe that an exported policy brings along; flat where it does not tell."""
    env: object = about.raw
    for key in ("training", "recipe", "env"):
        env = env.get(key) if isinstance(env, dict) else None
    if not isinstance(env, dict):
        return "flat"
    if str(env.get("task", "")).endswith("JoystickRoughTerrain"):  # of MuJoCo Playground
        return "heights"
    return next((ground for ground in get_args(Ground) if ground == env.get("ground")), "flat")


def is_robot(about: deploy.About) -> bool:
    """Does the file tell enough to drive a robot by it?"""
    return bool(about.joints and about.control_hz and "timestep" in _told(about))


def _told(about: deploy.About) -> dict[str, object]:
    told = about.raw.get("robot")
    return told if isinstance(told, dict) else {}


class SimulatedRobot:
    """`deploy.Robot` in MuJoCo. One thread steps it."""

    def __init__(self, about: deploy.About, robot: Robot) -> None:
        timestep = _told(about).get("timestep")
        if not isinstance(timestep, (int, float)) or not 1e-5 < timestep < 0.1:
            raise UserError(f"{about.name} does not give the timestep of its physics.")
        if (
            about.control_hz is None
            or not 1 <= round(1 / (timestep * about.control_hz)) <= MOST_STEPS
        ):
            raise UserError(
                f"{about.name} has a control rate of {about.control_hz} Hz, which does not fit its physics, with a "
                f"timestep of {timestep} s."
            )
        self.robot, self.built = robot, robot.build(float(timestep))
        self.model = self.built.model
        # Show a robot that explodes, instead of silently resetting it to its reference pose.
        self.model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_AUTORESET.value
        self.data = mujoco.MjData(self.model)
        self.names = self.built.names
        self.velocity: Array = np.zeros(len(about.commands))  # what the joystick says
        self.world = World()
        self.random = np.random.default_rng(0)
        terms = Reader(about.raw, about.name).table("obs").tables("terms")
        self._noise = {term.text("name"): float(term.number("noise", float)) for term in terms}
        self._nominal = {
            name: getattr(self.model, name).copy()
            for name in ("geom_friction", "pair_friction", "body_mass", "body_inertia", *GAINS)
        }
        self._told = (1.0, 1.0)  # friction and mass as they are in the model
        self._orders: deque[deploy.Order] = deque()
        self.pull: tuple[int, Array, Array] | None = None  # body, point on it, where it is drawn to
        self.begin()
        needed = {term.name for term in about.terms if term.source == "sensor"}
        if missing := needed - self.read().keys():
            raise UserError(f"the model of {robot.name} has no sensor for {sorted(missing)[0]!r}.")

    def begin(self) -> None:
        """Stand still in the standing pose."""
        mujoco.mj_resetData(self.model, self.data)
        self.data.qpos[:] = self.built.qpos
        if self.built.free:  # above all of the ground, as episodes of training begin
            self.data.qpos[2] += self.robot.rise
        self.data.ctrl[:] = self.built.offset
        for name in GAINS:  # a controller that damps has taken them away
            getattr(self.model, name)[:] = self._nominal[name]
        self.data.act[:] = at_rest(self.model, self.built.joints, self.built.qpos)
        mujoco.mj_forward(self.model, self.data)
        self._orders.clear()
        self.pull = None

    def joints(self) -> Sequence[str]:
        return self.names

    def read(self) -> Mapping[str, ArrayLike]:
        data, sensors = self.data, self.built.sensors
        senses: dict[str, Array] = {name: data.sensordata[part] for name, part in sensors.items()}
        senses |= {
            "joint_pos": data.qpos[self.built.q],
            "joint_vel": data.qvel[self.built.v],
        }
        if "world_up" in senses:
            senses["gravity"] = -senses["world_up"]
        if self.world.noise:
            for name in self._noise.keys() & senses.keys():
                width = self.world.noise * self._noise[name]
                senses[name] = senses[name] + self.random.uniform(-width, width, senses[name].shape)
        return senses

    def command(self) -> ArrayLike:
        return self.velocity

    def write(self, order: deploy.Order) -> None:
        self._orders.append(order)
        while len(self._orders) > self.world.delay + 1:
            self._orders.popleft()
        if len(self._orders) <= self.world.delay:
            return  # nothing has arrived yet
        arrived = self._orders[0]
        self.data.ctrl[:] = arrived.target
        if arrived.kp is not None:  # a position servo: force = kp * (target - position)
            servo = self.built.servo
            self.model.actuator_gainprm[servo, 0] = arrived.kp[servo]
            self.model.actuator_biasprm[servo, 1] = -arrived.kp[servo]

    def clock(self) -> float:
        return float(self.data.time)

    def advance(self, seconds: float) -> None:
        """So much simulated time."""
        self._change_world()
        for _ in range(round(seconds / self.model.opt.timestep)):
            self._apply_pull()
            mujoco.mj_step(self.model, self.data)

    def push(self, velocity: Sequence[float]) -> None:
        """Change the velocity of the base in the plane at once, in its own frame (m/s)."""
        if not self.built.pushable:
            return
        cos, sin = np.cos(self.heading()), np.sin(self.heading())
        forward, left = velocity
        self.data.qvel[:2] += (cos * forward - sin * left, sin * forward + cos * left)

    def body_named(self, name: str) -> int:
        """Of the model that is simulated; one that is drawn with meshes may have other bodies too."""
        found = mujoco.mj_name2id(self.model, mujoco.mjtObj.mjOBJ_BODY, name)
        return max(int(found), 1)

    def heading(self) -> float:
        """Of the base, about the vertical (rad)."""
        w, x, y, z = self.data.qpos[3:7] if self.built.free else (1.0, 0.0, 0.0, 0.0)
        return float(np.arctan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z)))

    def measured(self) -> Array:
        """What the commands ask for, as it is: forward, sideways (m/s), turning (rad/s), of the base in its frame."""
        if not self.built.free:
            return np.zeros(3)
        cos, sin = np.cos(self.heading()), np.sin(self.heading())
        x, y = self.data.qvel[:2]
        turning = self.data.qvel[5]
        return np.array([cos * x + sin * y, -sin * x + cos * y, turning])

    def power(self) -> float:
        """What its joints do and take, together (W)."""
        force = self.data.actuator_force * self.model.actuator_gear[:, 0]
        return float(np.abs(force * self.data.qvel[self.built.v]).sum())

    def fallen(self) -> bool:
        """It lies, or the simulation has exploded."""
        if not np.abs(self.data.qvel).max() < FASTEST:  # nor is NaN
            return True
        if not self.built.free:
            return False
        _, x, y, _ = self.data.qpos[3:7]
        upright = 1.0 - 2.0 * (x * x + y * y)
        return bool(upright < 0.3 or self.data.qpos[2] < 0.5 * self.built.qpos[2])

    def _apply_pull(self) -> None:
        self.data.xfrc_applied[:] = 0.0
        pull = self.pull  # once: a browser may let go at any moment
        if pull is None:
            return
        body, point, goal = pull
        here = self.data.xpos[body] + self.data.xmat[body].reshape(3, 3) @ point
        force = STIFFNESS * self.model.body_mass.sum() * (goal - here)
        self.data.xfrc_applied[body, :3] = force
        arm = here - self.data.xipos[body]
        self.data.xfrc_applied[body, 3:] = np.cross(arm, force)

    def _change_world(self) -> None:
        """Friction and mass, where they were changed since the last time."""
        wanted = (self.world.friction, self.world.mass)
        if wanted == self._told:
            return
        friction, mass = wanted
        model, nominal = self.model, self._nominal
        model.geom_friction[:, 0] = friction * nominal["geom_friction"][:, 0]
        model.pair_friction[:, :2] = friction * nominal["pair_friction"][:, :2]
        model.body_mass[:] = mass * nominal["body_mass"]
        model.body_inertia[:] = mass * nominal["body_inertia"]
        mujoco.mj_setConst(model, mujoco.MjData(model))
        self._told = wanted
