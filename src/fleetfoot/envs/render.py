"""Pictures of a MuJoCo model without a screen.

OpenGL without a screen is EGL or OSMesa. Which one works is found out in a short child process,
because a backend that fails cannot be unloaded again from this one. The variable MUJOCO_GL, when
set, is obeyed.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import os
import platform
import subprocess
import sys
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import mujoco
import numpy as np
from numpy.typing import NDArray

from fleetfoot.errors import UserError

_MODULES = {"egl": "mujoco.egl", "osmesa": "mujoco.osmesa"}
_PROBE = """
import os, sys
os.environ["MUJOCO_GL"] = sys.argv[1]
import mujoco
from mujoco.{backend} import GLContext
gl = GLContext(16, 16)
gl.make_current()
model = mujoco.MjModel.from_xml_string("<mujoco/>")
mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100)
os._exit(0)
"""


@functools.lru_cache(maxsize=1)
def backend() -> str:
    """'egl' or 'osmesa', or 'native' off Linux. Raises `UserError` where no picture can be made."""
    if platform.system() != "Linux":
        return "native"
    asked = os.environ.get("MUJOCO_GL", "").lower().strip()
    if asked in _MODULES:
        candidates = [asked]
    elif asked in ("", "glfw", "glx", "on", "1", "true", "enable", "enabled"):
        candidates = list(_MODULES)
    else:
        raise UserError(f"MUJOCO_GL={asked} switches rendering off; unset it or use egl or osmesa")
    for name in candidates:
        if _works(name):
            return name
    raise UserError(
        f"cannot render without a screen: {' and '.join(candidates)} failed to start; "
        "install one, for example "
        "`apt-get install libegl1 libgl1-mesa-dri` (EGL) or `apt-get install libosmesa6` (OSMesa)"
    )


def _works(name: str) -> bool:
    command = [sys.executable, "-c", _PROBE.format(backend=name), name]
    try:
        return subprocess.run(command, capture_output=True, timeout=60).returncode == 0
    except subprocess.TimeoutExpired:
        return False


@dataclass(frozen=True)
class View:
    """Where pictures are taken from.

    A camera of the model, by default the one named "track" if there is one. Otherwise a camera that
    looks at a body and goes with it; with `body="world"` it stands still.
    """

    camera: str = ""
    body: str = ""  # empty: the first body of the model
    distance: float = 0.0  # metres; 0: by the robot's size
    azimuth: float = 90.0  # degrees; 90 looks along +y
    elevation: float = -20.0
    endless: bool = False
    """Nobody runs off the ground: see `back_on_ground`. For models that have nothing else in the world."""


def add_backdrop(spec: mujoco.MjSpec) -> None:
    """Give models that were made without pictures in mind a sky and some light."""
    skybox = mujoco.mjtTexture.mjTEXTURE_SKYBOX
    if not any(texture.type == skybox for texture in spec.textures):
        spec.add_texture(
            name="fleetfoot_sky",
            type=skybox,
            builtin=mujoco.mjtBuiltin.mjBUILTIN_GRADIENT,
            rgb1=[0.75, 0.82, 0.9],
            rgb2=[0.3, 0.4, 0.5],
            width=64,
            height=384,
        )
    if not spec.lights:
        spec.visual.headlight.ambient = [0.4, 0.4, 0.4]
        spec.visual.headlight.diffuse = [0.6, 0.6, 0.6]


def back_on_ground(model: mujoco.MjModel, qpos: NDArray[np.float64]) -> NDArray[np.float64]:
    """The same picture, nearer to the middle of the ground: whole tiles of its pattern back. The ground of Gymnasium's
    tasks ends after 40 m, and a cheetah is there in five seconds."""
    tiles = _tiles(model)
    moved = qpos.copy()
    for joint in range(model.njnt):
        at, kind = model.jnt_qposadr[joint], model.jnt_type[joint]
        if model.body_parentid[model.jnt_bodyid[joint]] != 0 or model.jnt_limited[joint]:
            continue
        if kind == mujoco.mjtJoint.mjJNT_FREE:
            moved[at : at + 2] -= tiles * np.round(qpos[at : at + 2] / tiles)
        elif kind == mujoco.mjtJoint.mjJNT_SLIDE:
            for axis in (0, 1):
                if model.jnt_axis[joint][axis] == 1.0:
                    moved[at] -= tiles[axis] * np.round(qpos[at] / tiles[axis])
    return moved


def _tiles(model: mujoco.MjModel) -> NDArray[np.float64]:
    """[2] The sizes of one tile of the ground; very large where it has no pattern that repeats."""
    plane = (model.geom_type == mujoco.mjtGeom.mjGEOM_PLANE) & (model.geom_bodyid == 0)
    for geom in np.flatnonzero(plane):
        material, size = model.geom_matid[geom], model.geom_size[geom, :2]
        pattern = material >= 0 and (model.mat_texid[material] >= 0).any()
        if pattern and not model.mat_texuniform[material] and (size > 0).all():
            tiles: NDArray[np.float64] = 2 * size / model.mat_texrepeat[material]
            return tiles
    return np.full(2, 1e9)


class Arrow(NamedTuple):
    """Drawn into a picture, from one point of the world to another."""

    begin: NDArray[np.float64]
    end: NDArray[np.float64]
    rgba: tuple[float, float, float, float]


# Blue and green, as on the page of `fleetfoot play`.
WANTED, ACTUAL = (0.3, 0.5, 1.0, 1.0), (0.2, 0.9, 0.3, 1.0)
SECONDS = 0.5  # a robot goes as far as its arrow in this time


def velocity_arrows(
    qpos: NDArray[np.float64],
    qvel: NDArray[np.float64],
    wanted: NDArray[np.float64],
    above: float,
) -> list[Arrow]:
    """The velocity that is wanted of a free body (m/s forward and to its left) and the one it has, above it."""
    w, x, y, z = qpos[3:7]
    heading = np.arctan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z))
    cos, sin = np.cos(heading), np.sin(heading)
    turned = np.array([cos * wanted[0] - sin * wanted[1], sin * wanted[0] + cos * wanted[1]])
    arrows = []
    for level, velocity, rgba in ((above, turned, WANTED), (0.9 * above, qvel[:2], ACTUAL)):
        begin = qpos[:3] + np.array([0.0, 0.0, level])
        arrows.append(Arrow(begin, begin + SECONDS * np.append(velocity, 0.0), rgba))
    return arrows


class Renderer:
    """Draws one model. Make it once: the first picture takes about a second, later ones tens of milliseconds."""

    def __init__(self, model: mujoco.MjModel, width: int, height: int, view: View) -> None:
        model.vis.global_.offwidth = max(int(model.vis.global_.offwidth), width)
        model.vis.global_.offheight = max(int(model.vis.global_.offheight), height)
        self.model, self._data = model, mujoco.MjData(model)
        self._camera = camera_of(model, view)
        self.distance = _distance(model, view)
        self._renderer = _renderer(model, width, height)
        # The backend shuts down at exit and its contexts then complain; this runs before it does.
        atexit.register(_close_if_alive, weakref.ref(self))

    def picture(
        self,
        qpos: NDArray[Any],
        qvel: NDArray[Any],
        mocap_pos: NDArray[Any] | None = None,
        mocap_quat: NDArray[Any] | None = None,
        arrows: Sequence[Arrow] = (),
    ) -> NDArray[np.uint8]:
        """[height, width, 3]."""
        self._data.qpos[:], self._data.qvel[:] = qpos, qvel
        if mocap_pos is not None:
            self._data.mocap_pos[:], self._data.mocap_quat[:] = mocap_pos, mocap_quat
        mujoco.mj_forward(self.model, self._data)
        self._renderer.update_scene(self._data, self._camera)
        for arrow in arrows:
            self._draw(arrow)
        frame: NDArray[np.uint8] = self._renderer.render()
        return frame

    def _draw(self, arrow: Arrow) -> None:
        scene, kind = self._renderer.scene, mujoco.mjtGeom.mjGEOM_ARROW
        if scene.ngeom == scene.maxgeom:
            return
        geom = scene.geoms[scene.ngeom]
        nothing, rgba = np.zeros(3), np.array(arrow.rgba, np.float32)
        mujoco.mjv_initGeom(geom, kind, nothing, nothing, np.zeros(9), rgba)
        mujoco.mjv_connector(geom, kind, 0.02, arrow.begin, arrow.end)
        scene.ngeom += 1

    def close(self) -> None:
        self._renderer.close()


def _close_if_alive(renderer: weakref.ref[Renderer]) -> None:
    if (alive := renderer()) is not None:
        alive.close()


def _renderer(model: mujoco.MjModel, width: int, height: int) -> mujoco.Renderer:
    """MuJoCo's own, with the backend that works here and not the one that MuJoCo chose when it was imported."""
    name = backend()
    if name != "native":
        os.environ["MUJOCO_GL"] = name
        os.environ.setdefault("PYOPENGL_PLATFORM", name)
    try:
        if name != "native":
            # Where it looks for OpenGL; the module has another place in some versions of MuJoCo.
            place = sys.modules[mujoco.Renderer.__module__].gl_context
            place.GLContext = importlib.import_module(_MODULES[name]).GLContext
        return mujoco.Renderer(model, height, width, max_geom=2000)
    except Exception as error:  # PyOpenGL raises many kinds
        raise UserError(
            f"{name} cannot start in this process, where another OpenGL is loaded; "
            f"start again with MUJOCO_GL={name}"
        ) from error


