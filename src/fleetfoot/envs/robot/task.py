"""What robots are to do, written once in torch for every engine.

A task is a class with the methods below. Each gets a `Now`, in which row i is robot i, and returns new tensors. Four
rules keep it exact everywhere, and let the whole vec step be captured as a CUDA graph:

1. Treat rows independently, and keep nothing between calls but the task's state.
2. Take random numbers from `draw` alone, and always the same number of them.
3. Never ask a tensor for its value (`.item()`, `if tensor`, `nonzero`, a mask as an index): choose with `torch.where`.
4. Make constant tensors in `bind`, on its device.

One vec step, in this order:

    actions -> physics -> after -> observe, privileged -> terminated -> reward -> advance -> begin, if an episode ended
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from fleetfoot.envs.counter import Draw
from fleetfoot.envs.robot.mirror import Kind
from fleetfoot.envs.robot.robot import Built

State: TypeAlias = dict[str, Tensor]  # [N, size] float32 each, by name


@dataclass
class Now:
    """One moment of N robots. Never write to these tensors."""

    qpos: Tensor  # [N, nq]
    qvel: Tensor  # [N, nv]
    sensor: Mapping[str, Tensor]  # [N, size], by name
    joint_pos: Tensor  # [N, U] in the order of the actions
    joint_vel: Tensor  # [N, U]
    action: Tensor  # [N, U] in [-1, 1], the newest; zero where an episode begins
    last_action: Tensor  # [N, U] the one before
    state: State  # of the task


class Task:
    """A task in which nothing happens: derive from it, and say what your robot sees and what it is paid for."""

    name = "task"
    episode_length = 1000  # control steps until truncation
    # Uniform noise of a training robot's senses: half its width, by the name of the observation. Named here: it is
    # sensed, and comes late where observations are delayed.
    noise: Mapping[str, float] = {}
    # What a mirror makes of each observation, by name, those of the critic included (`mirror.py`). Empty: nothing is
    # said, and replay.mirror is refused.
    mirror: Mapping[str, Kind] = {}
    units: Mapping[str, str] = {}  # of observations, by name, for whoever runs a policy elsewhere

    def bind(self, robot: Built, dt: float, device: torch.device) -> None:
        """Before anything else: make constants. `dt`: seconds of a control step."""
        self.robot, self.dt, self.device = robot, dt, device
        self.pose = torch.tensor(robot.pose, dtype=torch.float32, device=device)  # [U]
        gear = robot.model.actuator_gear[:, 0]  # 1 where it could be folded into the actuator
        self.gear = torch.tensor(gear, dtype=torch.float32, device=device)  # [U]

    def power(self, now: Now) -> Tensor:
        """[N] The mechanical power of all joints in watts, whether they drive or brake."""
        return (now.joint_vel * now.sensor["torque"] * self.gear).abs().sum(1)

    def start(self, draw: Draw, qpos: Tensor, qvel: Tensor) -> tuple[Tensor, Tensor]:
        """First positions and velocities, from rows of the standing pose at rest, above the highest point of the ground
        (float64, on the CPU)."""
        return qpos, qvel

    def begin(self, draw: Draw, before: State | None) -> State:
        """The state at the beginning of an episode. `before`: at the end of the last one, or None for the first."""
        return {}

    def after(self, now: Now) -> State:
        """What of the state changes with the physics, before anything else looks at it."""
        return {}

    def observe(self, now: Now) -> dict[str, Tensor]:
        """What the policy sees, [N, size] by name, in this order. Noise comes later."""
        return {"joint_pos": now.joint_pos - self.pose, "joint_vel": now.joint_vel}

    def privileged(self, now: Now) -> dict[str, Tensor]:
        """What the critic sees besides, [N, size] by name. Empty: it sees what the policy sees."""
        return {}

    def terminated(self, now: Now) -> Tensor:
        """[N] bool: the task itself has ended."""
        return torch.zeros_like(now.qpos[:, 0], dtype=torch.bool)

    def reward(self, now: Now, terminated: Tensor) -> dict[str, Tensor]:
        """Its terms [N] by name, weighted: they are summed, and they are in the log."""
        raise NotImplementedError

    def total(self, terms: Tensor) -> Tensor:
        """[N] from the weighted terms [K, N]."""
        return terms.sum(0)

    def advance(self, now: Now, draw: Draw) -> State:
        """What of the state changes for the next step."""
        return {}

    def info(self, now: Now) -> dict[str, Tensor]:
        """More numbers [N] for the log, by name."""
        return {}

    def commands(self) -> dict[str, tuple[float, float]]:
        """What a person may ask of the robot while a policy drives it: ranges, by name, in the order of `command`."""
        return {}

    def wanted_velocity(self, state: State) -> Tensor | None:
        """[N, 2] What is asked of the robot, m/s forward and to its left. Films show it beside what the robot does.
        None: nothing is asked."""
        return None

    def explain(self) -> dict[str, dict[str, Any]]:
        """What a controller of the real robot must know of each observation, by name:

        `offset` and `scale` (and `unit`, if it is not that in `units`), where the observation is
        (physical - offset) * scale; `source`, where the robot does not sense it: its last "action", the "command", or
        the clock of a "gait"; and `late`, the control steps by which such a thing lags behind. A task with an `observe`
        of its own has its own `explain` too: what is not explained counts as sensed, in the units of the observation.
        """
        if type(self).observe is not Task.observe:
            return {}
        return {"joint_pos": {"unit": "rad", "offset": self.robot.pose.tolist()}}

    def explains_itself(self) -> bool:
        """Is its `explain` about its own `observe`, and not about that of a class which it extends?"""
        kinds = type(self).__mro__
        explains, observes = (
            next(at for at, kind in enumerate(kinds) if name in vars(kind))
            for name in ("explain", "observe")
        )
        return explains <= observes
