"""The joints of a MuJoCo model that have an actuator, in the order of the actuators (U of them)."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import mujoco
import numpy as np
from numpy.typing import NDArray

from fleetfoot.errors import UserError

Array: TypeAlias = NDArray[np.float64]
AFFINE = mujoco.mjtBias.mjBIAS_AFFINE.value
LINEAR_BIAS = (mujoco.mjtBias.mjBIAS_NONE.value, AFFINE)
LINEAR_DYNAMICS = (
    mujoco.mjtDyn.mjDYN_NONE.value,
    mujoco.mjtDyn.mjDYN_INTEGRATOR.value,
    mujoco.mjtDyn.mjDYN_FILTER.value,
    mujoco.mjtDyn.mjDYN_FILTEREXACT.value,
)
# Damping and inertia of an actuator's own, which its joint feels by the square of the gear.
OF_THE_ACTUATOR = ("actuator_damping", "actuator_dampingpoly", "actuator_armature")


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
    late = (
        getattr(model, "actuator_delay", np.zeros(model.nu)) > 0
    )  # not in every version of MuJoCo
    if late.any():  # the orders on their way are no part of what a restart sets
        name = model.actuator(int(late.argmax())).name
        raise UserError(
            f"actuator {name!r} has a delay; leave it out, and use conditions.action_delay instead."
        )
    q, v = model.jnt_qposadr[ids].astype(np.int64), model.jnt_dofadr[ids].astype(np.int64)
    return Joints(names, ids, q, v)


def servos(model: mujoco.MjModel) -> NDArray[np.bool_]:
    """Which actuators are told a position."""
    told: NDArray[np.bool_] = _holds(model) & ~_integrates(model)
    return told


def told_velocity(model: mujoco.MjModel) -> NDArray[np.bool_]:
    """Which actuators are told a velocity."""
    gain, bias = model.actuator_gainprm[:, 0], model.actuator_biasprm
    tracks = _feeds_back(model) & (bias[:, 1] == 0) & (bias[:, 2] == -gain) & ~_integrates(model)
    told: NDArray[np.bool_] = tracks | (_holds(model) & _integrates(model))
    return told


def damping_of_actuators(model: mujoco.MjModel) -> Array:
    """[U] The force with which each opposes a velocity of 1, where it is such a number."""
    linear = _linear(model) & (model.actuator_biastype == AFFINE)
    gains: Array = np.where(linear, -model.actuator_biasprm[:, 2], 0.0)
    return gains


def damping_inside(model: mujoco.MjModel) -> Array:
    """[U] The force on its joint with which each opposes a velocity of 1 whatever it is told."""
    inside = getattr(
        model, "actuator_damping", np.zeros(model.nu)
    )  # not in every version of MuJoCo
    gains: Array = inside * model.actuator_gear[:, 0] ** 2
    return gains


def units(model: mujoco.MjModel, joints: Joints) -> list[str | None]:
    """What a target is measured in; None where it is none of these."""
    hinge = model.jnt_type[joints.ids] == mujoco.mjtJoint.mjJNT_HINGE
    plain = _linear(model) & (model.actuator_gainprm[:, 0] == 1) & ~_integrates(model)
    kinds = np.select([servos(model), told_velocity(model), plain], [0, 1, 2], default=3)
    kinds[model.actuator_gear[:, 0] != 1] = 3
    names = (("m", "rad"), ("m/s", "rad/s"), ("N", "N m"), (None, None))
    return [names[kind][int(turns)] for kind, turns in zip(kinds, hinge, strict=True)]


def targets(model: mujoco.MjModel, joints: Joints) -> tuple[Array, Array]:
    """Bounds of what actuators may be told: their own and, where that is a position, those of the joint."""
    told = model.actuator_ctrllimited.astype(bool)[:, None]
    span = np.where(told, model.actuator_ctrlrange, [-np.inf, np.inf])
    limited = (servos(model) & model.jnt_limited[joints.ids].astype(bool))[:, None]
    reach = np.where(limited, model.jnt_range[joints.ids], [-np.inf, np.inf])
    return np.maximum(span[:, 0], reach[:, 0]), np.minimum(span[:, 1], reach[:, 1])


def at_rest(model: mujoco.MjModel, joints: Joints, qpos: Array) -> Array:
    """[na] Activations with which nothing pulls: what holds a position begins with the joint's own."""
    act = np.zeros(int(model.na))
    holds = _holds(model) & (model.actuator_actnum > 0)
    # The last activation of an actuator is what its force follows.
    last = (model.actuator_actadr + model.actuator_actnum - 1)[holds]
    act[last] = qpos[joints.q[holds]]
    return act


