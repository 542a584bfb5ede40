"""A robot: its model, and by name what a task may ask of it.

The model is MJCF. Everything a task reads is a sensor, because sensors are what both engines give back for every robot
(`mujoco.rollout` tells no body positions). The usual ones are added here, so that a model need only name its sites:

| name | size | what it is |
| --- | --- | --- |
| `gyro`, `linvel`, `accelerometer` | 3 each | of the site `imu`, in its own frame |
| `world_up` | 3 | the vertical in that frame: the opposite of gravity |
| `up`, `forward`, `global_linvel`, `global_angvel` | 3 each | its z and x axes and its velocities, in the world |
| `up_NAME`, `global_angvel_NAME` | 3 each | of every further frame |
| `foot_pos`, `foot_vel` | 3 F each | of the F feet's sites, in the world, one foot after the other |
| `foot_contact` | F | above 0: the foot's body touches the floor |
| `foot_force` | 3 F | the force at each foot, where `foot_forces` asks for it |
| `touch_NAME` | 1 | above 0: these two geoms touch |
| `torque` | U | the force of every actuator |

Sensors of the MJCF are found by their own names. As in MuJoCo, positions and velocities of the joints are those of the
end of a control step, and sensors are one timestep older.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import mujoco
import numpy as np
from numpy.typing import NDArray

from fleetfoot.envs.mujoco.physics import compile_spec, load_spec, without_textures
from fleetfoot.envs.render import View, add_backdrop
from fleetfoot.envs.robot.describe import describe
from fleetfoot.errors import UserError

Array = NDArray[np.float64]
MODELS = Path(__file__).parent / "models"
# Name, kind, kind and name of the object, and more.
Sensor: TypeAlias = tuple[str, Any, Any, str, dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Robot:
    """What is fixed about a robot. `build` compiles it."""

    name: str
    model: str  # path of an MJCF file, or MJCF text
    # What an action of 1 adds, for each actuator or for all: radians for position servos, whose action 0 is the
    # standing pose; N m for motors.
    action_scale: float | tuple[float, ...] = 0.5
    # The keyframe with the standing pose. A model without any stands as it is drawn.
    standing: str = "home"
    imu: str = ""  # a site; none: no such sensors
    frames: Mapping[str, str] = field(default_factory=dict)  # further sites, by name
    feet: tuple[str, ...] = ()  # sites
    foot_forces: bool = False
    touches: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # pairs of geoms, by name
    floor: str = "floor"  # a geom
    # Metres: plates up to this high lie on the floor, 1 m wide, 10 m by 10 m of them.
    roughness: float = 0.0
    max_contacts: int = 0  # per robot, on a GPU; 0: MuJoCo Warp's guess
    max_rows: int = 0  # constraint rows per robot, on a GPU; 0: the same
    view: View = field(default_factory=View)
    looks: str = ""  # a scene in MuJoCo Menagerie with the same joints, for films

    def build(self, timestep: float, looks: bool = False) -> Built:
        """The compiled model with its sensors; `looks`: with what only pictures need."""
        return Built(self, timestep, looks)

    def pictured(self) -> mujoco.MjModel:
        """What is drawn: the meshes of MuJoCo Menagerie where FLEETFOOT_MENAGERIE names a checkout, else this model."""
        own = self.build(0.004, looks=True).model
        folder = os.environ.get("FLEETFOOT_MENAGERIE", "")
        scene = Path(folder) / self.looks
        if not (folder and self.looks and scene.is_file()):
            return own
        spec = load_spec(str(scene))
        add_backdrop(spec)
        model = compile_spec(spec)
        same = [model.joint(i).name for i in range(1, model.njnt)] == [
            own.joint(i).name for i in range(1, own.njnt)
        ]
        return model if same and model.nq == own.nq else own


class Built:
    """A compiled robot. Joints are those with an actuator, in the order of the actuators (U of them)."""

    def __init__(self, robot: Robot, timestep: float, looks: bool = False) -> None:
        spec = load_spec(robot.model)
        if looks:
            add_backdrop(spec)
            _tile_floor(spec, robot.floor)
        else:
            without_textures(spec)
            _drop_looks(spec, robot)
        if robot.roughness > 0.0:
            _lay_plates(spec, robot)
        _add_sensors(spec, robot)
        spec.option.timestep = timestep
        self.robot, self.model = robot, compile_spec(spec)
        model = self.model
        self.names, self.q, self.v = _joints(model)
        self.num_joints = len(self.names)
        self.qpos, self.pose = self._standing()
        ranges = model.jnt_range[[model.joint(name).id for name in self.names]]
        self.low, self.high = ranges[:, 0].copy(), ranges[:, 1].copy()
        scale = np.asarray(robot.action_scale, np.float64)
        if scale.shape not in ((), self.pose.shape):
            raise UserError(
                f"{robot.name} has {len(self.names)} actuators, and action_scale has {scale.size} numbers."
            )
        self.scale = np.broadcast_to(scale, self.pose.shape)
        # What an action of 0 means: the standing pose for a position servo, nothing for any other actuator.
        gain, bias = model.actuator_gainprm[:, 0], model.actuator_biasprm[:, 1]
        self.servo = (gain != 0) & (bias == -gain)
        self.offset = np.where(self.servo, self.pose, 0.0)
        self.free = bool(model.njnt and model.jnt_type[0] == mujoco.mjtJoint.mjJNT_FREE)
        self.sensors = _sensor_slices(model)

    def describe(self) -> dict[str, Any]:
        """What whoever runs a policy on the real robot must know, as JSON values."""
        return describe(self)

    def _standing(self) -> tuple[Array, Array]:
        """All coordinates of the standing pose, and those of the joints."""
        model, name = self.model, self.robot.standing
        if model.nkey == 0:
            return model.qpos0.copy(), model.qpos0[self.q]
        key = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_KEY, name)
        if key < 0:
            known = ", ".join(model.key(i).name for i in range(model.nkey)) or "none"
            raise UserError(
                f"the model of {self.robot.name} has no keyframe {name!r} with its standing pose; it has {known}."
            )
        qpos = model.key_qpos[key].copy()
        return qpos, qpos[self.q]


def _joints(model: mujoco.MjModel) -> tuple[list[str], NDArray[np.int64], NDArray[np.int64]]:
    """Names, coordinates and velocities of the joints with an actuator."""
    if model.nu == 0:
        raise UserError("the model has no actuators; add an <actuator> section.")
    if (model.actuator_trntype != mujoco.mjtTrn.mjTRN_JOINT).any():
        raise UserError("every actuator must act on a joint, of one coordinate.")
    ids = model.actuator_trnid[:, 0]
    if not np.isin(
        model.jnt_type[ids], (mujoco.mjtJoint.mjJNT_HINGE, mujoco.mjtJoint.mjJNT_SLIDE)
    ).all():
        raise UserError("every actuator must act on a hinge or a slide.")
    names = [model.joint(int(i)).name for i in ids]
    if len(set(names)) < len(names) or not all(names):
        raise UserError("joints with an actuator need names, and one actuator each.")
    return names, model.jnt_qposadr[ids].astype(np.int64), model.jnt_dofadr[ids].astype(np.int64)


def _drop_looks(spec: mujoco.MjSpec, robot: Robot) -> None:
    """Drop geoms that touch nothing, where the mass of their body does not come from them."""
    used = {name for pair in robot.touches.values() for name in pair} | {robot.floor}
    used |= {name for pair in spec.pairs for name in (pair.geomname1, pair.geomname2)}
    for geom in list(spec.geoms):
        idle = not geom.contype and not geom.conaffinity and geom.name not in used
        if idle and (geom.parent.explicitinertial or geom.parent.name == "world"):
            spec.delete(geom)


def _lay_plates(spec: mujoco.MjSpec, robot: Robot) -> None:
    """Boxes that touch what the floor touches, each of its own height. All robots walk over the same ones."""
    floor = next((one for one in spec.geoms if one.name == robot.floor), None)
    if floor is None or not (floor.contype or floor.conaffinity) or spec.pairs:
        raise UserError(
            f"rough ground needs a floor that collides by contype and conaffinity; that of {robot.name} does not."
        )
    heights = np.random.default_rng(0).uniform(0.005, robot.roughness, (_PLATES, _PLATES))
    for i, j in np.ndindex(heights.shape):
        high = float(heights[i, j])
        spec.worldbody.add_geom(
            type=mujoco.mjtGeom.mjGEOM_BOX,
            size=[0.5, 0.5, high / 2],
            pos=[i - (_PLATES - 1) / 2, j - (_PLATES - 1) / 2, high / 2],
            contype=floor.contype,
            conaffinity=floor.conaffinity,
            condim=floor.condim,
            priority=floor.priority,
            friction=floor.friction,
            rgba=[0.5 + 4 * high, 0.52, 0.55, 1.0],
        )


_PLATES = 10


def _tile_floor(spec: mujoco.MjSpec, floor: str) -> None:
    """A pattern on a floor that has none, so that pictures show how fast a robot moves."""
    geom = next((one for one in spec.geoms if one.name == floor), None)
    if geom is None or geom.material:
        return
    spec.add_texture(
        name="fleetfoot_tiles",
        type=mujoco.mjtTexture.mjTEXTURE_2D,
        builtin=mujoco.mjtBuiltin.mjBUILTIN_CHECKER,
        rgb1=[0.72, 0.74, 0.76],
        rgb2=[0.62, 0.65, 0.68],
        width=128,
        height=128,
    )
    tiles = spec.add_material(name="fleetfoot_tiles", texrepeat=[1, 1], texuniform=True)
    tiles.textures[int(mujoco.mjtTextureRole.mjTEXROLE_RGB)] = "fleetfoot_tiles"
    geom.material = "fleetfoot_tiles"


def _add_sensors(spec: mujoco.MjSpec, robot: Robot) -> None:
    sites = {site.name: site for site in spec.sites}
    for name in (robot.imu, *robot.frames.values(), *robot.feet):
        if name and name not in sites:
            raise UserError(f"the model of {robot.name} has no site {name!r}.")
    kind, thing = mujoco.mjtSensor, mujoco.mjtObj
    bodies = [sites[foot].parent.name for foot in robot.feet]
    wanted = [*_frame_sensors(robot), *_foot_sensors(robot, bodies)]
    wanted += [
        (f"touch_{name}", kind.mjSENS_CONTACT, thing.mjOBJ_GEOM, one, _touching(other))
        for name, (one, other) in robot.touches.items()
    ]
    for i, actuator in enumerate(spec.actuators):
        actuator.name = actuator.name or f"actuator{i}"
        force: Sensor = (
            f"torque.{i}",
            kind.mjSENS_ACTUATORFRC,
            thing.mjOBJ_ACTUATOR,
            actuator.name,
            {},
        )
        wanted.append(force)
    for name, sensor, obj, objname, more in wanted:
        spec.add_sensor(name=name, type=sensor, objtype=obj, objname=objname, **more)


def _frame_sensors(robot: Robot) -> Iterator[Sensor]:
    kind, site = mujoco.mjtSensor, mujoco.mjtObj.mjOBJ_SITE
    if robot.imu:
        for name, sensor in _IMU.items():
            yield name, sensor, site, robot.imu, {}
        # The world's z axis in the frame of the site.
        seen_from = {"reftype": site, "refname": robot.imu}
        yield "world_up", kind.mjSENS_FRAMEZAXIS, mujoco.mjtObj.mjOBJ_BODY, "world", seen_from
    for name, frame in robot.frames.items():
        yield f"up_{name}", kind.mjSENS_FRAMEZAXIS, site, frame, {}
        yield f"global_angvel_{name}", kind.mjSENS_FRAMEANGVEL, site, frame, {}


def _foot_sensors(robot: Robot, bodies: list[str]) -> Iterator[Sensor]:
    kind, thing = mujoco.mjtSensor, mujoco.mjtObj
    wanted = {"foot_pos": kind.mjSENS_FRAMEPOS, "foot_vel": kind.mjSENS_FRAMELINVEL}
    if robot.foot_forces:
        wanted["foot_force"] = kind.mjSENS_FORCE
    for name, sensor in wanted.items():
        for i, foot in enumerate(robot.feet):
            yield f"{name}.{i}", sensor, thing.mjOBJ_SITE, foot, {}
    for i, body in enumerate(bodies):
        # The body of the floor, which plates belong to as well.
        touch = _touching("world") | {"reftype": thing.mjOBJ_BODY}
        yield f"foot_contact.{i}", kind.mjSENS_CONTACT, thing.mjOBJ_BODY, body, touch


def _touching(geom: str) -> dict[str, Any]:
    """MJCF: data="found" reduce="mindist" num="1"."""
    return {"reftype": mujoco.mjtObj.mjOBJ_GEOM, "refname": geom, "intprm": [1, 1, 1]}


_IMU = {
    "gyro": mujoco.mjtSensor.mjSENS_GYRO,
    "linvel": mujoco.mjtSensor.mjSENS_VELOCIMETER,
    "accelerometer": mujoco.mjtSensor.mjSENS_ACCELEROMETER,
    "up": mujoco.mjtSensor.mjSENS_FRAMEZAXIS,
    "forward": mujoco.mjtSensor.mjSENS_FRAMEXAXIS,
    "global_linvel": mujoco.mjtSensor.mjSENS_FRAMELINVEL,
    "global_angvel": mujoco.mjtSensor.mjSENS_FRAMEANGVEL,
}


def _sensor_slices(model: mujoco.MjModel) -> dict[str, slice]:
    """Where each sensor is in a row; sensors NAME.0, NAME.1 ... are one, called NAME."""
    found: dict[str, slice] = {}
    for i in range(model.nsensor):
        name = model.sensor(i).name.split(".")[0]
        begin = int(model.sensor_adr[i])
        end = begin + int(model.sensor_dim[i])
        found[name] = slice(found[name].start if name in found else begin, end)
    return found
