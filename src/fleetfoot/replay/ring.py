"""Ring storage: the last T rows of N environments, each observation stored once.

Row t of an environment holds (obs, action, reward, ends). Its next observation is the
observation of row t + 1, which is
already there: `append` writes `next_obs` into the line ahead, where the coming row will write the same values again.
Only where an episode ended do the two differ. Those true last observations live in a side table, and the row keeps the
number of its entry.

The ring has T + 1 lines of N rows: T that can be read, and one ahead of the write head that
holds nothing but the newest
next observation. Memory is flat: line s, column c is at address s * N + c. What depends on data stays on the device, so
that neither `append` nor a read waits for it.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from fleetfoot.data import Discrete, EnvSpec, Obs, Transition

TERMINATED = 1
TRUNCATED = 2


class ObsStore:
    """Observations by address, without storing twice what actor and critic share."""

    def __init__(self, spec: EnvSpec, length: int, dtype: torch.dtype, device: torch.device):
        self.prefix = spec.critic_prefix
        self.out_dtype = spec.obs_dtype
        kept = torch.uint8 if spec.obs_dtype == torch.uint8 else dtype
        self.critic_dtype = spec.critic_dtype
        self.actor = torch.zeros(length, *spec.obs_shape, dtype=kept, device=device)
        self.privileged: Tensor | None = None
        if spec.critic_shape is not None:
            first, *rest = spec.critic_shape
            shape = (first - self.prefix, *rest)
            kept = torch.uint8 if spec.critic_dtype == torch.uint8 else dtype
            self.privileged = torch.zeros(length, *shape, dtype=kept, device=device)

    def write(self, start: int, obs: Obs) -> None:
        """Rows at consecutive addresses."""
        self.actor[start : start + obs.actor.shape[0]] = obs.actor
        if self.privileged is not None:
            self.privileged[start : start + obs.actor.shape[0]] = obs.critic[:, self.prefix :]

    def scatter(self, at: Tensor, obs: Obs) -> None:
        self.actor[at] = obs.actor.to(self.actor.dtype)
        if self.privileged is not None:
            self.privileged[at] = obs.critic[:, self.prefix :].to(self.privileged.dtype)

    def gather(self, at: Tensor) -> tuple[Tensor, Tensor | None]:
        """The parts that are stored; `whole` puts them together."""
        privileged = None if self.privileged is None else self.privileged.index_select(0, at)
        return self.actor.index_select(0, at), privileged

    def whole(self, actor: Tensor, privileged: Tensor | None, task: Tensor | None) -> Obs:
        actor = actor.to(self.out_dtype)
        if privileged is None:
            return Obs(actor, actor, task)
        privileged = privileged.to(self.critic_dtype)
        if self.prefix:
            privileged = torch.cat([actor[:, : self.prefix], privileged], dim=1)
        return Obs(actor, privileged, task)

    def tensors(self) -> dict[str, Tensor]:
        kept = {"actor": self.actor}
        return kept if self.privileged is None else kept | {"privileged": self.privileged}


class Ring:
    """Rows are named by age and column: age 0 is the oldest row stored, `size - 1` the newest."""

    def __init__(
        self, spec: EnvSpec, rows: int, *, compact: bool, final_share: float, device: torch.device
    ):
        self.rows, self.lines, self.columns = rows, rows + 1, spec.num_envs
        self.exact_final_obs = spec.exact_final_obs
        length = self.lines * self.columns
        obs_dtype = torch.bfloat16 if compact else torch.float32
        self.obs = ObsStore(spec, length, obs_dtype, device)
        if isinstance(spec.action, Discrete):
            self.action = torch.zeros(length, dtype=torch.int64, device=device)
        else:
            # float16 resolves [-1, 1] to 2^-11 or better, well below any exploration noise.
            kept = torch.float16 if compact else torch.float32
            self.action = torch.zeros(length, spec.action.size, dtype=kept, device=device)
        self.reward = torch.zeros(length, device=device)
        self.ends = torch.zeros(length, dtype=torch.uint8, device=device)
        self.entry = torch.zeros(length, dtype=torch.int32, device=device)
        self.finals = final_entries(spec, rows, final_share)
        # One entry more than `finals`: rows that did not end write there, so that no shape depends on data.
        self.final_obs = ObsStore(spec, self.finals + 1, obs_dtype, device)
        self.final_owner = torch.full((self.finals + 1,), -1, dtype=torch.int64, device=device)
        self.final_count = torch.zeros((), dtype=torch.int64, device=device)
        self.task = torch.tensor(spec.task_ids, device=device) if spec.task_ids else None
        self.every_column = torch.arange(self.columns, device=device)
        self.head = 0  # the line that the next row will take
        self.size = 0  # rows stored, per environment
        self.written = 0  # rows ever written, per environment

    def append(self, step: Transition) -> None:
        start = self.head * self.columns
        self.head = (self.head + 1) % self.lines
        self.obs.write(start, step.obs)
        self.obs.write(self.head * self.columns, step.next_obs)
        line = slice(start, start + self.columns)
        self.action[line] = step.action
        self.reward[line] = step.reward
        self.ends[line] = step.terminated * TERMINATED + step.truncated * TRUNCATED
        self._keep_finals(line, self.written, step.terminated | step.truncated, step.next_obs)
        self.written += 1
        self.size = min(self.size + 1, self.rows)

    def cut(self) -> None:
        """Mark a break after the newest row: what is appended next does not follow from it.

        Rows whose episode was running become truncated, their last observation being the one stored ahead.
        """
        if self.size == 0:
            return
        start = (self.head - 1) % self.lines * self.columns
        line = slice(start, start + self.columns)
        running = self.ends[line] == 0
        self.ends[line] += running * TRUNCATED
        ahead = self.obs.gather(self.head * self.columns + self.every_column)
        self._keep_finals(line, self.written - 1, running, self.obs.whole(*ahead, None))

    def _keep_finals(self, line: slice, row: int, ended: Tensor, last: Obs) -> None:
        place = (self.final_count + torch.cumsum(ended, 0) - 1) % self.finals
        place = torch.where(ended, place, self.finals)
        self.final_obs.scatter(place, last)
        self.final_owner[place] = row * self.columns + self.every_column
        self.entry[line] = torch.where(ended, place, self.entry[line]).to(torch.int32)
        self.final_count += ended.sum()

    def address(self, age: Tensor, column: Tensor) -> Tensor:
        return (self.head - self.size + age) % self.lines * self.columns + column

    def row_id(self, age: Tensor, column: Tensor) -> Tensor:
        """A number that names a row for ever, also after another has taken its place."""
        return (self.written - self.size + age) * self.columns + column

    def obs_at(self, age: Tensor, column: Tensor) -> Obs:
        return self.obs.whole(*self.obs.gather(self.address(age, column)), self._task(column))

    def next_obs_at(self, age: Tensor, column: Tensor, ended: Tensor) -> tuple[Obs, Tensor]:
        """The observation that followed each row, and whether it is the true one.

        It is not where the simulator lost it, nor where the row's entry in the side table has been taken by a newer
        episode; such a row gets its own observation instead.
        """
        own, ahead = self.address(age, column), self.address(age + 1, column)
        entry = torch.where(ended, self.entry.index_select(0, own), self.finals).long()
        kept = self.final_owner.index_select(0, entry) == self.row_id(age, column)
        if not self.exact_final_obs:
            kept = torch.zeros_like(kept)
        actor, privileged = self.obs.gather(torch.where(ended & ~kept, own, ahead))
        final_actor, final_privileged = self.final_obs.gather(entry)
        use_final = ended & kept
        actor = torch.where(_like(use_final, actor), final_actor, actor)
        if privileged is not None and final_privileged is not None:
            privileged = torch.where(_like(use_final, privileged), final_privileged, privileged)
        return self.obs.whole(actor, privileged, self._task(column)), kept | ~ended

    def _task(self, column: Tensor) -> Tensor | None:
        return None if self.task is None else self.task.index_select(0, column)

    def tensors(self) -> dict[str, Tensor]:
        """Everything stored, by name."""
        obs = {f"obs.{k}": v for k, v in self.obs.tensors().items()}
        final = {f"final_obs.{k}": v for k, v in self.final_obs.tensors().items()}
        plain = ("action", "reward", "ends", "entry", "final_owner", "final_count")
        return obs | final | {name: getattr(self, name) for name in plain}

    def bytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in self.tensors().values())

    def state_dict(self) -> dict[str, Any]:
        numbers = {"head": self.head, "size": self.size, "written": self.written}
        return {**numbers, "tensors": self.tensors()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, tensor in self.tensors().items():
            tensor.copy_(state["tensors"][name])
        self.head, self.size, self.written = state["head"], state["size"], state["written"]


def final_entries(spec: EnvSpec, rows: int, share: float) -> int:
    """Room for last observations: a share of all rows, and never less than the time limit alone needs."""
    by_share = math.ceil(rows * spec.num_envs * share)
    by_limit = 0
    if spec.episode_length:
        by_limit = (math.ceil(rows / spec.episode_length) + 1) * spec.num_envs
    return min(max(by_share, by_limit, spec.num_envs), (rows + 1) * spec.num_envs)


def _like(flag: Tensor, x: Tensor) -> Tensor:
    """[B] shaped so that it broadcasts against [B, ...]."""
    return flag.view(-1, *([1] * (x.dim() - 1)))
