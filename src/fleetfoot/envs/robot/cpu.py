"""Robots on CPU cores: MuJoCo's own thread pool (`mujoco.rollout`), in float64."""

from __future__ import annotations

import mujoco
import numpy as np
import torch
from torch import Tensor

from fleetfoot.envs.mujoco.physics import Simulation
from fleetfoot.envs.robot.engine import Starts
from fleetfoot.envs.robot.randomise import Randomiser
from fleetfoot.envs.robot.robot import Built
from fleetfoot.envs.robot.task import State
from fleetfoot.envs.robot.varied import Varied
from fleetfoot.errors import UserError


class CpuEngine:
    """Positions, velocities, activations and the solver's warm start are the whole state."""

    def __init__(
        self,
        robot: Built,
        num_envs: int,
        substeps: int,
        starts: Starts,
        threads: int,
        randomiser: Randomiser | None,
    ) -> None:
        self.device = torch.device("cpu")
        # Show a robot that explodes, instead of silently resetting it to its reference pose.
        robot.model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_AUTORESET.value
        vary = None if randomiser is None else randomiser.apply
        self.sim = Simulation(robot.model, num_envs, substeps, threads, vary, warm=True)
        by_episode = randomiser is not None and randomiser.cfg.by_episode
        self.varied = Varied(randomiser, self.device) if by_episode else None  # type: ignore[arg-type]
        self.starts = starts
        self._v = slice(1 + self.sim.nq, 1 + self.sim.nq + self.sim.nv)
        self.control = torch.zeros(num_envs, self.sim.nu)
        self.qpos = torch.zeros(num_envs, self.sim.nq)
        self.qvel = torch.zeros(num_envs, self.sim.nv)
        self.sensor = torch.zeros(num_envs, int(robot.model.nsensordata))

    def advance(self) -> None:
        self.sim.advance(self.control.numpy())
        self._read_state()
        self.sensor.copy_(torch.from_numpy(self.sim.sensor))

    def kick(self, change: Tensor) -> None:
        self.sim.state[:, self._v][:, : change.shape[1]] += change.numpy()

    def restart(self, ended: Tensor, row: Tensor) -> None:
        rows = np.flatnonzero(ended.numpy())
        chosen = row.numpy()[rows]
        state = self.sim.state
        state[rows] = 0.0
        self.sim.warmstart[rows] = 0.0
        state[rows, 1 : 1 + self.sim.nq] = self.starts.qpos[chosen]
        state[rows, self._v] = self.starts.qvel[chosen]
        state[rows, self._v.stop : self._v.stop + self.starts.act.shape[1]] = self.starts.act[
            chosen
        ]
        self._read_state()

    def vary(self, chosen: Tensor, state: State) -> None:
        if self.varied is None:
            return
        columns = [(f, k, v.double().numpy()) for f, k, v in self.varied.columns(state)]
        for i in np.flatnonzero(chosen.numpy()).tolist():
            for model in self.sim.of(i):
                for field, column, values in columns:
                    own = getattr(model, field)
                    own[... if column is None else (..., column)] = values[i]

    def take_starts(self, starts: Starts) -> None:
        self.starts = starts

    def check(self) -> None:
        """MuJoCo on a CPU grows its memory as it needs."""

    def forget(self) -> None:
        pass

    def state_dict(self) -> dict[str, Tensor]:
        return {
            "physics": torch.from_numpy(self.sim.state.copy()),
            "warmstart": torch.from_numpy(self.sim.warmstart.copy()),
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        if "physics" not in state:
            raise UserError(
                "this saved state is of the engine 'warp'; build with that engine, on a GPU"
            )
        self.sim.state = state["physics"].cpu().numpy().copy()
        self.sim.warmstart = state["warmstart"].cpu().numpy().copy()
        self._read_state()

    def close(self) -> None:
        self.sim.close()

    def _read_state(self) -> None:
        state = torch.from_numpy(self.sim.state)
        self.qpos.copy_(state[:, 1 : 1 + self.sim.nq])
        self.qvel.copy_(state[:, self._v])
