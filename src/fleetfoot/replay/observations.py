"""A memory of observations alone: all that a learner of policies reads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fleetfoot.data import EnvSpec, Obs
from fleetfoot.errors import UserError
from fleetfoot.replay.mirror import make_mirror
from fleetfoot.replay.replay import ReplayConfig
from fleetfoot.replay.ring import ObsStore
from fleetfoot.replay.samplers import Uniform


class Observations:
    """The last T observations of N environments, all equally likely.

    Age and column mean what they mean in `Ring`: with the same seed, and as many rows, both draw the same observations.
    """

    def __init__(self, cfg: ReplayConfig, spec: EnvSpec, *, seed: int, device: torch.device):
        if spec.frame_stack > 1:
            raise UserError(
                f"{spec.name} has stacks of frames, which only a whole replay can keep."
            )
        self.rows, self.columns, self.device = cfg.rows(spec), spec.num_envs, device
        self.obs = _store(cfg, spec, device)
        self.task = torch.tensor(spec.task_ids, device=device) if spec.task_ids else None
        self.sampler = Uniform(seed, device)
        self.mirror = make_mirror(spec, device) if cfg.mirror else None
        self.written = 0
        # For reads, on the device: a read that was recorded once can then be repeated.
        self.num_stored = torch.zeros((), dtype=torch.int64, device=device)
        self.num_dropped = torch.zeros((), dtype=torch.int64, device=device)

    @staticmethod
    def bytes(cfg: ReplayConfig, spec: EnvSpec) -> int:
        """Memory the observations will take, without taking it."""
        tensors = _store(cfg, spec, torch.device("meta")).tensors().values()
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    @staticmethod
    def check_fit(cfg: ReplayConfig, spec: EnvSpec, device: torch.device) -> None:
        compact = Observations.bytes(replace(cfg, storage="bf16"), spec)
        cfg.check_fit(spec, device, Observations.bytes(cfg, spec), compact)

    def append(self, obs: Obs) -> None:
        """One vec step."""
        start = self.written % self.rows * self.columns
        self.obs.write(start, self.obs.parts(obs))
        self.written += 1
        self._moved()

    def _moved(self) -> None:
        size = min(self.written, self.rows)
        self.num_stored.fill_(size)
        self.num_dropped.fill_(self.written - size)

    def uniform_rows(self, u: Tensor) -> tuple[Tensor, Tensor]:
        return (u[0] * self.num_stored).long(), (u[1] * self.columns).long()

    def sample(self, rows: int) -> Obs:
        return self.gather(*self.draw(rows))

    def draw(self, rows: int) -> tuple[Tensor, Tensor]:
        """Age and column of rows; `gather` reads them."""
        drawn = self.sampler.draw(rows, self)
        return drawn.age, drawn.column

    def gather(self, age: Tensor, column: Tensor) -> Obs:
        at = (self.num_dropped + age) % self.rows * self.columns + column
        task = None if self.task is None else self.task.index_select(0, column)
        obs = self.obs.whole(*self.obs.gather(at), task)
        return (
            obs if self.mirror is None else self.mirror.obs(obs, self.mirror.chosen(age + column))
        )

    def state_dict(self) -> dict[str, Any]:
        state = {"written": self.written, "tensors": self.obs.tensors()}
        return state | {"sampler": self.sampler.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, tensor in self.obs.tensors().items():
            tensor.copy_(state["tensors"][name])
        self.written = state["written"]
        self.sampler.load_state_dict(state["sampler"])
        self._moved()


def _store(cfg: ReplayConfig, spec: EnvSpec, device: torch.device) -> ObsStore:
    float_dtype = torch.bfloat16 if cfg.storage == "bf16" else torch.float32
    actor_dtype = torch.uint8 if spec.obs_dtype == torch.uint8 else float_dtype
    rows = cfg.rows(spec) * spec.num_envs
    return ObsStore(
        spec, torch.zeros(rows, *spec.obs_shape, dtype=actor_dtype, device=device), float_dtype
    )