def camera_of(model: mujoco.MjModel, view: View) -> mujoco.MjvCamera:
    camera = mujoco.MjvCamera()
    index = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_CAMERA, view.camera or "track")
    if view.camera and index < 0:
        raise UserError(f"the model has no camera named {view.camera!r}")
    if index >= 0:
        camera.type, camera.fixedcamid = mujoco.mjtCamera.mjCAMERA_FIXED.value, index
        return camera
    body = 1
    if view.body:
        body = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_BODY, view.body)
        if body < 0:
            raise UserError(f"the model has no body named {view.body!r} for the camera to follow")
    if body == 0:
        camera.type, camera.lookat = mujoco.mjtCamera.mjCAMERA_FREE.value, model.stat.center
    else:
        camera.type, camera.trackbodyid = mujoco.mjtCamera.mjCAMERA_TRACKING.value, body
    camera.distance = _distance(model, view)
    camera.azimuth, camera.elevation = view.azimuth, view.elevation
    return camera


def _distance(model: mujoco.MjModel, view: View) -> float:
    return view.distance or 3.0 * _radius(model)


def _radius(model: mujoco.MjModel) -> float:
    """Of the moving parts in their rest pose; the floor would make everything look small."""
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    moving = model.geom_bodyid > 0
    if not moving.any():
        return float(model.stat.extent)
    places, sizes = data.geom_xpos[moving], model.geom_rbound[moving]
    centre = places.mean(0)
    return float((np.linalg.norm(places - centre, axis=1) + sizes).max())
