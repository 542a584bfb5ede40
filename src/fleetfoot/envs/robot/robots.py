"""The robots that come with the package. Their models are in `models/`, with licences and origin in NOTICE.md."""

from __future__ import annotations

from fleetfoot.envs.render import View
from fleetfoot.envs.robot.robot import MODELS, Robot
from fleetfoot.errors import UserError, nearest

GO1 = Robot(
    name="go1",
    model=str(MODELS / "go1.xml"),
    action_scale=0.5,
    imu="imu",
    feet=("FR", "FL", "RR", "RL"),
    sides={"FR": "FL", "RR": "RL"},
    looks="unitree_go1/scene.xml",
    view=View(distance=1.6, azimuth=130.0, elevation=-15.0),
    max_contacts=8,
    max_rows=40,
)

T1 = Robot(
    name="t1",
    model=str(MODELS / "t1.xml"),
    action_scale=1.0,
    imu="imu",
    feet=("left_foot", "right_foot"),
    sides={"Left": "Right", "left": "right"},
    touches={"feet": ("left_foot", "right_foot")},
    looks="booster_t1/scene.xml",
    view=View(distance=2.6, azimuth=130.0, elevation=-15.0),
    max_contacts=24,
    max_rows=96,
)

G1 = Robot(
    name="g1",
    model=str(MODELS / "g1.xml"),
    action_scale=0.5,
    imu="imu_in_pelvis",
    frames={"torso": "imu_in_torso"},
    feet=("left_foot", "right_foot"),
    sides={"left": "right"},
    foot_forces=True,
    touches={
        "feet": ("left_foot", "right_foot"),
        "left_hand": ("left_hand_collision", "left_thigh"),
        "right_hand": ("right_hand_collision", "right_thigh"),
    },
    looks="unitree_g1/scene.xml",
    view=View(distance=2.8, azimuth=130.0, elevation=-15.0),
    max_contacts=24,
    max_rows=112,
)

ROBOTS = {robot.name: robot for robot in (GO1, T1, G1)}


def find(name: str) -> Robot:
    if name not in ROBOTS:
        raise UserError(
            f"there is no robot {name!r}.{nearest(name, ROBOTS)} There are {', '.join(ROBOTS)}."
        )
    return ROBOTS[name]
