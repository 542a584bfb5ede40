"""The seam between a task and the physics. Behind it are CPU threads (`cpu.py`) or MuJoCo Warp (`warp.py`).

What crosses it is one row per robot: control in; positions, velocities and sensors out. The tensors stay where they are
for as long as the engine lives, so that a CUDA graph may hold their addresses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import mujoco
import numpy as np
import torch
from torch import Tensor

from fleetfoot.envs.counter import Draw, env_keys, keys_of
from fleetfoot.envs.robot.joints import at_rest
from fleetfoot.envs.robot.returns import check_start
from fleetfoot.envs.robot.robot import Array, Built
from fleetfoot.envs.robot.task import State, Task
from fleetfoot.envs.robot.varied import Varied

START_STATES = 1024  # ways an episode can begin


class Engine(Protocol):
    """Physics of N robots."""

    varied: Varied | None  # what of them is drawn for each episode
    device: torch.device  # where its tensors live
    control: Tensor  # [N, U] float32, to be written before `advance`: targets of the joints
    qpos: Tensor  # [N, nq] float32
    qvel: Tensor  # [N, nv] float32
    sensor: Tensor  # [N, M] float32, as they were at the beginning of the last timestep

    def advance(self) -> None:
        """One control step with `control` held."""
        ...

    def kick(self, change: Tensor) -> None:
        """Add [N, k] to the first k velocities."""
        ...

    def restart(self, ended: Tensor, row: Tensor) -> None:
        """Where `ended` [N], take start state number `row` [N]. Sensors are not touched."""
        ...

    def vary(self, chosen: Tensor, state: State) -> None:
        """Where `chosen` [N], the robot becomes the one that was drawn for its episode (`Varied`)."""
        ...

    def take_starts(self, starts: Starts) -> None:
        """Begin episodes with these from now on."""
        ...

    def check(self) -> None:
        """UserError where the physics has run out of room since the last call. Must not wait for a device."""
        ...

    def forget(self) -> None:
        """Forget what `check` would complain of."""
        ...

    def state_dict(self) -> dict[str, Tensor]: ...

    def load_state_dict(self, state: dict[str, Tensor]) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Starts:
    """States an episode can begin with, made once on the CPU: the same for both engines, whatever N is."""

    qpos: Array  # [P, nq]
    qvel: Array  # [P, nv]
    sensor: Array  # [P, M]
    act: Array  # [P, na] activations

    def on(self, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        rows = (self.qpos, self.qvel, self.sensor)
        qpos, qvel, sensor = (torch.tensor(a, dtype=torch.float32, device=device) for a in rows)
        return qpos, qvel, sensor


def make_starts(robot: Built, task: Task, seed: int, count: int = START_STATES) -> Starts:
    """`count` start states of a seed, with their sensors."""
    keys = keys_of(env_keys(seed, count, torch.device("cpu")), torch.full((count,), -1), 0)
    standing = torch.from_numpy(robot.qpos).expand(count, -1).clone()
    if robot.free:
        standing[:, 2] += robot.robot.rise  # above all of the ground
    still = torch.zeros(count, int(robot.model.nv), dtype=torch.float64)
    started = task.start(Draw(keys), standing, still)
    check_start(task, started, (standing, still))
    qpos, qvel = (rows.numpy() for rows in started)
    data = mujoco.MjData(robot.model)
    sensor = np.zeros((count, int(robot.model.nsensordata)))
    act = np.zeros((count, int(robot.model.na)))
    for i in range(count):
        mujoco.mj_resetData(robot.model, data)
        data.qpos[:], data.qvel[:] = qpos[i], qvel[i]
        data.ctrl[:] = np.where(robot.servo, data.qpos[robot.q], 0.0)  # at rest
        data.act[:] = act[i] = at_rest(robot.model, robot.joints, data.qpos)
        mujoco.mj_forward(robot.model, data)
        sensor[i] = data.sensordata
    return Starts(qpos, qvel, sensor, act)
