"""What adapters of simulators share that give numpy arrays and do not tell their state."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fleetfoot.data import EnvSpec, Obs
from fleetfoot.envs.info import InfoRows
from fleetfoot.errors import UserError


def seeds_of_copies(seed: int, num_envs: int) -> list[int]:
    """32 bits each, of nothing but (seed, i): the same for any number of copies."""
    words = (
        np.random.SeedSequence(seed % 2**64, spawn_key=(i,)).generate_state(1)
        for i in range(num_envs)
    )
    return [int(word[0]) for word in words]


class NoState:
    """The half of `VecEnv` that saves and restores, where the simulator cannot."""

    spec: EnvSpec
    why_no_state: ClassVar[str]

    def state_dict(self) -> None:
        return None

    def load_state_dict(self, state: dict[str, Any]) -> Obs:
        raise UserError(f"{self.spec.name} cannot be restored: {self.why_no_state}.")


class HostEnv(NoState):
    """Arrays of a simulator on the CPU, as tensors on the device of the set."""

    def _tensor(self, array: NDArray[Any]) -> Tensor:
        """Shares its memory on a CPU: the array must be new, and nobody may write to it again."""
        return torch.from_numpy(array).to(self.spec.device)

    def _obs(self, rows: NDArray[Any]) -> Obs:
        actor = self._tensor(rows)
        return Obs(actor, actor)

    def _log_rows(self, info: InfoRows) -> dict[str, Tensor]:
        rows = info.rows()
        if not rows:
            return {}
        return dict(zip(rows, self._tensor(np.stack(list(rows.values()))), strict=True))
