"""Joystick: follow a commanded velocity (forward, sideways, turning). One class for quadrupeds and humanoids.

The tasks of the robots in the package have the numbers of MuJoCo Playground 0.2.0 (`_src/locomotion/*/joystick.py`).
With the *stock* physics they are equal to it: each term of the reward, and each observation without noise. What a
robot is paid for is a table of terms by name, with a weight and a function each (`terms.py`).

Order inside a step, which shows in what is observed: physics, contacts and air time, observation, end, reward, then
the phase of the gait, the last action and the command move on. So the observation after action a(t) holds a(t-1) as the
last action, and the command and phase that the step began with.

Deviations from Playground:

1. An episode begins with one of many start states that were made beforehand; command, gait and noise are drawn anew.
2. Go1's pushes, where they are switched on, are changes of its velocity, as for the humanoids, and not a force.

Above 300 lines: one task, whose methods share the layout of its state.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from fleetfoot.envs.counter import Draw
from fleetfoot.envs.robot.mirror import Kind
from fleetfoot.envs.robot.robot import Built
from fleetfoot.envs.robot.task import Now, State, Task
from fleetfoot.errors import UserError, nearest

Range: TypeAlias = tuple[float, float]

UNITS = {
    "linvel": "m/s",
    "gyro": "rad/s",
    "gravity": "1",
    "command": "m/s, m/s, rad/s",
    "joint_pos": "rad from the standing pose",
    "joint_vel": "rad/s",
    "last_action": "1",
    "gait": "cosines of the phases of all feet, then their sines",
}

# What a mirror makes of the observations. The phases of the gait change feet, as the feet do.
MIRROR: Mapping[str, Kind] = {
    "linvel": "polar",
    "gyro": "axial",
    "gravity": "polar",
    "command": (1.0, -1.0, -1.0),  # forward, sideways, turning
    "joint_pos": "joints",
    "joint_vel": "joints",
    "last_action": "joints",
    "gait": "feet",
    "accelerometer": "polar",
    "global_angvel": "axial",
    "height": "same",
    "torque": "joints",
    "contact": "feet",
    "last_contact": "feet",
    "foot_vel": "feet_polar",
    "air": "feet",
    "push": (1.0, -1.0, 1.0, 1.0),
}


@dataclass(frozen=True, kw_only=True)
class Gait:
    """Feet that are lifted in turn, in a rhythm drawn for each episode."""

    frequency: Range  # Hz
    height: float  # metres a foot is to be lifted
    stands: bool  # no rhythm while the command is zero
    phases: tuple[float, ...] = (0.0, math.pi)  # of each foot, where an episode begins
    sole: float = 0.0  # metres from the ground to the sites of feet that stand


@dataclass(frozen=True, kw_only=True)
class Commands:
    """Where commands come from. The largest are `x`, `y` and `yaw`, in either direction."""

    x: float  # m/s
    y: float  # m/s
    yaw: float  # rad/s
    # "all": all three anew every 500 steps, or zero with one chance in ten. "each": after a time of 5 s in the mean,
    # each with even odds; a new one is not zero with the chances `keep`.
    change: Literal["all", "each"] = "all"
    keep: tuple[float, float, float] = (0.9, 0.25, 0.5)


def norm(rows: Tensor) -> Tensor:
    """The length of each row."""
    length: Tensor = torch.linalg.vector_norm(rows, dim=-1)
    return length


class Step:
    """What several terms look at, computed once per vec step."""

    def __init__(self, task: Joystick, now: Now, terminated: Tensor) -> None:
        self.now, self.task, self.terminated = now, task, terminated
        self.sensor, self.state = now.sensor, now.state
        self.command = now.state["command"]
        self.length = norm(self.command)  # [N] of the command
        self.deviation = now.joint_pos - task.pose  # [N, U]
        self.off = self.deviation.abs()
        self.contact = now.sensor["foot_contact"] > 0  # [N, F]
        self.first_contact = now.state["first_contact"]  # [N, F] 0 or 1
        self.foot_vel = now.sensor["foot_vel"].view(-1, task.num_feet, 3)  # [N, F, 3]
        self.foot_pos = now.sensor["foot_pos"].view(-1, task.num_feet, 3)


Term: TypeAlias = Callable[[Step], Tensor]


@dataclass(frozen=True, kw_only=True)
class JoystickSpec:
    """The numbers of one robot's task."""

    terms: Mapping[str, tuple[float, Term]]  # weight and function, by name
    commands: Commands
    observed: tuple[str, ...]
    privileged: tuple[str, ...]
    gait: Gait | None = None
    joint_start: Range | None = None  # factors on the standing pose where an episode begins
    # 95 % of the range about its middle, or of each limit.
    soft_limits: Literal["range", "limit"] = "range"
    lowest_reward: float | None = 0.0
    ends_if_feet_touch: bool = False
    up: str = "up"  # the sensor that tells whether it has fallen
    noise: Mapping[str, float] = field(
        default_factory=lambda: {
            "linvel": 0.1,
            "gyro": 0.2,
            "gravity": 0.05,
            "joint_pos": 0.03,
            "joint_vel": 1.5,
        }
    )


