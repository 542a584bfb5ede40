"""The mirror image of a robot, left and right exchanged: from the names of its sides, its model, and a word for each
observation.

The mirror is the x-z plane of the world, y to -y. Let M = diag(1, -1, 1). A position or velocity v becomes M v, an
angular velocity w becomes -M w, both in the world and in the robot's own frame, since its orientation R becomes M R M.
A joint with axis a in the standing robot becomes its partner with axis b, and its angle q becomes s q, where s b = -M a
(for a slide, s b = M a). So a joint's sign follows from the model; names only tell which joint is whose partner.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Literal, TypeAlias

import mujoco
import numpy as np

from fleetfoot.data import Reflection, Symmetry
from fleetfoot.errors import UserError

if TYPE_CHECKING:
    from fleetfoot.envs.robot.robot import Built

# What an observation is. same: numbers that a mirror does not change; polar: a position, velocity or force, x y z;
# axial: an angular velocity; joints: a number for each actuated joint; feet: a number for each foot; feet_polar: x y z
# for each foot. Joints and feet may be there several times, one set after the other. Anything else: its signs.
Kind: TypeAlias = (
    Literal["same", "polar", "axial", "joints", "feet", "feet_polar"] | tuple[float, ...]
)
POLAR, AXIAL = (1.0, -1.0, 1.0), (-1.0, 1.0, -1.0)
CLOSE = 1e-3  # how exactly axes and standing pose must be mirror images


def symmetry(
    built: Built,
    kinds: Mapping[str, Kind],
    observed: Mapping[str, int],
    privileged: Mapping[str, int],
    history: int,
) -> Symmetry | None:
    """Of a task that says what its observations are; `observed`, `privileged`: their sizes, by name, in order. None
    where the robot names no sides, or the task says nothing."""
    if not built.robot.sides or not kinds:
        return None
    joints, feet = _joints(built), _feet(built)

    def block(name: str, size: int) -> Reflection:
        if name not in kinds:
            raise UserError(
                f"`mirror` of the task does not say how to mirror its observation {name!r}."
            )
        return _block(name, kinds[name], size, joints, feet)

    frame = _joined(block(name, size) for name, size in observed.items())
    actor = _joined([frame] * history)
    more = [block(name, size) for name, size in privileged.items()]
    return Symmetry(actor, joints, _joined([actor, *more]) if more else None)


def _block(name: str, kind: Kind, size: int, joints: Reflection, feet: Reflection) -> Reflection:
    if isinstance(kind, tuple):
        one = _signs(kind)
    elif kind in ("joints", "feet"):
        one = joints if kind == "joints" else feet
    elif kind == "feet_polar":
        index = tuple(3 * foot + axis for foot in feet.index for axis in range(3))
        one = Reflection(index, POLAR * len(feet.index))
    else:
        one = _signs({"same": (1.0,), "polar": POLAR, "axial": AXIAL}[kind])
    times, rest = divmod(size, max(len(one.index), 1))
    if rest or not times:
        raise UserError(f"a mirror of {name!r} as {kind!r} does not fit its {size} numbers.")
    return _joined([one] * times)


def _signs(signs: tuple[float, ...]) -> Reflection:
    return Reflection(tuple(range(len(signs))), signs)


def _joined(blocks: Iterable[Reflection]) -> Reflection:
    index: list[int] = []
    sign: list[float] = []
    for block in blocks:
        index += [len(sign) + i for i in block.index]
        sign += block.sign
    return Reflection(tuple(index), tuple(sign))


def _partner(name: str, sides: Mapping[str, str]) -> str:
    """The same name on the other side; its own where it names no side."""
    for one, other in sides.items():
        for here, there in ((one, other), (other, one)):
            if here in name:
                return name.replace(here, there)
    return name


def _partners(built: Built, what: str, names: list[str]) -> list[int]:
    place = {name: i for i, name in enumerate(names)}
    wanted = [_partner(name, built.robot.sides) for name in names]
    if missing := [(a, b) for a, b in zip(names, wanted, strict=True) if b not in place]:
        one, other = missing[0]
        raise UserError(
            f"{built.robot.name} has a {what} {one!r}, but {other!r} on its other side is none."
        )
    return [place[name] for name in wanted]


def _feet(built: Built) -> Reflection:
    index = _partners(built, "foot", list(built.robot.feet))
    return Reflection(tuple(index), (1.0,) * len(index))


def _joints(built: Built) -> Reflection:
    model, robot = built.model, built.robot
    data = mujoco.MjData(model)
    mujoco.mj_kinematics(model, data)
    upright = data.xmat[model.jnt_bodyid[0] if built.free else 0].reshape(3, 3)
    if robot.imu:
        frame = upright.T @ data.site(robot.imu).xmat.reshape(3, 3)
        turned = np.diag(POLAR) @ frame @ np.diag(POLAR)
        if np.abs(turned - frame).max() > CLOSE:
            raise UserError(
                f"the y axis of site {robot.imu!r} of {robot.name} must point to its left or right."
            )
    ids = [model.joint(name).id for name in built.names]
    slides = model.jnt_type[ids] == mujoco.mjtJoint.mjJNT_SLIDE
    axes = data.xaxis[ids] @ upright  # [U, 3]
    index = _partners(built, "joint", built.names)
    image = np.where(slides[:, None], POLAR, AXIAL) * axes
    cosine = (image * axes[index]).sum(1)
    sign = np.sign(cosine)
    apart = np.abs(cosine) < 1.0 - CLOSE
    # Number i of an image is that of its partner, with the partner's sign, which is its own too.
    apart |= np.abs(sign * built.pose[index] - built.pose) > CLOSE
    apart |= np.abs(built.scale[index] - built.scale) > CLOSE
    if apart.any():
        i = int(np.flatnonzero(apart)[0])
        raise UserError(
            f"joints {built.names[i]!r} and {built.names[index[i]]!r} of {robot.name} are not mirror images of "
            "each other: axis, standing pose or action scale differ."
        )
    return Reflection(tuple(index), tuple(float(s) for s in sign))
