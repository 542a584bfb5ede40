"""Robots by the thousands: MuJoCo Warp, whose arrays are torch tensors here, without copies. float32.

On a GPU the timesteps of one control step are some hundred launches; `cuda_graph.py` makes one graph of them. On a CPU,
where it serves tests, Warp can capture them as well (`capture`).

Contacts of all robots lie in one list, and each robot has room for so many constraint rows. What does not fit is
dropped in silence by the physics; a mask on the device remembers it, and `check` stops the run.
"""

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np
import torch
from torch import Tensor

from fleetfoot.envs.robot.engine import Starts
from fleetfoot.envs.robot.randomise import Randomiser
from fleetfoot.envs.robot.robot import Built
from fleetfoot.envs.robot.task import State
from fleetfoot.envs.robot.varied import Varied
from fleetfoot.errors import UserError
from fleetfoot.extras import install_line

CHECK_EVERY = 100  # vec steps between two looks at the overflow mask
# Of MuJoCo Warp's mask: that the solver stops at its limit is as it should be.
HARMLESS = ("ITERATIONS", "LS_ITERATIONS", "TACTILE")
# Warp's objects of torch's streams, by device and handle. They are never let go, not even with the engine that made
# them: the end of such an object makes Warp forget the stream, whoever still works on it.
STREAMS: dict[tuple[int, int], Any] = {}


