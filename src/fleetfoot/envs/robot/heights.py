"""A floor of random heights, of the kind that MuJoCo Playground's rough tasks have.

Theirs is an image of 256 by 256 points, 20 m by 20 m and 5 cm high, the same for all its robots. Its points are
independent of each other and uniformly distributed, and so are ours, from a seed. `docs/environments/robot.md` has the
statistics of both.

A foot meets triangles of this field (MuJoCo makes a prism of each) with the geoms that touch a flat floor: spheres of
Go1 and T1, and the soles of G1, boxes in pairs with the floor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from fleetfoot.errors import UserError

if TYPE_CHECKING:
    from fleetfoot.envs.robot.robot import Robot

BASE = 1.0  # metres of solid ground below the lowest point
# Metres below the lowest point: around the field, where Playground has nothing, the ground goes on as a plane. It is
# so much lower that on the field feet touch the field alone.
AROUND = 0.01


@dataclass(frozen=True, kw_only=True)
class Heights:
    """The field. Beyond its edge the ground continues as a plane."""

    high: float = 0.05  # metres from the lowest point to the highest
    half: float = 10.0  # metres from its middle to its edge, along x and y
    points: int = 256  # along each side
    friction: float | None = None  # sliding; None: that of the floor it replaces
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.high > 0.0 or not self.half > 0.0 or self.points < 2:
            raise UserError("a height field needs high and half above 0, and 2 points or more.")

    def values(self) -> NDArray[np.float32]:
        """[points, points] from 0 to 1, a row for each y."""
        drawn = np.random.default_rng(self.seed).random((self.points, self.points))
        drawn -= drawn.min()
        return np.asarray(drawn / drawn.max(), np.float32)


def lay_heights(spec: mujoco.MjSpec, robot: Robot) -> None:
    """Make the floor such a field: the geom keeps its name, its pairs and what it touches."""
    heights = robot.heights
    assert heights is not None
    floor = next((one for one in spec.geoms if one.name == robot.floor), None)
    if floor is None or floor.type != mujoco.mjtGeom.mjGEOM_PLANE:
        raise UserError(f"a height field needs a plane as the floor; {robot.name} has none.")
    if heights.friction is not None:
        floor.friction = [heights.friction, *floor.friction[1:]]
    _go_on_around(spec, floor)
    field = spec.add_hfield(name="fleetfoot_heights", nrow=heights.points, ncol=heights.points)
    field.size = [heights.half, heights.half, heights.high, BASE]
    field.userdata = heights.values().ravel()
    floor.type, floor.hfieldname = mujoco.mjtGeom.mjGEOM_HFIELD, field.name


def around(floor: str) -> str:
    """The name of the plane around the field."""
    return f"{floor}_around"


def _go_on_around(spec: mujoco.MjSpec, floor: Any) -> None:
    """A plane that touches what the floor touches, in the same way."""
    below = np.asarray(floor.pos) - [0.0, 0.0, AROUND]
    spec.worldbody.add_geom(
        name=around(floor.name),
        type=mujoco.mjtGeom.mjGEOM_PLANE,
        size=floor.size,
        pos=below,
        quat=floor.quat,
        contype=floor.contype,
        conaffinity=floor.conaffinity,
        condim=floor.condim,
        priority=floor.priority,
        friction=floor.friction,
        solref=floor.solref,
        solimp=floor.solimp,
        margin=floor.margin,
        rgba=floor.rgba,
        material=floor.material,
    )
    for pair in list(spec.pairs):
        names = [pair.geomname1, pair.geomname2]
        if floor.name in names:
            one, other = (around(name) if name == floor.name else name for name in names)
            spec.add_pair(
                geomname1=one,
                geomname2=other,
                condim=pair.condim,
                friction=pair.friction,
                solref=pair.solref,
                solimp=pair.solimp,
                margin=pair.margin,
            )