class Joystick(Task):
    """`weights` replaces weights of the reward by name. `curriculum`: commands begin small and grow with success."""

    name = "joystick"
    units, mirror = UNITS, MIRROR

    def __init__(
        self,
        spec: JoystickSpec,
        weights: Mapping[str, float] | None = None,
        curriculum: bool = False,
    ) -> None:
        self.spec, self.noise, self.curriculum = spec, spec.noise, curriculum
        chosen = {name: weight for name, (weight, _) in spec.terms.items()}
        for name, weight in (weights or {}).items():
            if name not in chosen:
                raise UserError(
                    f"there is no reward term {name!r}.{nearest(name, chosen)} There are {', '.join(chosen)}."
                )
            chosen[name] = weight
        self.weights = {name: weight for name, weight in chosen.items() if weight}

    def bind(self, robot: Built, dt: float, device: torch.device) -> None:
        super().bind(robot, dt, device)

        def constant(values: object) -> Tensor:
            return torch.tensor(values, dtype=torch.float32, device=device)

        low, high = robot.low, robot.high
        if self.spec.soft_limits == "range":
            middle, half = (low + high) / 2, 0.95 * (high - low) / 2
            low, high = middle - half, middle + half
        else:
            low, high = 0.95 * low, 0.95 * high
        self.low, self.high = constant(low), constant(high)
        cmd = self.spec.commands
        self.largest = constant([cmd.x, cmd.y, cmd.yaw])
        self.keep = constant(cmd.keep)
        self.num_feet = len(robot.robot.feet)
        if self.spec.gait is not None:
            self.phases = constant(self.spec.gait.phases)
        self.scale = constant(list(self.weights.values()))[:, None] * dt  # [K, 1]

    def start(self, draw: Draw, qpos: Tensor, qvel: Tensor) -> tuple[Tensor, Tensor]:
        qpos, qvel = qpos.clone(), qvel.clone()
        qpos[:, 0:2] += draw.uniform(2, -0.5, 0.5)
        half = draw.uniform(1, -3.14, 3.14).double() / 2
        qpos[:, 3:4], qpos[:, 4:6], qpos[:, 6:7] = torch.cos(half), 0.0, torch.sin(half)
        if self.spec.joint_start is not None:
            qpos[:, self.robot.q] *= draw.uniform(self.robot.num_joints, *self.spec.joint_start)
        qvel[:, 0:6] = draw.uniform(6, -0.5, 0.5).double()
        return qpos, qvel

    def begin(self, draw: Draw, before: State | None) -> State:
        zero = torch.zeros_like(draw.uniform(1))
        feet = zero.expand(-1, self.num_feet)
        state = {"air": feet, "peak": feet, "last_contact": feet, "first_contact": feet}
        level = zero + 1.0
        if self.curriculum:
            level = zero + 0.2 if before is None else self._level(before)
            state |= {"level": level, "tracked": zero, "steps": zero}
        if self.spec.commands.change == "all":
            state |= {"command": self._new_command(draw, level), "age": zero}
        else:
            wait = torch.round(draw.exponential(5.0) / self.dt)
            state |= {"command": level * (2 * draw.uniform(3) - 1) * self.largest, "wait": wait}
        if self.spec.gait is not None:
            frequency = draw.uniform(1, *self.spec.gait.frequency)
            state |= {"phase": self.phases + zero, "phase_step": 2 * math.pi * self.dt * frequency}
        return state

    def after(self, now: Now) -> State:
        state = now.state
        contact = now.sensor["foot_contact"] > 0
        touched = contact | (state["last_contact"] > 0)
        height = now.sensor["foot_pos"][:, 2::3]
        return {
            "first_contact": ((state["air"] > 0) & touched).float(),
            "air": state["air"] + self.dt,
            "peak": torch.maximum(state["peak"], height),
        }

    def observe(self, now: Now) -> dict[str, Tensor]:
        return {name: self._look(now, name) for name in self.spec.observed}

    def privileged(self, now: Now) -> dict[str, Tensor]:
        return {name: self._look(now, name) for name in self.spec.privileged}

    def _look(self, now: Now, name: str) -> Tensor:
        if (method := getattr(self, f"_look_{name}", None)) is not None:
            looked: Tensor = method(now)
            return looked
        return now.state[name] if name in now.state else now.sensor[name]

    def _look_gravity(self, now: Now) -> Tensor:
        return -now.sensor["world_up"]

    def _look_joint_pos(self, now: Now) -> Tensor:
        return now.joint_pos - self.pose

    def _look_joint_vel(self, now: Now) -> Tensor:
        return now.joint_vel

    def _look_last_action(self, now: Now) -> Tensor:
        return now.last_action

    def _look_gait(self, now: Now) -> Tensor:
        phase = now.state["phase"]
        return torch.cat([phase.cos(), phase.sin()], 1)

    def _look_height(self, now: Now) -> Tensor:
        return now.qpos[:, 2:3]

    def _look_contact(self, now: Now) -> Tensor:
        return (now.sensor["foot_contact"] > 0).float()

    def _look_push(self, now: Now) -> Tensor:
        """The push of this step. Playground's Go1 has four numbers for it, zero while there are none."""
        none = torch.zeros_like(now.qpos[:, :4])
        return torch.cat([now.state["push"], none[:, :2]], 1) if "push" in now.state else none

    def terminated(self, now: Now) -> Tensor:
        fallen = now.sensor[self.spec.up][:, 2] < 0.0
        if self.spec.ends_if_feet_touch:
            fallen = fallen | (now.sensor["touch_feet"][:, 0] > 0)
        return fallen

    def reward(self, now: Now, terminated: Tensor) -> dict[str, Tensor]:
        step = Step(self, now, terminated)
        terms = torch.stack([self.spec.terms[name][1](step).float() for name in self.weights])
        return dict(zip(self.weights, self.scale * terms, strict=True))

    def total(self, terms: Tensor) -> Tensor:
        total = terms.sum(0)
        return (
            total if self.spec.lowest_reward is None else total.clamp(self.spec.lowest_reward, 1e4)
        )

    def advance(self, now: Now, draw: Draw) -> State:
        state, command = now.state, now.state["command"]
        contact = now.sensor["foot_contact"] > 0
        new = {
            "air": state["air"].masked_fill(contact, 0.0),
            "peak": state["peak"].masked_fill(contact, 0.0),
            "last_contact": contact.float(),
        }
        if self.spec.gait is not None:
            phase = (
                torch.fmod(state["phase"] + state["phase_step"] + math.pi, 2 * math.pi) - math.pi
            )
            if self.spec.gait.stands:
                moving = norm(command)[:, None] > 0.01
                phase = torch.where(moving, phase, math.pi)
            new["phase"] = phase
        level: Tensor | float = state["level"] if self.curriculum else 1.0
        if self.spec.commands.change == "all":
            age = state["age"] + 1
            old = age > 500
            new["command"] = torch.where(old, self._new_command(draw, level), command)
            new["age"] = age.masked_fill(old, 0.0)
        else:
            wait = state["wait"] - 1
            over = wait <= 0
            wanted = (
                level * (2 * draw.uniform(3) - 1) * self.largest * (draw.uniform(3) < self.keep)
            )
            changed = torch.where(draw.uniform(3) < 0.5, wanted, command)
            new["command"] = torch.where(over, changed, command)
            new["wait"] = torch.where(over, torch.round(draw.exponential(5.0) / self.dt), wait)
        if self.curriculum:
            new["tracked"] = state["tracked"] + self._tracks(now)[:, None]
            new["steps"] = state["steps"] + 1
        return new

    def info(self, now: Now) -> dict[str, Tensor]:
        command = now.state["command"]
        lin = command[:, :2] - now.sensor["linvel"][:, :2]
        told = {
            "error_velocity": norm(lin),
            "error_yaw": (command[:, 2] - now.sensor["gyro"][:, 2]).abs(),
        }
        return told | ({"command_level": now.state["level"][:, 0]} if self.curriculum else {})

    def commands(self) -> dict[str, Range]:
        cmd = self.spec.commands
        largest = {"forward": cmd.x, "sideways": cmd.y, "turning": cmd.yaw}
        return {name: (-most, most) for name, most in largest.items()}

    def wanted_velocity(self, state: State) -> Tensor:
        return state["command"][:, :2]

    def explain(self) -> dict[str, dict[str, Any]]:
        """Late by one step: what moves on after the observation was made."""
        told: dict[str, dict[str, Any]] = {
            "joint_pos": {"unit": "rad", "offset": self.robot.pose.tolist()},
            "last_action": {"source": "action", "late": 1},
            "command": {"source": "command"},
        }
        if self.spec.gait is not None:
            slow, fast = self.spec.gait.frequency
            told["gait"] = {
                "source": "gait",
                "late": 1,
                "gait": {
                    "frequency": (slow + fast) / 2,
                    "frequencies": [slow, fast],
                    "start": self.phases.tolist(),
                    "stands": self.spec.gait.stands,
                },
            }
        return told

    def _new_command(self, draw: Draw, level: Tensor | float) -> Tensor:
        command = level * (2 * draw.uniform(3) - 1) * self.largest
        return torch.where(draw.chance(0.1), 0.0, command)

    def _tracks(self, now: Now) -> Tensor:
        """[N] in [0, 1]: how well the velocity in the plane is followed."""
        error = now.state["command"][:, :2] - now.sensor["linvel"][:, :2]
        return torch.exp(-error.square().sum(1) / 0.25)

    def _level(self, before: State) -> Tensor:
        """The next level: up after an episode that lasted and followed its commands, down after a poor one."""
        share = before["tracked"] / self.episode_length
        change = torch.where(share > 0.7, 0.1, torch.where(share < 0.4, -0.1, 0.0))
        return (before["level"] + change).clamp(0.2, 1.0)
