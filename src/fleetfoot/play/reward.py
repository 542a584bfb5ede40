"""The reward terms of a robot's task while it is played: the task's own functions, for one robot.

They are for the eye alone. No policy sees them, and a robot without a task of the package is played without them.
"""

from __future__ import annotations

import math

import torch

from fleetfoot import deploy
from fleetfoot.envs.counter import Draw, env_keys
from fleetfoot.envs.robot import Now, State, terms
from fleetfoot.envs.robot.joystick import Joystick
from fleetfoot.play.robot import SimulatedRobot

CPU = torch.device("cpu")


class RewardMeter:
    """Reward per second of each term, step by step."""

    def __init__(self, robot: SimulatedRobot, about: deploy.About) -> None:
        self.robot = robot
        gait = [float(term.gait["frequency"]) for term in about.terms if term.gait]
        spec = terms.SPECS[robot.robot.name]
        if gait and spec.gait is None:
            spec = terms.GO1_TROT
        self.task = Joystick(spec)
        assert about.control_hz is not None
        self.dt = 1.0 / about.control_hz
        self.task.bind(robot.built, self.dt, CPU)
        self.phase_step = 2 * math.pi * self.dt * gait[0] if gait else 0.0
        self.names = tuple(self.task.weights)
        self.begin()

    @staticmethod
    def knows(robot: SimulatedRobot, about: deploy.About) -> bool:
        return robot.robot.name in terms.SPECS and about.raw["robot"].get("task") == Joystick.name

    @torch.inference_mode()
    def begin(self) -> None:
        self.state: State = self.task.begin(self._draw(), None)
        self.action = self.last = torch.zeros(1, self.robot.built.num_joints)

    @torch.inference_mode()
    def step(self, action: deploy.controller.Numbers) -> list[float]:
        """After a control step with this action: the weighted terms, per second."""
        robot, built = self.robot, self.robot.built
        self.last, self.action = self.action, torch.from_numpy(action).float()[None]
        sensor = torch.from_numpy(robot.data.sensordata).float()[None]
        qpos, qvel = (torch.from_numpy(a).float()[None] for a in (robot.data.qpos, robot.data.qvel))
        self.state["command"] = torch.tensor(robot.velocity, dtype=torch.float32)[None]
        if "phase_step" in self.state:
            self.state["phase_step"] = torch.full((1, 1), self.phase_step)
        now = Now(
            qpos=qpos,
            qvel=qvel,
            sensor={name: sensor[:, part] for name, part in built.sensors.items()},
            joint_pos=qpos[:, built.q],
            joint_vel=qvel[:, built.v],
            action=self.action,
            last_action=self.last,
            state=self.state,
        )
        now.state = now.state | self.task.after(now)
        paid = self.task.reward(now, self.task.terminated(now))
        self.state = now.state | self.task.advance(now, self._draw())
        return [float(value) / self.dt for value in paid.values()]

    def _draw(self) -> Draw:
        return Draw(env_keys(0, 1, CPU))
