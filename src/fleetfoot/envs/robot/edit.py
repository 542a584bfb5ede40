"""What is changed in a robot's model before it is compiled: sensors, the ground, and what only pictures need."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

import mujoco
import numpy as np

from fleetfoot.errors import UserError

if TYPE_CHECKING:
    from fleetfoot.envs.robot.robot import Robot

# Name, kind, kind and name of the object, and more.
Sensor: TypeAlias = tuple[str, Any, Any, str, dict[str, Any]]
PLATES = 10  # along each side of rough ground
ROUND = (mujoco.mjtWrap.mjWRAP_SPHERE, mujoco.mjtWrap.mjWRAP_CYLINDER)  # geoms in a tendon's path
GROUND = 1 << 20  # a bit of contype and conaffinity for what touched the floor by pairs


def drop_looks(spec: mujoco.MjSpec, robot: Robot) -> None:
    """Drop geoms that touch nothing and that nothing names, where the mass of their body does not come from them."""
    used = {name for pair in robot.touches.values() for name in pair} | {robot.floor}
    used |= {name for pair in spec.pairs for name in (pair.geomname1, pair.geomname2)}
    for sensor in spec.sensors:
        ends = ((sensor.objtype, sensor.objname), (sensor.reftype, sensor.refname))
        used |= {name for kind, name in ends if kind == mujoco.mjtObj.mjOBJ_GEOM}
    wraps = [wrap for tendon in spec.tendons for wrap in tendon.path]
    used |= {wrap.target.name for wrap in wraps if wrap.type in ROUND}
    for geom in list(spec.geoms):
        idle = not geom.contype and not geom.conaffinity and geom.name not in used
        if idle and (geom.parent.explicitinertial or geom.parent.name == "world"):
            spec.delete(geom)


def lay_plates(spec: mujoco.MjSpec, robot: Robot) -> None:
    """Boxes that touch what the floor touches, each of its own height. All robots walk over the same ones."""
    floor = next((one for one in spec.geoms if one.name == robot.floor), None)
    if floor is not None and any(robot.floor in (p.geomname1, p.geomname2) for p in spec.pairs):
        _stand_on_corners(spec, floor)
    if floor is None or not (floor.contype or floor.conaffinity):
        raise UserError(
            f"rough ground needs a floor that collides, by contype and conaffinity or by pairs; that of {robot.name} "
            "does not."
        )
    heights = np.random.default_rng(0).uniform(0.005, robot.roughness, (PLATES, PLATES))
    for i, j in np.ndindex(heights.shape):
        high = float(heights[i, j])
        spec.worldbody.add_geom(
            type=mujoco.mjtGeom.mjGEOM_BOX,
            size=[0.5, 0.5, high / 2],
            pos=[i - (PLATES - 1) / 2, j - (PLATES - 1) / 2, high / 2],
            contype=floor.contype,
            conaffinity=floor.conaffinity,
            condim=floor.condim,
            priority=floor.priority,
            friction=floor.friction,
            rgba=[0.5 + 4 * high, 0.52, 0.55, 1.0],
        )


def _stand_on_corners(spec: mujoco.MjSpec, floor: Any) -> None:
    """Where pairs say what touches the floor, boxes, touch it with spheres at the four corners of their soles instead.

    A pair for each plate would be hundreds, and a box that touches four boxes has dozens of contacts.
    """
    geoms = {geom.name: geom for geom in spec.geoms}
    for pair in list(spec.pairs):
        names = {pair.geomname1, pair.geomname2}
        if floor.name not in names:
            continue
        (name,) = names - {floor.name}
        sole = geoms[name]
        if sole.type != mujoco.mjtGeom.mjGEOM_BOX:
            raise UserError(
                f"rough ground needs boxes in pairs with the floor; {name!r} is not one."
            )
        floor.contype |= GROUND
        turn = np.zeros(9)
        mujoco.mju_quat2Mat(turn, np.asarray(sole.quat, np.float64))
        long, wide, high = sole.size
        for x, y in ((1, 1), (1, -1), (-1, 1), (-1, -1)):
            corner = np.array([x * (long - high), y * (wide - high), 0.0])
            sole.parent.add_geom(
                name=f"{name}_corner_{x}_{y}",
                type=mujoco.mjtGeom.mjGEOM_SPHERE,
                size=[high, 0.0, 0.0],
                pos=np.asarray(sole.pos) + turn.reshape(3, 3) @ corner,
                contype=0,
                conaffinity=GROUND,
                priority=floor.priority + 1,  # friction is the pair's
                condim=pair.condim,
                friction=[pair.friction[0], *floor.friction[1:]],
                mass=0.0,
            )
        spec.delete(pair)


def tile_floor(spec: mujoco.MjSpec, floor: str) -> None:
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


def add_sensors(spec: mujoco.MjSpec, robot: Robot) -> None:
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
    taken = {without_index(sensor.name) for sensor in spec.sensors}
    if both := taken & {without_index(name) for name, *_ in wanted}:
        raise UserError(
            f"the model of {robot.name} has a sensor {min(both)!r}, a name of one that is added to it; rename yours."
        )
    for name, sensor, obj, objname, more in wanted:
        spec.add_sensor(name=name, type=sensor, objtype=obj, objname=objname, **more)


def without_index(sensor: str) -> str:
    """NAME of a sensor called NAME.0, NAME.1 ...; any other name as it is."""
    name, _, last = sensor.rpartition(".")
    return name if name and last.isdecimal() else sensor


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
