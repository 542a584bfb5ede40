"""The mirror image of a robot in any simulator of MuJoCo models, left and right exchanged.

The mirror is the x-z plane of the world, y to -y. Let M = diag(1, -1, 1). A position or velocity v becomes M v, an
angular velocity w becomes -M w, both in the world and in the robot's own frame, since its orientation R becomes M R M.
A joint with axis a in the standing robot becomes its partner with axis b, and its angle q becomes s q, where s b = -M a
(for a slide, s b = M a). So a joint's sign follows from the model; names only tell which joint is whose partner.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import mujoco
import numpy as np
from numpy.typing import NDArray

from fleetfoot.data import Reflection
from fleetfoot.errors import UserError

POLAR, AXIAL = (1.0, -1.0, 1.0), (-1.0, 1.0, -1.0)
CLOSE = 1e-3  # how exactly axes and standing pose must be mirror images


def signed(signs: Sequence[float]) -> Reflection:
    """Every number stays in its place."""
    return Reflection(tuple(range(len(signs))), tuple(signs))


def joined(blocks: Iterable[Reflection]) -> Reflection:
    """One after the other."""
    index: list[int] = []
    sign: list[float] = []
    for block in blocks:
        index += [len(sign) + i for i in block.index]
        sign += block.sign
    return Reflection(tuple(index), tuple(sign))


def each_polar(things: Reflection) -> Reflection:
    """x y z of each of `things`, such as the forces on feet."""
    index = tuple(3 * thing + axis for thing in things.index for axis in range(3))
    return Reflection(index, POLAR * len(things.index))


def named(owner: str, what: str, names: Sequence[str], sides: Mapping[str, str]) -> Reflection:
    """A number for each of `names`, a foot for example, which becomes that of its partner on the other side."""
    place = {name: i for i, name in enumerate(names)}
    wanted = [_partner(name, sides) for name in names]
    if missing := [(a, b) for a, b in zip(names, wanted, strict=True) if b not in place]:
        one, other = missing[0]
        raise UserError(f"{owner} has a {what} {one!r}, but no {what} {other!r} on its other side.")
    return Reflection(tuple(place[name] for name in wanted), (1.0,) * len(names))


def of_joints(
    owner: str,
    model: mujoco.MjModel,
    base: int,
    joints: Mapping[str, int],
    sides: Mapping[str, str],
    *,
    pose: NDArray[np.floating],
    scale: NDArray[np.floating],
) -> Reflection:
    """A number for each joint, an angle for example. `joints`: their numbers in the model, by name; `base`: the body
    whose x axis looks ahead. What they are counted from, and in, must be symmetric: `pose`, `scale` [U]."""
    names, ids = list(joints), list(joints.values())
    data = mujoco.MjData(model)
    mujoco.mj_kinematics(model, data)
    slides = model.jnt_type[ids] == mujoco.mjtJoint.mjJNT_SLIDE
    axes = data.xaxis[ids] @ data.xmat[base].reshape(3, 3)  # [U, 3]
    index = list(named(owner, "joint", names, sides).index)
    image = np.where(slides[:, None], POLAR, AXIAL) * axes
    cosine = (image * axes[index]).sum(1)
    sign = np.sign(cosine)
    apart = np.abs(cosine) < 1.0 - CLOSE
    # Number i of an image is that of its partner, with the partner's sign, which is its own too.
    apart |= np.abs(sign * pose[index] - pose) > CLOSE
    apart |= np.abs(scale[index] - scale) > CLOSE
    if apart.any():
        i = int(np.flatnonzero(apart)[0])
        raise UserError(
            f"joints {names[i]!r} and {names[index[i]]!r} of {owner} are not mirror images of each other: axis, "
            "standing pose or action scale differ."
        )
    return Reflection(tuple(index), tuple(float(s) for s in sign))


def check_site(owner: str, model: mujoco.MjModel, base: int, site: str) -> None:
    """UserError where vectors in the frame of `site` are not mirrored as those in the frame of `base`."""
    data = mujoco.MjData(model)
    mujoco.mj_kinematics(model, data)
    frame = data.xmat[base].reshape(3, 3).T @ data.site(site).xmat.reshape(3, 3)
    turned = np.diag(POLAR) @ frame @ np.diag(POLAR)
    if np.abs(turned - frame).max() > CLOSE:
        raise UserError(f"the y axis of site {site!r} of {owner} must point to its left or right.")


def _partner(name: str, sides: Mapping[str, str]) -> str:
    """The same name on the other side; its own where it names no side."""
    for one, other in sides.items():
        for here, there in ((one, other), (other, one)):
            if here in name:
                return name.replace(here, there)
    return name
