"""The mirror image of a robot's task (`envs/mirror.py`), from the names of its sides, its model, and a word for each
observation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, TypeAlias

from fleetfoot.data import Reflection, Symmetry
from fleetfoot.envs.mirror import (
    AXIAL,
    POLAR,
    check_site,
    each_polar,
    joined,
    named,
    of_joints,
    signed,
)
from fleetfoot.errors import UserError

if TYPE_CHECKING:
    from fleetfoot.envs.robot.robot import Built

# What an observation is. same: numbers that a mirror does not change; polar: a position, velocity or force, x y z;
# axial: an angular velocity; joints: a number for each actuated joint; feet: a number for each foot; feet_polar: x y z
# for each foot. Joints and feet may be there several times, one set after the other. Anything else: its signs.
Kind: TypeAlias = (
    Literal["same", "polar", "axial", "joints", "feet", "feet_polar"] | tuple[float, ...]
)


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

    frame = joined(block(name, size) for name, size in observed.items())
    actor = joined([frame] * history)
    more = [block(name, size) for name, size in privileged.items()]
    return Symmetry(actor, joints, joined([actor, *more]) if more else None)


def _block(name: str, kind: Kind, size: int, joints: Reflection, feet: Reflection) -> Reflection:
    if isinstance(kind, tuple):
        one = signed(kind)
    elif kind in ("joints", "feet"):
        one = joints if kind == "joints" else feet
    elif kind == "feet_polar":
        one = each_polar(feet)
    else:
        one = signed({"same": (1.0,), "polar": POLAR, "axial": AXIAL}[kind])
    times, rest = divmod(size, max(len(one.index), 1))
    if rest or not times:
        raise UserError(f"a mirror of {name!r} as {kind!r} does not fit its {size} numbers.")
    return joined([one] * times)


def _feet(built: Built) -> Reflection:
    return named(built.robot.name, "foot", built.robot.feet, built.robot.sides)


def _joints(built: Built) -> Reflection:
    model, robot = built.model, built.robot
    base = int(model.jnt_bodyid[0]) if built.free else 0
    if robot.imu:
        check_site(robot.name, model, base, robot.imu)
    joints = {name: model.joint(name).id for name in built.names}
    return of_joints(
        robot.name, model, base, joints, robot.sides, pose=built.pose, scale=built.scale
    )
