"""Your own quadruped learns to follow a joystick on CPU cores.

    python examples/own_quadruped.py                       # checks it, and drops 32 of them onto the floor
    PYTHONPATH=examples fleetfoot train fast_sac/go1 --import own_quadruped --env QuadrupedConfig

What is its own is the model, the names in `ROBOT`, and a few numbers of the task (docs/guides/own-robot.md).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

import torch

from fleetfoot.config import part
from fleetfoot.envs.check import check_env
from fleetfoot.envs.robot import (
    Commands,
    ConditionsConfig,
    Gait,
    Joystick,
    PhysicsConfig,
    Robot,
    RobotEnv,
    terms,
)

LEG = """
    <body name="{name}_hip" pos="{x} {y} 0">
      <joint name="{name}_abduction" axis="1 0 0" range="-.8 .8"/>
      <geom type="capsule" fromto="0 0 0 0 {out} 0" size=".03" mass=".5"/>
      <body name="{name}_thigh" pos="0 {out} 0">
        <joint name="{name}_swing" axis="0 1 0" range="-.7 2.5"/>
        <geom type="capsule" fromto="0 0 0 0 0 -.2" size=".02" mass=".8"/>
        <body name="{name}_shin" pos="0 0 -.2">
          <joint name="{name}_knee" axis="0 1 0" range="-2.6 -.6"/>
          <geom type="capsule" fromto="0 0 0 0 0 -.2" size=".012" mass=".2"/>
          <geom class="foot" pos="0 0 -.2"/>
          <site name="{name}" pos="0 0 -.2"/>
        </body>
      </body>
    </body>"""
SERVOS = """
    <position joint="{name}_abduction"/>
    <position joint="{name}_swing"/>
    <position joint="{name}_knee"/>"""
PLACES = {  # of the hips: ahead, and to the left
    "front_right": (0.18, -0.05),
    "front_left": (0.18, 0.05),
    "rear_right": (-0.18, -0.05),
    "rear_left": (-0.18, 0.05),
}


def model() -> str:
    """Without inertias and colours, an MJCF file of your own has the same parts."""
    legs = "".join(
        LEG.format(name=name, x=x, y=y, out=0.08 if y > 0 else -0.08)
        for name, (x, y) in PLACES.items()
    )
    servos = "".join(SERVOS.format(name=name) for name in PLACES)
    pose = "0 .8 -1.5 " * 4
    return f"""
<mujoco model="pup">
  <compiler angle="radian"/>
  <option timestep="0.004" iterations="3" ls_iterations="5"/>
  <default>
    <joint damping=".5" armature=".005" frictionloss=".2"/>
    <geom contype="0" conaffinity="0" rgba=".3 .45 .6 1"/>
    <position kp="35" forcerange="-25 25"/>
    <default class="foot">
      <geom type="sphere" size=".02" mass=".05" contype="0" conaffinity="1" condim="3" rgba=".1 .1 .1 1"/>
    </default>
  </default>
  <worldbody>
    <light pos="0 -2 4" dir="0 .4 -1" directional="true"/>
    <geom name="floor" type="plane" size="0 0 .05" contype="1" conaffinity="0" friction=".8" rgba=".55 .6 .6 1"/>
    <body name="trunk" pos="0 0 .31">
      <freejoint/>
      <site name="imu"/>
      <geom type="box" size=".2 .07 .05" mass="6" rgba=".9 .6 .2 1"/>{legs}
    </body>
  </worldbody>
  <actuator>{servos}
  </actuator>
  <keyframe>
    <key name="home" qpos="0 0 .313 1 0 0 0 {pose}"/>
  </keyframe>
</mujoco>"""


ROBOT = Robot(
    name="pup",
    model=model(),  # or the path of a file
    action_scale=0.5,
    imu="imu",
    feet=tuple(PLACES),
    sides={"right": "left"},
    max_contacts=8,
    max_rows=48,
)

# Go1's trot with the numbers of this robot. `terms` has the functions; your own take a Step and return [N].
TASK = replace(
    terms.GO1_TROT,
    terms={**terms.GO1_TROT.terms, "pose": (0.5, terms.PoseReward({"knee": 0.1}, 1.0))},
    gait=Gait(  # diagonal pairs of feet are lifted together
        frequency=(2.5, 2.5),
        height=0.08,
        stands=False,
        phases=(0.0, math.pi, math.pi, 0.0),
        sole=0.02,
    ),
    commands=Commands(x=1.0, y=0.5, yaw=1.0, change="each"),  # the largest: m/s and rad/s
)


@part
class QuadrupedConfig:
    """The quadruped of this file, on CPU cores or, with MuJoCo Warp, on a GPU."""

    engine: Literal["auto", "cpu", "warp"] = "auto"
    """cpu: MuJoCo's threads; warp: MuJoCo Warp."""
    conditions: ConditionsConfig = ConditionsConfig()

    def build(self, num_envs: int, seed: int, device: torch.device) -> RobotEnv:
        physics = PhysicsConfig(timestep=0.004, substeps=5, engine=self.engine)
        return RobotEnv(
            ROBOT,
            Joystick(TASK),
            num_envs,
            seed,
            device,
            physics=physics,
            conditions=self.conditions,
        )

    def for_evaluation(self) -> QuadrupedConfig:
        return replace(self, conditions=self.conditions.for_evaluation())


def main() -> None:
    report = check_env(QuadrupedConfig(), render=False)
    print(f"the contract holds for {report.spec.name}: observations {report.spec.obs_shape}")
    env = QuadrupedConfig().build(32, 0, torch.device("cpu"))
    env.reset()
    falls = 0
    for _ in range(200):
        falls += int(env.step(torch.zeros(32, env.built.num_joints)).terminated.sum())
    print(f"standing still for four seconds, {falls} of 32 fell")
    env.close()


if __name__ == "__main__":
    main()
