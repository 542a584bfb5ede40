"""How MuJoCo's joints move, for many environments at once: translations, angles and quaternions."""

from __future__ import annotations

import functools

import mujoco
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class Joints:
    """`mj_integratePos` for many environments at once."""

    def __init__(self, model: mujoco.MjModel) -> None:
        kinds, q, v = model.jnt_type, model.jnt_qposadr, model.jnt_dofadr
        free, ball = mujoco.mjtJoint.mjJNT_FREE, mujoco.mjtJoint.mjJNT_BALL
        self.lines: list[tuple[slice, slice]] = []  # coordinates and their velocities, in runs
        self.turns: list[tuple[slice, slice]] = []  # a quaternion and its angular velocity
        for kind, i, j in zip(kinds.tolist(), q.tolist(), v.tolist(), strict=True):
            if kind == free:
                self._add_line(i, j, 3)
                self.turns.append((slice(i + 3, i + 7), slice(j + 3, j + 6)))
            elif kind == ball:
                self.turns.append((slice(i, i + 4), slice(j, j + 3)))
            else:
                self._add_line(i, j, 1)

    def _add_line(self, i: int, j: int, size: int) -> None:
        if self.lines and (self.lines[-1][0].stop, self.lines[-1][1].stop) == (i, j):
            start, first = self.lines.pop()
            self.lines.append((slice(start.start, i + size), slice(first.start, j + size)))
        else:
            self.lines.append((slice(i, i + size), slice(j, j + size)))

    def integrate(self, qpos: Array, qvel: Array, seconds: float, out: Array) -> None:
        """Write into `out` where the joints are after moving with `qvel` for `seconds`."""
        for position, velocity in self.lines:
            np.multiply(qvel[:, velocity], seconds, out=out[:, position])
            out[:, position] += qpos[:, position]
        for quat, omega in self.turns:
            out[:, quat] = _turn(qpos[:, quat], qvel[:, omega] * seconds)

    def drift(self, qvel: Array, way: Array, seconds: float) -> Array:
        """How the coordinates change at a stage reached by `seconds` of `way`, moving with `qvel`.

        That is `qvel`, except that newer MuJoCos count rotations in coordinates around the pose at
        the beginning of the timestep (the method of Munthe-Kaas).
        """
        if not self.turns or not rotations_are_curved():
            return qvel
        changed = qvel.copy()
        for _, omega in self.turns:
            changed[:, omega] = _around(way[:, omega] * seconds, qvel[:, omega])
        return changed


@functools.lru_cache(maxsize=1)
def rotations_are_curved() -> bool:
    """Whether this MuJoCo's RK4 is the one of Munthe-Kaas (4.0 is, 3.17 is not): ask it."""
    model = mujoco.MjModel.from_xml_string(
        "<mujoco><option integrator='RK4' timestep='0.1' gravity='0 0 0'/><worldbody><body>"
        "<joint type='ball'/><inertial pos='0 0 0' mass='1' diaginertia='1 2 2.5'/>"
        "</body></worldbody></mujoco>"
    )
    data = mujoco.MjData(model)
    omega = np.array([1.0, 2.0, -1.5])
    data.qvel[:] = omega
    mujoco.mj_step(model, data)
    # The mean of the four angular velocities of a free, torqueless body, by Euler's equations.
    inertia, h = np.array([1.0, 2.0, 2.5]), 0.1
    stages = [omega]
    for part in (0.5, 0.5, 1.0):
        torque = -np.cross(stages[-1], inertia * stages[-1])
        stages.append(omega + part * h * torque / inertia)
    mean = (stages[0] + 2 * stages[1] + 2 * stages[2] + stages[3]) / 6
    flat = _turn(np.array([[1.0, 0.0, 0.0, 0.0]]), mean[None] * h)[0]
    return bool(np.abs(flat - data.qpos).max() > 1e-9)


def _around(angle: Array, omega: Array) -> Array:
    """The rate of the rotation vector `angle` [N, 3] of a body that turns with `omega` (own frame)."""
    size = np.sqrt(np.einsum("ij,ij->i", angle, angle))
    large = np.maximum(size, 1e-2)
    second = np.where(
        size > 1e-2, (1 - large / 2 / np.tan(large / 2)) / large**2, 1 / 12 + size**2 / 720
    )
    first = np.cross(angle, omega)
    rate: Array = omega + 0.5 * first + second[:, None] * np.cross(angle, first)
    return rate


def _turn(quat: Array, angle: Array) -> Array:
    """quat * exp(angle / 2): rotate by the vector `angle` [N, 3], in the body's own frame."""
    half = 0.5 * np.sqrt(np.einsum("ij,ij->i", angle, angle))
    turn = np.empty_like(quat)
    turn[:, 0] = np.cos(half)
    turn[:, 1:] = angle * (0.5 * np.sin(half) / np.maximum(half, 1e-300))[:, None]  # 0 where 0
    left = quat.take(_FACTOR, axis=1) * _SIGN  # [N, 4, 4]: the product with `quat` as a matrix
    product: Array = np.einsum("nij,nj->ni", left, turn)
    product /= np.sqrt(np.einsum("ij,ij->i", product, product))[:, None]
    return product


# Hamilton's product: (p * r)[i] = sum over j of sign[i, j] * p[factor[i, j]] * r[j].
_FACTOR = np.array([[0, 1, 2, 3], [1, 0, 3, 2], [2, 3, 0, 1], [3, 2, 1, 0]])
_SIGN = np.array([[1, -1, -1, -1], [1, 1, -1, 1], [1, 1, 1, -1], [1, -1, 1, 1]], dtype=np.float64)
