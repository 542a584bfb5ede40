"""Robots that differ: friction, masses, centres of mass, gains and the like, drawn for each robot.

Robot i depends on (seed, i) alone, and is the same in both engines: numbers are drawn here, written into a copy of
the MuJoCo model, and MuJoCo computes what follows from them (`mj_setConst`). The CPU engine keeps a model per robot;
the GPU engine is given the rows of the fields that differ.

Friction, gains and strength can be drawn anew for each episode instead (`varied.py`).
"""

from __future__ import annotations

import copy
from typing import TypeAlias

import mujoco
import numpy as np
import torch
from numpy.typing import NDArray

from fleetfoot.config import part
from fleetfoot.envs.counter import Draw, env_keys, keys_of
from fleetfoot.envs.robot.heights import around
from fleetfoot.envs.robot.joints import damping_of_actuators, told_velocity
from fleetfoot.envs.robot.robot import Array, Built
from fleetfoot.errors import UserError

Range: TypeAlias = tuple[float, float]

# Fields of a model that randomisation may change, and those that follow from them.
FIELDS = (
    *("geom_friction", "pair_friction", "body_mass", "body_inertia", "body_ipos", "qpos0"),
    *("dof_frictionloss", "dof_armature", "dof_damping", "actuator_gainprm", "actuator_biasprm"),
    *("actuator_forcerange", "jnt_actfrcrange", "body_subtreemass", "body_invweight0"),
    *("dof_invweight0", "actuator_acc0"),
)

BY_EPISODE = ("friction", "kp", "kd", "strength")


@part
class RandomiseConfig:
    """Ranges to draw from, uniformly; None: as in the model. Each robot keeps its values, except with
    `every_episode`."""

    friction: Range | None = None
    """Sliding friction of the floor."""
    mass: Range | None = None
    """Factor on each link's mass and inertia."""
    base_mass: Range | None = None
    """Mass added to the base, in kg."""
    base_com: Range | None = None
    """Offset of the base's centre of mass along each axis, in metres."""
    kp: Range | None = None
    """Factor on each servo's stiffness."""
    kd: Range | None = None
    """Factor on each joint's damping."""
    strength: Range | None = None
    """Factor on each joint's largest torque."""
    joint_friction: Range | None = None
    """Factor on each joint's friction."""
    armature: Range | None = None
    """Factor on each joint's armature."""
    joint_zero: Range | None = None
    """Zero offset of each joint, in radians."""
    every_episode: bool = False
    """Redraw friction, kp, kd and strength for each episode."""

    def __post_init__(self) -> None:
        factors = ("friction", "mass", "kp", "kd", "strength", "joint_friction", "armature")
        for name in (*factors, "base_mass", "base_com", "joint_zero"):
            bounds = getattr(self, name)
            if bounds is None:
                continue
            if (
                len(bounds) != 2
                or not bounds[0] <= bounds[1]
                or (name in factors and bounds[0] < 0)
            ):
                raise UserError(
                    f"env.conditions.randomise.{name} must be two numbers, low <= high, "
                    f"{'not below 0, ' if name in factors else ''}not {bounds}."
                )

    @property
    def anything(self) -> bool:
        return self != RandomiseConfig(every_episode=self.every_episode)

    @property
    def by_episode(self) -> dict[str, Range]:
        """What is drawn anew for each episode, and from which range."""
        if not self.every_episode:
            return {}
        ranges = {name: getattr(self, name) for name in BY_EPISODE}
        return {name: bounds for name, bounds in ranges.items() if bounds is not None}


