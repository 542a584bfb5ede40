"""What a robot and its task tell whoever runs a policy on the real one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from fleetfoot.envs.robot.joints import (
    Joints,
    damping_inside,
    damping_of_actuators,
    servos,
    targets,
    units,
)
from fleetfoot.envs.robot.returns import check_told

if TYPE_CHECKING:
    from fleetfoot.envs.robot.conditions import ConditionsConfig
    from fleetfoot.envs.robot.physics import PhysicsConfig
    from fleetfoot.envs.robot.robot import Built
    from fleetfoot.envs.robot.task import Task

Array = NDArray[np.float64]


def describe(built: Built) -> dict[str, Any]:
    """Name, joints in the order of the actions, and height, as JSON values."""
    joints = describe_joints(built.model, built.joints, built.pose, built.offset, built.scale)
    return {
        "robot": built.robot.name,
        **joints,
        "imu": built.robot.imu,
        "standing": built.robot.standing,
        "standing_height": float(built.qpos[2]) if built.free else None,
    }


def describe_joints(
    model: mujoco.MjModel, joints: Joints, pose: Array, offset: Array, scale: Array
) -> dict[str, Any]:
    """`joints` as JSON values. An action a tells them `offset + scale * a`."""
    servo = servos(model)
    damping = model.dof_damping[joints.v] + damping_of_actuators(model) + damping_inside(model)
    # Of the joint: a gear that could not be folded in multiplies it.
    force = np.abs(model.actuator_forcerange * model.actuator_gear[:, :1]).max(1)
    force = np.where(model.actuator_forcelimited.astype(bool), force, np.inf)
    limited = model.jnt_actfrclimited[joints.ids].astype(bool)
    of_joint = np.abs(model.jnt_actfrcrange[joints.ids]).max(1)
    force = np.minimum(force, np.where(limited, of_joint, np.inf))
    limited = model.jnt_limited[joints.ids].astype(bool)
    low, high = np.where(limited, model.jnt_range[joints.ids].T, [[-np.inf], [np.inf]])
    target_low, target_high = targets(model, joints)
    rows = zip(
        joints.names,
        servo.tolist(),
        pose.tolist(),
        scale.tolist(),
        offset.tolist(),
        _or_none(low),
        _or_none(high),
        units(model, joints),
        _or_none(target_low),
        _or_none(target_high),
        np.where(servo, model.actuator_gainprm[:, 0], 0.0).tolist(),
        damping.tolist(),
        _or_none(force),
        strict=True,
    )
    keys = (
        *("name", "servo", "standing", "action_scale", "action_offset", "low", "high"),
        *("unit", "target_low", "target_high", "kp", "kd", "max_torque"),
    )
    return {"joints": [dict(zip(keys, row, strict=True)) for row in rows]}


def describe_task(
    task: Task,
    cfg: ConditionsConfig,
    physics: PhysicsConfig,
    terms: Mapping[str, int],
    noise: Mapping[str, float],
) -> dict[str, Any]:
    """Task, control, and observations in their order with `terms` [sizes] and `noise` of each, as JSON values."""
    told = task.explain()
    check_told(task, told)
    usual = {"source": "sensor", "late": 0, "offset": 0.0, "scale": 1.0}
    return {
        "task": task.name,
        "control_hz": 1.0 / (physics.timestep * physics.substeps),
        "timestep": physics.timestep,
        "substeps": physics.substeps,
        "observation": [
            {
                "name": name,
                "size": size,
                **usual,
                "unit": task.units.get(name),
                "noise": cfg.noise * noise.get(name, 0.0),
                "sensed": name in noise,
                "delay": cfg.obs_delay if name in noise else 0,
                **told.get(name, {}),
            }
            for name, size in terms.items()
        ],
        "history": cfg.history,
        "delays": {"action": cfg.action_delay, "observation": cfg.obs_delay},
        "commands": {name: list(bounds) for name, bounds in task.commands().items()},
    }


def _or_none(values: Array) -> list[float | None]:
    """None where there is no limit."""
    return [value if np.isfinite(value) else None for value in values.tolist()]
