"""Your own robot: a rod on a wheel learns to stay upright and roll as fast as it is told.

    python examples/own_robot.py

checks the environment against the contract and steps 64 copies of it on CPU cores.
docs/guides/own-robot.md explains each part, and how thousands of them train on a GPU.
"""

from __future__ import annotations

import time

import torch

from fleetfoot.config import part
from fleetfoot.envs.check import check_env
from fleetfoot.envs.robot import PhysicsConfig, Robot, RobotEnv, Task

MODEL = """
<mujoco>
  <option integrator="implicitfast"/>
  <worldbody>
    <light pos="0 -2 4" dir="0 .4 -1" directional="true"/>
    <geom name="floor" type="plane" size="50 50 .1" rgba=".55 .6 .6 1"/>
    <body name="rod" pos="0 0 .1">
      <joint name="x" type="slide" axis="1 0 0"/>
      <joint name="z" type="slide" axis="0 0 1"/>
      <joint name="lean" axis="0 1 0"/>
      <site name="imu" pos="0 0 .25"/>
      <geom type="capsule" fromto="0 0 0 0 0 .5" size=".03" mass="1" rgba=".9 .5 .2 1"/>
      <body name="wheel">
        <joint name="spin" axis="0 1 0"/>
        <geom type="cylinder" zaxis="0 1 0" size=".1 .03" mass=".5" rgba=".2 .3 .5 1"/>
      </body>
    </body>
  </worldbody>
  <actuator>
    <motor joint="spin" ctrlrange="-3 3"/>
  </actuator>
</mujoco>
"""
X, LEAN = 0, 2  # their places among the joints: x, z, lean, spin


class Roll(Task):
    name, episode_length = "roll", 500
    noise = {"gyro": 0.05}

    def start(self, draw, qpos, qvel):
        qpos[:, LEAN : LEAN + 1] += draw.uniform(1, -0.1, 0.1)
        return qpos, qvel + draw.uniform(4, -0.05, 0.05)

    def begin(self, draw, before):
        return {"command": draw.uniform(1, -0.5, 0.5)}

    def observe(self, now):
        lean = {"lean": now.qpos[:, LEAN : LEAN + 1], "gyro": now.sensor["gyro"][:, 1:2]}
        return lean | {"velocity": now.qvel, "command": now.state["command"]}

    def terminated(self, now):
        return now.qpos[:, LEAN].abs() > 0.6

    def reward(self, now, terminated):
        error = now.qvel[:, X] - now.state["command"][:, 0]
        effort = now.action.square().sum(1)
        return {"speed": torch.exp(-4 * error.square()), "effort": -0.01 * effort}


@part
class WheelConfig:
    engine: str = "auto"

    def build(self, num_envs, seed, device):
        robot = Robot(name="wheel", model=MODEL, action_scale=3.0, imu="imu")
        physics = PhysicsConfig(timestep=0.005, substeps=4, engine=self.engine)
        return RobotEnv(robot, Roll(), num_envs, seed, device, physics=physics)

    def for_evaluation(self):
        return self


def main() -> None:
    report = check_env(WheelConfig(), render=False)
    print(f"the contract holds for {report.spec.name}: observations {report.spec.obs_shape}")

    env = WheelConfig().build(64, seed=0, device=torch.device("cpu"))
    obs = env.reset()
    begin, falls = time.perf_counter(), 0
    for _ in range(500):
        lean, tilt, spin, command = (obs.actor[:, i] for i in (0, 4, 5, 6))
        push = 10.0 * lean + 2.0 * tilt + 0.04 * (spin - 10.0 * command)  # a hand-made controller
        step = env.step(push[:, None].clamp(-1, 1))
        obs, falls = step.obs, falls + int(step.terminated.sum())
    speed = 64 * 500 / (time.perf_counter() - begin)
    print(f"{falls} falls in {64 * 500} env steps, {speed:,.0f} env steps/s")
    print(f"last rewards: {step.reward.mean().item():.2f} of at most 1")
    env.close()


if __name__ == "__main__":
    main()
