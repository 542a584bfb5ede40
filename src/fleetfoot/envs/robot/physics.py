"""How the physics of robots is computed, and the engine that does it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch

from fleetfoot.envs.robot.cpu import CpuEngine
from fleetfoot.envs.robot.engine import Engine, Starts
from fleetfoot.envs.robot.randomise import Randomiser
from fleetfoot.envs.robot.robot import Built
from fleetfoot.errors import UserError

EngineName: TypeAlias = Literal["auto", "cpu", "warp"]
Execution: TypeAlias = Literal["auto", "eager", "recorded"]


@dataclass(frozen=True, kw_only=True)
class PhysicsConfig:
    """How the physics is computed. A control step is `substeps` of `timestep` seconds."""

    timestep: float = 0.004
    substeps: int = 5
    engine: EngineName = "auto"
    threads: int = 0  # of the CPU engine; 0: as many as there are usable cores
    execution: Execution = "auto"
    # On a GPU too the same seed gives the same bits. Warp cannot record that: vec steps are eager, and much slower.
    deterministic: bool = False

    def __post_init__(self) -> None:
        if self.threads < 0 or self.substeps < 1 or not self.timestep > 0.0:
            raise UserError("threads must be 0 or more, substeps at least 1, timestep above 0.")

    def home(self, device: torch.device) -> torch.device:
        """Where engine and task compute, for observations on `device`."""
        warp = self.engine == "warp" or (self.engine == "auto" and device.type == "cuda")
        return device if warp else torch.device("cpu")

    def build(
        self,
        built: Built,
        num_envs: int,
        starts: Starts,
        device: torch.device,
        randomiser: Randomiser | None,
    ) -> Engine:
        """The engine, for observations on `device`."""
        home, substeps = self.home(device), self.substeps
        if self.engine != "warp" and home.type == "cpu":
            return CpuEngine(built, num_envs, substeps, starts, self.threads, randomiser)
        from fleetfoot.envs.robot.warp import WarpEngine

        return WarpEngine(built, num_envs, substeps, starts, home, randomiser, self.deterministic)

    def records(self, on_gpu: bool) -> bool:
        """Is a vec step recorded as a CUDA graph?"""
        if self.execution == "recorded" and (self.deterministic or not on_gpu):
            raise UserError(
                "recorded execution needs the engine 'warp' on a GPU, and excludes deterministic."
            )
        return on_gpu and self.execution != "eager" and not self.deterministic
