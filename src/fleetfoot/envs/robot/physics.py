"""How the physics of robots is computed, and the engine that does it."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch

from fleetfoot.envs.robot.cpu import CpuEngine
from fleetfoot.envs.robot.engine import Engine, Starts
from fleetfoot.envs.robot.randomise import Randomiser
from fleetfoot.envs.robot.robot import Built
from fleetfoot.errors import Notice, UserError

EngineName: TypeAlias = Literal["auto", "cpu", "warp"]
Execution: TypeAlias = Literal["auto", "eager", "captured"]

# Where the engine `warp` computes. Warp has a CPU device as well, but there MuJoCo's threads are many times as fast;
# only the tests of that engine add it.
WARP_DEVICES = {"cuda"}


@dataclass(frozen=True, kw_only=True)
class PhysicsConfig:
    """How the physics is computed. A control step is `substeps` of `timestep` seconds."""

    timestep: float = 0.004
    substeps: int = 5
    engine: EngineName = "auto"
    threads: int = 0  # of the CPU engine; 0: as many as there are usable cores
    execution: Execution = "auto"
    # On a GPU too the same seed gives the same bits. Warp cannot capture that: vec steps are eager, and much slower.
    deterministic: bool = False

    def __post_init__(self) -> None:
        if self.threads < 0 or self.substeps < 1 or not self.timestep > 0.0:
            raise UserError("threads must be 0 or more, substeps at least 1, timestep above 0.")

    def home(self, device: torch.device) -> torch.device:
        """Where engine and task compute, for observations on `device`."""
        return device if self._on_warp(device) else torch.device("cpu")

    def _on_warp(self, device: torch.device) -> bool:
        if self.engine == "auto":
            return device.type == "cuda"
        return self.engine == "warp" and device.type in WARP_DEVICES

    def build(
        self,
        built: Built,
        num_envs: int,
        starts: Starts,
        device: torch.device,
        randomiser: Randomiser | None,
    ) -> Engine:
        """The engine, for observations on `device`. Without a GPU it is always that of the CPU: a run that was trained
        with `warp` can be evaluated, filmed and exported anywhere."""
        substeps = self.substeps
        if not self._on_warp(device):
            if self.engine == "warp":
                warnings.warn(
                    "the engine 'warp' needs a GPU; on the device cpu the engine 'cpu' simulates instead.",
                    Notice,
                    stacklevel=2,
                )
            return CpuEngine(built, num_envs, substeps, starts, self.threads, randomiser)
        from fleetfoot.envs.robot.warp import WarpEngine

        return WarpEngine(built, num_envs, substeps, starts, device, randomiser, self.deterministic)

    def captures(self, on_gpu: bool) -> bool:
        """Is a vec step captured as a CUDA graph?"""
        if self.execution == "captured" and (self.deterministic or not on_gpu):
            raise UserError(
                "captured execution needs the engine 'warp' on a GPU, and excludes deterministic."
            )
        return on_gpu and self.execution != "eager" and not self.deterministic
