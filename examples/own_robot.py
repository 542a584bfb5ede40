"""Your own robot: a rod on a wheel learns to stay upright and roll at half a metre per second.

    python examples/own_robot.py

checks the environment against the contract and steps 64 copies of it. docs/guides/own-robot.md
explains each part.
"""

from __future__ import annotations

import time

import numpy as np
import torch

from fleetfoot.config import part
from fleetfoot.envs.check import check_env
from fleetfoot.envs.mujoco import Draw, MuJoCoEnv, Physics, Task

ROBOT = """
<mujoco>
  <option timestep="0.005" integrator="implicitfast"/>
  <worldbody>
    <light pos="0 -2 4" dir="0 .4 -1" directional="true"/>
    <geom type="plane" size="50 50 .1" rgba=".55 .6 .6 1"/>
    <body name="rod" pos="0 0 .1">
      <joint name="x" type="slide" axis="1 0 0"/>
      <joint name="z" type="slide" axis="0 0 1"/>
      <joint name="lean" axis="0 1 0"/>
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
LEAN = 2  # its place among the joints: x, z, lean, spin


def observe(now: Physics) -> np.ndarray:
    return np.concatenate([now.qpos[:, [LEAN]], now.qvel], axis=1)


def reward(before: Physics, control: np.ndarray, after: Physics) -> np.ndarray:
    speed = (after.qpos[:, 0] - before.qpos[:, 0]) / after.dt
    return 1.0 - np.abs(speed - 0.5) - 0.01 * np.square(control).sum(1)


def terminated(after: Physics) -> np.ndarray:
    return np.abs(after.qpos[:, LEAN]) > 0.6


def start(draw: Draw, qpos: np.ndarray, qvel: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    qpos[:, [LEAN]] += draw.uniform(-0.1, 0.1, 1)
    return qpos, qvel + 0.05 * draw.normal(qvel.shape[1])


@part
class WheelConfig:
    episode_length: int = 500

    def build(self, num_envs: int, seed: int, device: torch.device) -> MuJoCoEnv:
        task = Task(
            name="Wheel",
            model=ROBOT,
            frame_skip=4,
            observe=observe,
            reward=reward,
            terminated=terminated,
            start=start,
            episode_length=self.episode_length,
        )
        return MuJoCoEnv(task, num_envs, seed, device)

    def for_evaluation(self) -> WheelConfig:
        return self


def main() -> None:
    report = check_env(WheelConfig(), render=False)
    print(f"the contract holds for {report.spec.name}: observations {report.spec.obs_shape}")

    env = WheelConfig().build(64, seed=0, device=torch.device("cpu"))
    obs = env.reset()
    begin, falls = time.perf_counter(), 0
    for _ in range(500):
        lean, spin, tilt = obs.actor[:, 0], obs.actor[:, 4], obs.actor[:, 3]
        push = 10.0 * lean + 2.0 * tilt + 0.04 * (spin - 5.0)  # a hand-made controller
        step = env.step(push[:, None].clamp(-1, 1))
        obs, falls = step.obs, falls + int(step.terminated.sum())
    speed = 64 * 500 / (time.perf_counter() - begin)
    print(f"{falls} falls in {64 * 500} env steps, {speed:,.0f} env steps/s")
    print(f"last rewards: {step.reward.mean().item():.2f} of at most 1")
    env.close()


if __name__ == "__main__":
    main()