def without_gears(model: mujoco.MjModel) -> None:
    """Rewrite actuators with gears so that they are told what the joint is to do: the same physics with gear 1.

    With a gear g a joint at q moves its actuator by g q, and feels g times the force gain * control + bias. A position
    or velocity is told as that of the joint, control / g; a force as that on the joint, control * g. Where the force is
    another function (muscles, DC motors, plugins), the gear stays.
    """
    zero = model.actuator_gear[:, 0] == 0
    if zero.any():
        name = model.actuator(int(zero.argmax())).name
        raise UserError(f"actuator {name!r} has a gear of 0, and cannot move its joint.")
    gear = np.where(_linear(model), model.actuator_gear[:, 0], 1.0)
    if (gear == 1).all():
        return
    moves = _holds(model) | told_velocity(model)
    model.actuator_gainprm[:, 0] *= np.where(moves, gear**2, 1.0)
    model.actuator_biasprm[:, :3] *= np.stack([gear, gear**2, gear**2], 1)
    model.actuator_forcerange[:] = np.sort(model.actuator_forcerange * gear[:, None], 1)
    told = np.where(moves, 1 / gear, gear)[:, None]
    model.actuator_ctrlrange[:] = np.sort(model.actuator_ctrlrange * told, 1)
    model.actuator_actrange[:] = np.sort(model.actuator_actrange * told, 1)
    for name in OF_THE_ACTUATOR:
        if hasattr(model, name):  # not in every version of MuJoCo
            values = getattr(model, name)
            values *= (gear**2).reshape(-1, *[1] * (values.ndim - 1))
    model.actuator_gear[:, 0] /= gear
    mujoco.mj_setConst(model, mujoco.MjData(model))


def _linear(model: mujoco.MjModel) -> NDArray[np.bool_]:
    """Whose force is a constant gain times the control, or what follows it, plus an affine bias."""
    linear: NDArray[np.bool_] = (
        (model.actuator_gaintype == mujoco.mjtGain.mjGAIN_FIXED)
        & np.isin(model.actuator_biastype, LINEAR_BIAS)
        & np.isin(model.actuator_dyntype, LINEAR_DYNAMICS)
        & (model.actuator_plugin < 0)
    )
    return linear


def _feeds_back(model: mujoco.MjModel) -> NDArray[np.bool_]:
    """Linear ones whose bias has an effect."""
    affine: NDArray[np.bool_] = model.actuator_biastype == AFFINE
    moves: NDArray[np.bool_] = model.actuator_gainprm[:, 0] != 0
    return _linear(model) & affine & moves


def _holds(model: mujoco.MjModel) -> NDArray[np.bool_]:
    """Which actuators pull towards a position, that of their control or of their activation."""
    pulls: NDArray[np.bool_] = model.actuator_biasprm[:, 1] == -model.actuator_gainprm[:, 0]
    return _feeds_back(model) & pulls


def _integrates(model: mujoco.MjModel) -> NDArray[np.bool_]:
    """Which actuators are told how fast their activation changes."""
    found: NDArray[np.bool_] = model.actuator_dyntype == mujoco.mjtDyn.mjDYN_INTEGRATOR
    return found