class Randomiser:
    """Writes the numbers of robot i into a copy of the model."""

    def __init__(self, cfg: RandomiseConfig, robot: Built, num_envs: int, seed: int) -> None:
        self.cfg, self.robot, self.num_envs = cfg, robot, num_envs
        _check_effect(cfg, robot)
        self.damps = damps(robot.model)
        cpu = torch.device("cpu")
        keys = keys_of(env_keys(seed, num_envs, cpu), torch.full((num_envs,), -2), 0)
        joints, bodies = robot.num_joints, int(robot.model.nbody)
        draw = Draw(keys)
        # Every number is drawn, wanted or not, so that one range does not change what another one gives.
        self.units = {
            "friction": draw.uniform(1),
            "mass": draw.uniform(bodies),
            "base_mass": draw.uniform(1),
            "base_com": draw.uniform(3),
            "kp": draw.uniform(joints),
            "kd": draw.uniform(joints),
            "strength": draw.uniform(joints),
            "joint_friction": draw.uniform(joints),
            "armature": draw.uniform(joints),
            "joint_zero": draw.uniform(joints),
        }

    def apply(self, model: mujoco.MjModel, i: int) -> None:
        """Change the numbers of `model`, a copy, into those of robot i."""
        robot, base = self.robot, 1
        if (friction := self._drawn("friction", i)) is not None:
            self._set_friction(model, float(friction[0]))
        if (factor := self._drawn("mass", i)) is not None:
            model.body_mass *= factor
            model.body_inertia *= factor[:, None]
        if (extra := self._drawn("base_mass", i)) is not None:
            model.body_mass[base] += extra[0]
        if (shift := self._drawn("base_com", i)) is not None:
            model.body_ipos[base] += shift
        if (factor := self._drawn("kp", i)) is not None:
            factor = np.where(robot.servo, factor, 1.0)
            model.actuator_gainprm[:, 0] *= factor
            model.actuator_biasprm[:, 1] *= factor
        if (factor := self._drawn("kd", i)) is not None:
            model.dof_damping[robot.v] *= factor
            model.actuator_biasprm[:, 2] *= np.where(self.damps, factor, 1.0)
        if (factor := self._drawn("strength", i)) is not None:
            model.actuator_forcerange[:] *= factor[:, None]
            joints = [model.joint(name).id for name in robot.names]
            model.jnt_actfrcrange[joints] *= factor[:, None]
        if (factor := self._drawn("joint_friction", i)) is not None:
            model.dof_frictionloss[robot.v] *= factor
        if (factor := self._drawn("armature", i)) is not None:
            model.dof_armature[robot.v] *= factor
        if (shift := self._drawn("joint_zero", i)) is not None:
            model.qpos0[robot.q] += shift
        mujoco.mj_setConst(model, mujoco.MjData(model))

    def rows(self) -> dict[str, Array]:
        """[N, ...] of the fields in which robots differ."""
        base = self.robot.model
        found: dict[str, list[Array]] = {name: [] for name in FIELDS}
        for i in range(self.num_envs):
            own = copy.copy(base)
            self.apply(own, i)
            for name, rows in found.items():
                rows.append(getattr(own, name).copy())
        stacked = {name: np.stack(rows) for name, rows in found.items()}
        return {name: rows for name, rows in stacked.items() if (rows != getattr(base, name)).any()}

    def floor_contacts(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Which geoms and which pairs decide the friction of the floor."""
        model = self.robot.model
        floor = self.robot.robot.floor
        names = [model.geom(i).name for i in range(model.ngeom)]
        ground = np.array([name in (floor, around(floor)) for name in names], bool)
        collide = (model.geom_contype > 0) | (model.geom_conaffinity > 0)
        return collide, ground[model.pair_geom1] | ground[model.pair_geom2]

    def _drawn(self, name: str, i: int) -> Array | None:
        bounds: Range | None = getattr(self.cfg, name)
        if bounds is None or name in self.cfg.by_episode:
            return None
        unit: Array = self.units[name][i].double().numpy()
        return bounds[0] + (bounds[1] - bounds[0]) * unit

    def _set_friction(self, model: mujoco.MjModel, friction: float) -> None:
        """Of every contact with the floor, whichever of the two geoms has the say."""
        geoms, pairs = self.floor_contacts()
        model.geom_friction[geoms, 0] = friction
        model.pair_friction[pairs, :2] = friction


def _check_effect(cfg: RandomiseConfig, robot: Built) -> None:
    """UserError where a range would change nothing, or a limit that a joint does not have."""
    if cfg.kp is not None and not robot.servo.any():
        raise UserError(
            f"randomise.kp is a factor on the stiffness of position servos, and {robot.robot.name} has none; "
            "leave it out."
        )
    model, joints = robot.model, robot.joints
    limited = model.actuator_forcelimited | model.jnt_actfrclimited[joints.ids]
    if cfg.strength is not None and not limited.all():
        raise UserError(
            f"randomise.strength is a factor on the largest force, and that of joint "
            f"{joints.names[int(limited.argmin())]!r} of {robot.robot.name} is not limited; give its actuator a "
            "forcerange, or leave strength out."
        )
    damping = damping_of_actuators(model) * damps(model)
    factors = {
        "kd": ("damping", (model.dof_damping[robot.v], damping)),
        "joint_friction": ("frictionloss", (model.dof_frictionloss[robot.v],)),
        "armature": ("armature", (model.dof_armature[robot.v],)),
    }
    for name, (attribute, numbers) in factors.items():
        if getattr(cfg, name) is not None and not np.any(numbers):
            raise UserError(
                f"randomise.{name} is a factor on the {attribute} of joints, which is 0 in all of {robot.robot.name}; "
                f"give them one, or leave {name} out."
            )


def damps(model: mujoco.MjModel) -> NDArray[np.bool_]:
    """Where an actuator's velocity gain is damping. One that tracks a velocity has a single number for both."""
    tracks = told_velocity(model) & (model.actuator_biasprm[:, 1] == 0)
    damped: NDArray[np.bool_] = (damping_of_actuators(model) != 0) & ~tracks
    return damped
