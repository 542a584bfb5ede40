"""The joints of a MuJoCo model that have an actuator, in the order of the actuators (U of them)."""

from __future__ import annotations

from typing import NamedTuple

import mujoco
import numpy as np
from numpy.typing import NDArray

from fleetfoot.errors import UserError


class Joints(NamedTuple):
    """What the model calls them and where it keeps them."""

    names: list[str]
    ids: NDArray[np.int64]
    q: NDArray[np.int64]  # their coordinates
    v: NDArray[np.int64]  # and velocities


def joints_of(model: mujoco.MjModel) -> Joints:
    """UserError where an actuator does not act on one joint of its own, of one coordinate."""
    if model.nu == 0:
        raise UserError("the model has no actuators; add an <actuator> section.")
    if (model.actuator_trntype != mujoco.mjtTrn.mjTRN_JOINT).any():
        raise UserError("every actuator must act on a joint with one coordinate.")
    ids = model.actuator_trnid[:, 0].astype(np.int64)
    if not np.isin(
        model.jnt_type[ids], (mujoco.mjtJoint.mjJNT_HINGE, mujoco.mjtJoint.mjJNT_SLIDE)
    ).all():
        raise UserError("every actuator must act on a hinge or a slide.")
    names = [model.joint(int(i)).name for i in ids]
    if len(set(names)) < len(names) or not all(names):
        raise UserError("joints with an actuator need names, and one actuator each.")
    q, v = model.jnt_qposadr[ids].astype(np.int64), model.jnt_dofadr[ids].astype(np.int64)
    return Joints(names, ids, q, v)


def servos(model: mujoco.MjModel) -> NDArray[np.bool_]:
    """Which actuators are told a position."""
    gain, bias = model.actuator_gainprm[:, 0], model.actuator_biasprm[:, 1]
    told: NDArray[np.bool_] = (gain != 0) & (bias == -gain)
    return told
