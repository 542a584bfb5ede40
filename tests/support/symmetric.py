"""Robots whose masses and places are made exactly symmetric: real ones are so only nearly."""

from __future__ import annotations

from dataclasses import dataclass, fields

import mujoco
import numpy as np
from numpy.typing import NDArray

from fleetfoot.data import Reflection
from fleetfoot.envs.robot.mirror import _joints
from fleetfoot.envs.robot.robot import Built, Robot
from fleetfoot.envs.robot.robots import ROBOTS

M = np.diag([1.0, -1.0, 1.0])


@dataclass(frozen=True, kw_only=True)
class SymmetricRobot(Robot):
    def build(self, timestep: float, looks: bool = False) -> Built:
        built = super().build(timestep, looks)
        make_symmetric(built)
        return built


def symmetric(name: str) -> Robot:
    robot = ROBOTS[name]
    return SymmetricRobot(**{field.name: getattr(robot, field.name) for field in fields(Robot)})


def make_symmetric(built: Built) -> None:
    """Every number of a body, joint or actuator becomes the mean of itself and its partner's mirror image."""
    model, reflection = built.model, _joints(built)
    ids = np.array([model.joint(name).id for name in built.names])
    partner = np.array(reflection.index)
    pairs = even_model(model, ids, reflection, built.v)
    assert pairs == model.nbody - 1  # each body has one joint
    for name in ("actuator_gainprm", "actuator_biasprm"):
        _mean(getattr(model, name), np.arange(model.nu), partner)
    sign = np.array(reflection.sign)
    _mean_range(model.actuator_ctrlrange, np.arange(model.nu), partner, sign)
    built.low, built.high = model.jnt_range[ids].T.copy()
    if built.robot.imu:
        for site in (built.robot.imu, *built.robot.frames.values()):
            model.site(site).pos[1] = 0.0


def even_model(
    model: mujoco.MjModel, ids: NDArray[np.int64], reflection: Reflection, dofs: NDArray[np.int64]
) -> int:
    """The same for the bodies and joints of one robot: `ids` and `dofs` of its joints. How many bodies it has."""
    partner, sign = np.array(reflection.index), np.array(reflection.sign)
    bodies = model.jnt_bodyid[ids]
    inertia = {int(b): _inertia(model, b) for b in range(1, model.nbody)}
    place = {name: getattr(model, name).copy() for name in ("body_pos", "body_ipos", "body_mass")}
    base = int(model.body_rootid[bodies[0]])
    pairs = [*zip(bodies.tolist(), bodies[partner].tolist(), strict=True), (base, base)]
    for here, there in pairs:
        for name in ("body_pos", "body_ipos"):
            both = place[name][here] + M @ place[name][there]
            getattr(model, name)[here] = both / 2
        model.body_mass[here] = (place["body_mass"][here] + place["body_mass"][there]) / 2
        tensor = (inertia[here] + M @ inertia[there] @ M) / 2
        values, axes = np.linalg.eigh(tensor)
        axes[:, 0] *= np.linalg.det(axes)
        mujoco.mju_mat2Quat(model.body_iquat[here], axes.flatten())
        model.body_inertia[here] = values
    model.body_sameframe[:] = 0
    model.site_sameframe[:] = 0
    for name in ("dof_damping", "dof_frictionloss", "dof_armature"):
        _mean(getattr(model, name), dofs, partner)
    _mean_range(model.jnt_range, ids, partner, sign)
    mujoco.mj_setConst(model, mujoco.MjData(model))
    return len(pairs)


def _inertia(model: mujoco.MjModel, body: int) -> NDArray[np.float64]:
    axes = np.zeros(9)
    mujoco.mju_quat2Mat(axes, model.body_iquat[body])
    frame = axes.reshape(3, 3)
    tensor: NDArray[np.float64] = frame @ np.diag(model.body_inertia[body]) @ frame.T
    return tensor


def _mean(values: NDArray[np.float64], at: NDArray[np.int64], partner: NDArray[np.int64]) -> None:
    values[at] = (values[at] + values[at[partner]]) / 2


def _mean_range(
    values: NDArray[np.float64],
    at: NDArray[np.int64],
    partner: NDArray[np.int64],
    sign: NDArray[np.float64],
) -> None:
    other = values[at[partner]]
    image = np.where(sign[:, None] > 0, other, -other[:, ::-1])
    values[at] = (values[at] + image) / 2
