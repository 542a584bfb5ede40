"""A robot behind `fleetfoot.deploy`, here simulated by plain MuJoCo: replace this class to drive a real one.

    python examples/deploy/mujoco_robot.py EXPORTED [--seconds 10] [--forward 0.5]

It needs numpy, onnxruntime and mujoco, and no torch. The policy is any export of the robots in the package (Go1, T1,
G1). Time is that of the simulation, so that a slow computer changes nothing. docs/guides/deploy.md explains the loop.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import mujoco
import numpy as np
from numpy.typing import ArrayLike, NDArray

import fleetfoot
from fleetfoot import deploy

MODELS = Path(fleetfoot.__file__).parent / "envs/robot/models"
IMU = {"go1": "imu", "t1": "imu", "g1": "imu_in_pelvis"}  # the site that senses


class MuJoCoRobot:
    """Four methods (`joints`, `read`, `command`, `write`), and the clock of the simulation."""

    def __init__(self, about: deploy.About, model: mujoco.MjModel | None = None) -> None:
        name = about.raw["robot"]["robot"]
        self.model = load_model(name, about.raw["robot"]["timestep"]) if model is None else model
        self.data = mujoco.MjData(self.model)
        self.velocity: ArrayLike = np.zeros(len(about.commands))  # what the joystick says
        # The robot's own order of joints is that of its actuators.
        ids = self.model.actuator_trnid[:, 0]
        self.names = [self.model.joint(int(i)).name for i in ids]
        self.q, self.v = self.model.jnt_qposadr[ids], self.model.jnt_dofadr[ids]
        self.begin()

    def begin(self) -> None:
        """Stand."""
        mujoco.mj_resetDataKeyframe(self.model, self.data, 0)
        mujoco.mj_forward(self.model, self.data)

    def joints(self) -> Sequence[str]:
        return self.names

    def read(self) -> Mapping[str, ArrayLike]:
        return {
            "joint_pos": self.data.qpos[self.q],
            "joint_vel": self.data.qvel[self.v],
            "gyro": self.sensor("gyro"),
            "linvel": self.sensor("linvel"),
            "gravity": -self.sensor("world_up"),
        }

    def sensor(self, name: str) -> NDArray[np.float64]:
        return self.data.sensor(name).data.copy()

    def command(self) -> ArrayLike:
        return self.velocity

    def write(self, order: deploy.Order) -> None:
        self.data.ctrl[:] = order.target
        if order.kp is not None:  # a position servo: force = kp * (target - position)
            self.model.actuator_gainprm[:, 0] = order.kp
            self.model.actuator_biasprm[:, 1] = -order.kp

    def clock(self) -> float:
        return float(self.data.time)

    def wait(self, seconds: float) -> None:
        for _ in range(round(seconds / self.model.opt.timestep)):
            mujoco.mj_step(self.model, self.data)


def load_model(name: str, timestep: float) -> mujoco.MjModel:
    """The model of the package, with the sensors of a real robot's IMU."""
    spec = mujoco.MjSpec.from_file(str(MODELS / f"{name}.xml"))
    kind, site = mujoco.mjtSensor, mujoco.mjtObj.mjOBJ_SITE
    imu = IMU[name]
    spec.add_sensor(name="gyro", type=kind.mjSENS_GYRO, objtype=site, objname=imu)
    spec.add_sensor(name="linvel", type=kind.mjSENS_VELOCIMETER, objtype=site, objname=imu)
    spec.add_sensor(
        name="world_up",
        type=kind.mjSENS_FRAMEZAXIS,
        objtype=mujoco.mjtObj.mjOBJ_BODY,
        objname="world",
        reftype=site,
        refname=imu,
    )
    spec.option.timestep = timestep
    return spec.compile()


def main() -> int:
    options = argparse.ArgumentParser(description="Drive a simulated robot by an exported policy.")
    options.add_argument("exported", type=Path)
    options.add_argument("--seconds", type=float, default=10.0)
    options.add_argument("--forward", type=float, default=0.5, help="m/s")
    given = options.parse_args()
    try:
        policy = deploy.load(given.exported)
        robot = MuJoCoRobot(policy.about)
        robot.velocity = [given.forward, 0.0, 0.0]
        done = deploy.drive(
            robot,
            deploy.Controller(policy, fallback="hold"),
            seconds=given.seconds,
            clock=robot.clock,
            wait=robot.wait,
        )
    except fleetfoot.UserError as error:
        print(f"fleetfoot: {error}", file=sys.stderr)
        return 2
    x, y, height = robot.data.qpos[:3]
    print(f"{done.steps} steps, {done.bad_steps} bad, {done.skipped} skipped")
    print(f"the robot is {x:.2f} m ahead, {y:.2f} m to the left, and {height:.2f} m high")
    return 0


if __name__ == "__main__":
    sys.exit(main())
