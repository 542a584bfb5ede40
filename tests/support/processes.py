"""Any Gymnasium id in processes that several environments share, as HumanoidBench's are."""

from __future__ import annotations

from dataclasses import field
from typing import Any, ClassVar

import torch

from fleetfoot.config import part
from fleetfoot.envs.subprocess.env import ProcessEnv


@part
class ProcessesConfig:
    on_host: ClassVar[bool] = True

    id: str = "Pendulum-v1"
    processes: int = 1
    kwargs: dict[str, Any] = field(default_factory=dict[str, Any])

    def build(self, num_envs: int, seed: int, device: torch.device) -> ProcessEnv:
        name = f"gym/{self.id.rpartition(':')[2]}"
        return ProcessEnv(name, self.id, self.kwargs, num_envs, self.processes, seed, device)

    def for_evaluation(self) -> ProcessesConfig:
        return self