class WarpEngine:
    """Velocities, positions, activations and the solver's warm start are the whole state."""

    def __init__(
        self,
        robot: Built,
        num_envs: int,
        substeps: int,
        starts: Starts,
        device: torch.device,
        randomiser: Randomiser | None,
        deterministic: bool = False,
    ) -> None:
        self.mjw, self.wp = _load()
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
        self.device, self.substeps, self.num_envs = device, substeps, num_envs
        self.robot = robot
        _check_model(robot.model)
        rows = randomiser.rows() if randomiser is not None else {}
        self.varied: Varied | None = None
        if randomiser is not None and randomiser.cfg.by_episode:
            self.varied = Varied(randomiser, device)
            for name in self.varied.fields() - set(rows):
                rows[name] = np.stack([getattr(robot.model, name)] * num_envs)
        with self.wp.ScopedDevice(str(device)):
            try:
                self.model = self.mjw.put_model(
                    robot.model, batch_sizes=dict.fromkeys(rows, num_envs)
                )
            except (NotImplementedError, ValueError) as error:
                reason = " ".join(str(error).split())
                raise UserError(
                    f"MuJoCo Warp cannot simulate {robot.robot.name}: {reason} --env.engine cpu can."
                ) from error
            self.model.opt.warn_overflow = 0  # the mask is kept all the same
            self.model.opt.graph_conditional = False
            if deterministic:  # contacts, constraint rows and atomic sums in a fixed order
                self.model.opt.deterministic = int(self.mjw.DeterminismType.ALL)
            self.data = self.mjw.make_data(
                robot.model,
                nworld=num_envs,
                nconmax=robot.robot.max_contacts or None,
                njmax=robot.robot.max_rows or None,
            )
        self._fields = {name: self.wp.to_torch(getattr(self.model, name)) for name in rows}
        for name, values in rows.items():
            field = self._fields[name]
            field.copy_(torch.as_tensor(values, dtype=field.dtype).reshape(field.shape))
        self.control = self._tensor("ctrl")
        self.qpos, self.qvel = self._tensor("qpos"), self._tensor("qvel")
        self.sensor = self._tensor("sensordata")
        self._warmstart = self._tensor("qacc_warmstart")
        self._act = self._tensor("act") if robot.model.na else None
        self._overflow = self._tensor("overflow")
        kinds = self.mjw.OverflowType
        self._serious = int(sum(k for k in kinds if k.name not in HARMLESS))
        self._start_qpos, self._start_qvel, _ = starts.on(device)
        self._start_act = torch.tensor(starts.act, dtype=torch.float32, device=device)
        self._graph: Any = None
        self._calls = 0
        self._seen: Tensor | None = None  # the mask as it was, on its way to the CPU
        self._arrived: torch.cuda.Event | None = None

    def advance(self) -> None:
        if self._graph is not None:
            self.wp.capture_launch(self._graph, stream=self._stream())
            return
        with self._on_torch_stream():
            self._substeps()

    def capture(self) -> None:
        """Make one graph of a control step. What it reads and writes stays where it is."""
        with self._on_torch_stream(), self.wp.ScopedCapture(device=str(self.device)) as capture:
            self._substeps()
        self._graph = capture.graph

    def within(self) -> None:
        """The same as a part of what torch is capturing on its current stream."""
        with (
            self._on_torch_stream(),
            # Kernels are loaded already, and cannot be while torch captures.
            self.wp.ScopedCapture(device=str(self.device), force_module_load=False, external=True),
        ):
            self._substeps()

    def kick(self, change: Tensor) -> None:
        self.qvel[:, : change.shape[1]] += change

    def restart(self, ended: Tensor, row: Tensor) -> None:
        chosen = ended[:, None]
        self.qpos.copy_(torch.where(chosen, self._start_qpos[row], self.qpos))
        self.qvel.copy_(torch.where(chosen, self._start_qvel[row], self.qvel))
        self._warmstart.masked_fill_(chosen, 0.0)
        if self._act is not None:
            self._act.copy_(torch.where(chosen, self._start_act[row], self._act))

    def vary(self, chosen: Tensor, state: State) -> None:
        for name, column, values in self.varied.columns(state) if self.varied else ():
            field = self._fields[name]
            place = field if column is None else field[..., column]
            place.copy_(torch.where(chosen[:, None], values, place))

    def take_starts(self, starts: Starts) -> None:
        qpos, qvel, _ = starts.on(self.device)
        self._start_qpos.copy_(qpos)
        self._start_qvel.copy_(qvel)
        self._start_act.copy_(torch.tensor(starts.act, dtype=torch.float32))

    def check(self) -> None:
        """Every so often the mask is sent to the CPU, and read the next time, when it has long arrived."""
        self._calls += 1
        if self._calls % CHECK_EVERY:
            return
        if self._seen is not None:
            if self._arrived is not None:
                self._arrived.synchronize()
            self._refuse(int(self._seen))
        pinned = torch.zeros(1, dtype=torch.int32, pin_memory=self.device.type == "cuda")
        pinned.copy_((self._overflow & self._serious).amax()[None], non_blocking=True)
        self._seen = pinned
        if self.device.type == "cuda":
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._arrived.record()

    def forget(self) -> None:
        self._overflow.zero_()
        self._seen, self._calls = None, 0

    def state_dict(self) -> dict[str, Tensor]:
        state = {"qpos": self.qpos, "qvel": self.qvel, "warmstart": self._warmstart}
        return state | ({} if self._act is None else {"act": self._act})

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        for name, mine in self.state_dict().items():
            if name not in state:
                raise UserError("this saved state is of the engine 'cpu'; build with that engine")
            mine.copy_(state[name])

    def close(self) -> None:
        self._graph = None

    def _substeps(self) -> None:
        for _ in range(self.substeps):
            self.mjw.step(self.model, self.data)

    def _tensor(self, name: str) -> Tensor:
        tensor: Tensor = self.wp.to_torch(getattr(self.data, name))
        return tensor

    def _stream(self) -> Any:
        """Torch's current stream, as Warp's object of it."""
        if self.device.type != "cuda":
            return None
        current = torch.cuda.current_stream(self.device)
        key = (current.device_index, current.cuda_stream)
        if key not in STREAMS:
            STREAMS[key] = self.wp.stream_from_torch(current)
        return STREAMS[key]

    def _on_torch_stream(self) -> Any:
        """Warp works on torch's current stream, so that both are in order without waiting."""
        if self.device.type == "cpu":
            return self.wp.ScopedDevice("cpu")
        return self.wp.ScopedStream(self._stream(), sync_enter=False)

    def _refuse(self, mask: int) -> None:
        if not mask:
            return
        kinds = [kind.name for kind in self.mjw.OverflowType if mask & int(kind)]
        size = "max_rows" if "NEFC" in " ".join(kinds) else "max_contacts"
        now = self.data.njmax if size == "max_rows" else self.data.naconmax // self.num_envs
        raise UserError(
            f"the physics of {self.robot.robot.name} ran out of room ({', '.join(kinds).lower()}): contacts were "
            f"dropped. Set {size} of the robot above {now}."
        )


def _check_model(model: mujoco.MjModel) -> None:
    if model.opt.solver == mujoco.mjtSolver.mjSOL_PGS:
        raise UserError(
            "MuJoCo Warp has no PGS solver; set solver='Newton' in the model, or --env.engine cpu."
        )


def _load() -> tuple[Any, Any]:
    try:
        import warp

        warp.config.log_level = warp.LOG_WARNING  # it tells of every kernel it loads
        import mujoco_warp
    except ImportError as error:
        raise UserError(
            f"the engine 'warp' needs packages that are not installed ({error}): {install_line('warp')}"
        ) from None
    return mujoco_warp, warp
