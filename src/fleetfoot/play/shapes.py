"""The shapes of a MuJoCo model as triangles, body by body, ready to be drawn.

A model with meshes is drawn as it is. The mesh-free models of the package get bones (from each joint to the next),
joints, and colours by what a part is, so that they read as robots.

trimesh comes with the extra `play`, and is imported where it is needed: without it, `play` says what to install.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import mujoco
import numpy as np
from numpy.typing import NDArray

Color: TypeAlias = tuple[int, int, int]
Numbers: TypeAlias = NDArray[Any]
SHELL: Color = (224, 228, 235)
LIMB: Color = (74, 84, 100)
SOLE: Color = (38, 42, 50)
ACCENT: Color = (240, 118, 40)
# Of a height field, from the lowest point to the highest.
VALLEY, PEAK = np.array([138, 146, 160]), np.array([238, 240, 244])
# Of the squares between the points of a grid [y, x]: lower left, lower right, upper left, upper right.
LOW, HIGH = slice(None, -1), slice(1, None)
CORNERS = ((LOW, LOW), (LOW, HIGH), (HIGH, LOW), (HIGH, HIGH))
COLLIDES = 3  # MuJoCo draws geoms of this group and above only when asked
BONE = 0.045  # m: a shorter way from joint to joint needs no bone


@dataclass(frozen=True)
class Shape:
    """Triangles in the frame of a body."""

    body: int
    vertices: Numbers  # [V, 3]
    faces: Numbers  # [F, 3]
    color: Color
    smooth: bool = True
    colors: Numbers | None = None  # [V, 3] of each vertex, instead of one for all


def shapes(model: mujoco.MjModel) -> list[Shape]:
    """Of everything that moves."""
    bare = model.nmesh == 0
    made = [
        shape
        for i in range(model.ngeom)
        if model.geom_bodyid[i] != 0 and (shape := _geom(model, i, bare)) is not None
    ]
    return made + (_bones(model) if bare else [])


def fixed(model: mujoco.MjModel) -> list[Shape]:
    """What does not move, without planes."""
    return [
        shape
        for i in range(model.ngeom)
        if model.geom_bodyid[i] == 0
        and model.geom_type[i] != mujoco.mjtGeom.mjGEOM_PLANE
        and (shape := _geom(model, i, False)) is not None
    ]


def lowest_plane(model: mujoco.MjModel) -> float:
    """The height of the lowest horizontal one; 0 where there is none."""
    _, x, y, _ = model.geom_quat.T
    level = 1.0 - 2.0 * (x * x + y * y) > 0.999
    heights = model.geom_pos[(model.geom_type == mujoco.mjtGeom.mjGEOM_PLANE) & level, 2]
    return float(heights.min()) if len(heights) else 0.0


def _geom(model: mujoco.MjModel, i: int, bare: bool) -> Shape | None:
    rgba = _rgba(model, i)
    if model.geom_group[i] >= COLLIDES or rgba[3] == 0.0:
        return None
    kind, size = model.geom_type[i], model.geom_size[i]
    colors: Numbers | None = None
    if kind == mujoco.mjtGeom.mjGEOM_MESH:
        mesh = _mesh(model, i)
    elif kind == mujoco.mjtGeom.mjGEOM_HFIELD:
        mesh, colors = _field(model, int(model.geom_dataid[i]))
    else:
        mesh = _primitive(kind, size)
    if mesh is None or (bare and float(model.geom_rbound[i]) < 0.015):  # points of contact
        return None
    turned = np.zeros(9)
    mujoco.mju_quat2Mat(turned, model.geom_quat[i])
    vertices = np.asarray(mesh.vertices) @ turned.reshape(3, 3).T + model.geom_pos[i]
    color = _role(model, i) if bare else tuple(int(255 * c) for c in rgba[:3])
    flat = kind == mujoco.mjtGeom.mjGEOM_BOX
    body, faces = int(model.geom_bodyid[i]), np.asarray(mesh.faces)
    return Shape(body, vertices, faces, color, not flat, colors)  # type: ignore[arg-type]


def _rgba(model: mujoco.MjModel, i: int) -> Numbers:
    material = int(model.geom_matid[i])
    rgba: Numbers = model.mat_rgba[material] if material >= 0 else model.geom_rgba[i]
    return rgba


def _primitive(kind: int, size: Numbers) -> Any:
    from trimesh import creation as make

    geom = mujoco.mjtGeom
    if kind == geom.mjGEOM_CAPSULE:
        return make.capsule(radius=size[0], height=2 * size[1], count=[16, 12])
    if kind == geom.mjGEOM_CYLINDER:
        return _rounded_cylinder(size[0], size[1])
    if kind == geom.mjGEOM_BOX:
        return _rounded_box(size)
    if kind == geom.mjGEOM_SPHERE or kind == geom.mjGEOM_ELLIPSOID:
        ball: Any = make.uv_sphere(radius=1.0, count=[16, 16])
        ball.apply_scale(size if kind == geom.mjGEOM_ELLIPSOID else size[0])
        return ball
    return None


def _rounded_cylinder(radius: float, half: float) -> Any:
    """With bevelled rims, which catch the light."""
    from trimesh.creation import revolve

    rim = 0.2 * min(radius, half)
    profile = [(0, -half), (radius - rim, -half), (radius, rim - half)]
    profile += [(radius, half - rim), (radius - rim, half), (0, half)]
    return revolve(np.array(profile), sections=24)


def _rounded_box(size: Numbers) -> Any:
    """A box with bevelled edges: the hull of three thinner ones."""
    from trimesh.convex import convex_hull

    rim = 0.25 * float(min(size))
    corners = np.array(np.meshgrid([-1, 1], [-1, 1], [-1, 1])).reshape(3, -1).T
    points = [corners * (size - rim * (1 - np.eye(3)[axis])) for axis in range(3)]
    return convex_hull(np.concatenate(points))


def _mesh(model: mujoco.MjModel, i: int) -> Any:
    from trimesh import Trimesh

    which = int(model.geom_dataid[i])
    first, count = int(model.mesh_vertadr[which]), int(model.mesh_vertnum[which])
    begin, faces = int(model.mesh_faceadr[which]), int(model.mesh_facenum[which])
    return Trimesh(
        model.mesh_vert[first : first + count],
        model.mesh_face[begin : begin + faces],
        process=False,
    )


def _field(model: mujoco.MjModel, which: int) -> tuple[Any, Numbers]:
    """Two triangles between every four points of a height field, as MuJoCo has them, and the points' colours."""
    from trimesh import Trimesh

    rows, columns = int(model.hfield_nrow[which]), int(model.hfield_ncol[which])
    first, (x, y, high, _) = int(model.hfield_adr[which]), model.hfield_size[which]
    heights = model.hfield_data[first : first + rows * columns]
    ys, xs = np.meshgrid(np.linspace(-y, y, rows), np.linspace(-x, x, columns), indexing="ij")
    at = np.arange(rows * columns).reshape(rows, columns)
    a, b, c, d = (at[i, j].ravel() for i, j in CORNERS)
    faces = np.concatenate([np.stack([a, b, d], 1), np.stack([a, d, c], 1)])
    points = np.stack([xs.ravel(), ys.ravel(), high * heights], 1)
    return Trimesh(points, faces, process=False), VALLEY + heights[:, None] * (PEAK - VALLEY)


