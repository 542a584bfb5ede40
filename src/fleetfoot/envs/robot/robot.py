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
| `torque` | U | the force of every actuator on its joint (before the gear of muscles, DC motors and plugins) |

Sensors of the MJCF are found by their own names. As in MuJoCo, positions and velocities of the joints are those of the
end of a control step, and sensors are one timestep older.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from fleetfoot.envs.mujoco.physics import compile_spec, load_spec, without_textures
from fleetfoot.envs.render import View, add_backdrop
from fleetfoot.envs.robot.describe import describe
from fleetfoot.envs.robot.edit import add_sensors, drop_looks, lay_plates, tile_floor, without_index
from fleetfoot.envs.robot.heights import Heights, lay_heights
from fleetfoot.envs.robot.joints import joints_of, servos, targets, without_gears
from fleetfoot.errors import UserError

Array = NDArray[np.float64]
MODELS = Path(__file__).parent / "models"


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
    # Words in the names of joints and feet that a mirror exchanges, {"left": "right"}: learners may then use mirror
    # images (replay.mirror). None: the robot is not symmetric.
    sides: Mapping[str, str] = field(default_factory=dict)
    floor: str = "floor"  # a geom
    # Metres: plates up to this high lie on the floor, 1 m wide, 10 m by 10 m of them.
    roughness: float = 0.0
    heights: Heights | None = None  # instead of such plates: the floor is a height field
    max_contacts: int = 0  # per robot, on a GPU; 0: MuJoCo Warp's guess
    max_rows: int = 0  # constraint rows per robot, on a GPU; 0: the same
    view: View = field(default_factory=View)
    looks: str = ""  # a scene in MuJoCo Menagerie with the same joints, for films

    def build(self, timestep: float, looks: bool = False) -> Built:
        """The compiled model with its sensors; `looks`: with what only pictures need."""
        return Built(self, timestep, looks)

    @property
    def rise(self) -> float:
        """Metres from flat ground to the highest point of this ground."""
        return self.roughness if self.heights is None else self.heights.high

    def lay_ground(self, spec: mujoco.MjSpec) -> None:
        if self.heights is not None:
            if self.roughness > 0.0:
                raise UserError("roughness lays plates: set it to 0 for a height field.")
            lay_heights(spec, self)
        elif self.roughness > 0.0:
            lay_plates(spec, self)

    def pictured(self) -> mujoco.MjModel:
        """What is drawn: the meshes of MuJoCo Menagerie where FLEETFOOT_MENAGERIE names a checkout, else this model."""
        own = self.build(0.004, looks=True).model
        folder = os.environ.get("FLEETFOOT_MENAGERIE", "")
        scene = Path(folder) / self.looks
        if not (folder and self.looks and scene.is_file()):
            return own
        spec = load_spec(str(scene))
        if self.rise > 0.0 and self.floor not in (geom.name for geom in spec.geoms):
            return own  # nothing there to lay the ground on
        add_backdrop(spec)
        self.lay_ground(spec)
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
            tile_floor(spec, robot.floor)
        else:
            without_textures(spec)
            drop_looks(spec, robot)
        robot.lay_ground(spec)
        add_sensors(spec, robot)
        spec.option.timestep = timestep
        self.robot, self.model = robot, compile_spec(spec)
        model = self.model
        self.joints = joints_of(model)
        without_gears(model)
        self.names, self.q, self.v = self.joints.names, self.joints.q, self.joints.v
        self.num_joints = len(self.names)
        self.qpos, self.pose = self._standing()
        ranges = model.jnt_range[self.joints.ids]
        self.low, self.high = ranges[:, 0].copy(), ranges[:, 1].copy()
        scale = np.asarray(robot.action_scale, np.float64)
        if scale.shape not in ((), self.pose.shape):
            raise UserError(
                f"{robot.name} has {len(self.names)} actuators, and action_scale has {scale.size} numbers."
            )
        self.scale = np.broadcast_to(scale, self.pose.shape)
        # What an action of 0 means: the standing pose for a position servo, nothing for any other actuator.
        self.servo = servos(model)
        self.offset = np.where(self.servo, self.pose, 0.0)
        self.target_low, self.target_high = targets(model, self.joints)
        self.free = bool(model.njnt and model.jnt_type[0] == mujoco.mjtJoint.mjJNT_FREE)
        self.sensors = _sensor_slices(model)

    @property
    def pushable(self) -> bool:
        """Are the first two velocities those of the base along x and y: of a free joint, or of two slides?"""
        slides = self.model.jnt_type[:2] == mujoco.mjtJoint.mjJNT_SLIDE
        along = self.model.njnt >= 2 and np.array_equal(self.model.jnt_axis[:2], np.eye(3)[:2])
        return self.free or bool(along and slides.all() and self.v.min(initial=2) >= 2)

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


def _sensor_slices(model: mujoco.MjModel) -> dict[str, slice]:
    """Where each sensor is in a row; sensors NAME.0, NAME.1 ... are one, called NAME."""
    found: dict[str, slice] = {}
    for i in range(model.nsensor):
        name = without_index(model.sensor(i).name)
        begin = int(model.sensor_adr[i])
        end = begin + int(model.sensor_dim[i])
        found[name] = slice(found[name].start if name in found else begin, end)
    return found