def _role(model: mujoco.MjModel, i: int) -> Color:
    """Trunk and head are the shell, what touches the ground is a sole, the rest are limbs."""
    name = model.body(int(model.geom_bodyid[i])).name.lower() + model.geom(i).name.lower()
    if any(word in name for word in ("foot", "ankle", "hand", "sole")):
        return SOLE
    shell = ("trunk", "torso", "pelvis", "waist", "head", "base", "h1", "h2")
    return SHELL if any(word in name for word in shell) else LIMB


def _bones(model: mujoco.MjModel) -> list[Shape]:
    """A capsule from each joint to the next one, and a ball at each joint."""
    from trimesh import creation, geometry

    made = []
    for body in range(2, model.nbody):
        parent, way = int(model.body_parentid[body]), model.body_pos[body]
        if parent == 0:
            continue
        long = float(np.linalg.norm(way))
        if long > BONE:
            bone = creation.capsule(radius=0.024, height=long, count=[12, 10])
            turn = geometry.align_vectors([0, 0, 1], way / long)[:3, :3]  # type: ignore[no-untyped-call]
            vertices = (np.asarray(bone.vertices)) @ turn.T + way / 2
            made.append(Shape(parent, vertices, np.asarray(bone.faces), LIMB))
        if long > BONE and model.body_jntnum[body]:
            ball = creation.uv_sphere(radius=0.03, count=[14, 12])
            made.append(Shape(body, np.asarray(ball.vertices), np.asarray(ball.faces), ACCENT))
    return made
