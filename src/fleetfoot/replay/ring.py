"""Ring storage: the last T rows of N environments, each observation stored once.

Row t of an environment holds (obs, action, reward, ends). Its next observation is the observation of row t + 1, which
is already there: `append` writes `next_obs` into the line ahead, where the coming row will write the same values again.
Only where an episode ended do the two differ. Where it was truncated, a target needs the true last observation: it goes
into a side table, and the row stores the number of its entry. After a termination nothing is worth anything, so that
observation is not stored at all.

The ring has T + 1 lines of N rows: T that can be read, and one ahead of the write head that holds nothing but the
newest next observation. Memory is flat: line s, column c is at address s * N + c. What depends on data stays on the
device, so that neither `append` nor a read waits for it.

Of a stack of frames a row keeps the newest alone, and `frames.py` says where the others are.

Above 300 lines, because writing and reading share one address arithmetic, which is easier to check in one place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fleetfoot.data import Discrete, EnvSpec, Obs, Transition
from fleetfoot.replay.frames import LOST_FRAME, check_stack, link

TERMINATED = 1
TRUNCATED = 2

Parts = tuple[Tensor, Tensor | None]  # of an observation: what the actor sees, what is privileged


class ObsStore:
    """Observations by address, without storing twice what actor and critic share. Of a stack of frames, the newest."""

    def __init__(self, spec: EnvSpec, actor: Tensor, dtype: torch.dtype):
        """`actor`: the memory for what the actor sees; its rows are the addresses."""
        self.prefix, self.stack = spec.critic_prefix, spec.frame_stack
        self.actor = actor
        self.privileged: Tensor | None = None
        if spec.critic_shape is not None:
            first, *rest = spec.critic_shape
            shape = (first - self.prefix, *rest)
            private_dtype = torch.uint8 if spec.critic_dtype == torch.uint8 else dtype
            self.privileged = torch.zeros(
                len(actor), *shape, dtype=private_dtype, device=actor.device
            )

    def parts(self, obs: Obs) -> Parts:
        """What of `obs` is stored."""
        actor = obs.actor if self.stack == 1 else obs.actor[:, -1]
        return actor, None if self.privileged is None else obs.critic[:, self.prefix :]

    def write(self, start: int, parts: Parts) -> None:
        """Rows at consecutive addresses."""
        actor, privileged = parts
        self.actor[start : start + actor.shape[0]] = actor
        if self.privileged is not None and privileged is not None:
            self.privileged[start : start + actor.shape[0]] = privileged

    def scatter(self, at: Tensor, parts: Parts) -> None:
        actor, privileged = parts
        self.actor[at] = actor.to(self.actor.dtype)
        if self.privileged is not None and privileged is not None:
            self.privileged[at] = privileged.to(self.privileged.dtype)

    def gather(self, at: Tensor) -> Parts:
        """The parts that are stored; `whole` puts them together."""
        privileged = None if self.privileged is None else self.privileged.index_select(0, at)
        return self.actor.index_select(0, at), privileged

    def whole(self, actor: Tensor, privileged: Tensor | None, task: Tensor | None) -> Obs:
        # As stored: the networks' normalisers widen what they read, and a batch in bfloat16 is half to write and read.
        if privileged is None:
            return Obs(actor, actor, task)
        if self.prefix:
            privileged = torch.cat([actor[:, : self.prefix], privileged], dim=1)
        return Obs(actor, privileged, task)

    def tensors(self) -> dict[str, Tensor]:
        tensors = {"actor": self.actor}
        return tensors if self.privileged is None else tensors | {"privileged": self.privileged}


class Ring:
    """Rows are named by age and column: age 0 is the oldest row stored, `size - 1` the newest."""

    writers = 1  # how many append; `SharedRing` has several

    def __init__(
        self, spec: EnvSpec, rows: int, *, compact: bool, final_share: float, device: torch.device
    ):
        check_stack(spec)
        self.stack = spec.frame_stack
        self.rows, self.lines, self.columns = rows, rows + self.stack, spec.num_envs
        self.exact_final_obs = spec.exact_final_obs
        length = self.lines * self.columns
        obs_dtype = torch.bfloat16 if compact else torch.float32
        self.links: Tensor | None = None
        self.blank = length  # the address of a frame that is never written
        if self.stack > 1:
            # Bit b - 1: the frame b rows back is that row's own; otherwise it is blank.
            self.links = torch.zeros(length, dtype=torch.uint8, device=device)
            self.back = torch.arange(self.stack - 1, -1, -1, device=device)
        self.finals = final_entries(spec, rows, final_share)
        # What actors see lies in one memory, the rows first and then the side table: a read is then one gather.
        self.first_final = length + (self.stack > 1)
        actor_dtype = torch.uint8 if spec.obs_dtype == torch.uint8 else obs_dtype
        shape = spec.obs_shape if self.stack == 1 else spec.obs_shape[1:]
        # One entry more than `finals`: rows that were not truncated write there, so that no shape depends on data.
        count = self.first_final + self.finals + 1
        self.actor_memory = torch.zeros(count, *shape, dtype=actor_dtype, device=device)
        self.obs = ObsStore(spec, self.actor_memory[: self.first_final], obs_dtype)
        self.final_obs = ObsStore(spec, self.actor_memory[self.first_final :], obs_dtype)
        if isinstance(spec.action, Discrete):
            self.action = torch.zeros(length, dtype=torch.int64, device=device)
        else:
            # float16 resolves [-1, 1] to 2^-11 or better, well below any exploration noise.
            action_dtype = torch.float16 if compact else torch.float32
            self.action = torch.zeros(length, spec.action.size, dtype=action_dtype, device=device)
        self.reward = torch.zeros(length, device=device)
        self.ends = torch.zeros(length, dtype=torch.uint8, device=device)
        self.entry = torch.zeros(length, dtype=torch.int32, device=device)
        self.final_owner = torch.full((self.finals + 1,), -1, dtype=torch.int64, device=device)
        self.final_count = torch.zeros((), dtype=torch.int64, device=device)
        self.task = torch.tensor(spec.task_ids, device=device) if spec.task_ids else None
        self.first, self.width = 0, self.columns  # the columns that a row is written to
        self.every_column = torch.arange(self.columns, device=device)
        self.size = 0  # rows stored, per environment
        self.written = 0  # rows ever written, per environment
        # The same two for reads, on the device: a read that was recorded once can then be repeated as the ring goes on.
        self.num_stored = torch.zeros((), dtype=torch.int64, device=device)  # size
        self.num_dropped = torch.zeros((), dtype=torch.int64, device=device)  # written - size

    @property
    def head(self) -> int:
        """The line that the next row will take."""
        return self.written % self.lines

    def sync_counters(self) -> None:
        """Tell the device after `size` or `written` has changed."""
        self.num_stored.fill_(self.size)
        self.num_dropped.fill_(self.written - self.size)

    def write_as(self, writer: int) -> None:
        """Whose rows come next: `append`, `cut` and `line` then mean this writer's columns."""
        assert writer == 0

    def append(self, step: Transition) -> None:
        start = self._start(self.head)
        line = slice(start, start + self.width)
        if self.links is not None:
            self.links[line] = self._find_frames(step.obs.actor)
        following = self.obs.parts(step.next_obs)
        self.obs.write(start, self.obs.parts(step.obs))
        self.obs.write(self._start((self.head + 1) % self.lines), following)
        self.action[line] = step.action
        self.reward[line] = step.reward
        self.ends[line] = step.terminated * TERMINATED + step.truncated * TRUNCATED
        owner = self.written * self.columns + self.every_column
        self._store_finals(line, owner, step.truncated, following)
        self.written += 1
        self.size = min(self.size + 1, self.rows)
        self.sync_counters()

    def append_lines(self, steps: Sequence[Transition]) -> None:
        """What `append` makes of one after the other, in a few operations for all of them. At most `rows`."""
        count = len(steps)
        assert count <= self.rows
        line = self.head + torch.arange(count, device=self.reward.device).unsqueeze(1)  # [L, 1]
        at = (line % self.lines * self.columns + self.every_column).flatten()
        after = [self.obs.parts(step.next_obs) for step in steps]
        self.obs.scatter(at, _together([self.obs.parts(step.obs) for step in steps]))
        self.obs.write(self._start((self.head + count) % self.lines), after[-1])
        if self.links is not None:  # after the frames: rows of these very lines are looked for, too
            links = torch.zeros_like(at, dtype=torch.uint8)
            for back in range(1, self.stack):
                earlier = ((line - back) % self.lines * self.columns + self.every_column).flatten()
                frame = torch.cat([step.obs.actor[:, -1 - back] for step in steps])
                links |= link(back, frame, self.obs.actor.index_select(0, earlier))
            self.links[at] = links
        self.action[at] = torch.cat([step.action for step in steps]).to(self.action.dtype)
        self.reward[at] = torch.cat([step.reward for step in steps])
        terminated = torch.cat([step.terminated for step in steps])
        truncated = torch.cat([step.truncated for step in steps])
        self.ends[at] = (terminated * TERMINATED + truncated * TRUNCATED).to(torch.uint8)
        owner = (line - self.head + self.written) * self.columns + self.every_column
        self._store_finals(at, owner.flatten(), truncated, _together(after))
        self.written += count
        self.size = min(self.size + count, self.rows)
        self.sync_counters()

    def _find_frames(self, stacks: Tensor) -> Tensor:
        """`links` of rows about to be written at the head, from their whole stacks [N, S, H, W]."""
        links = torch.zeros(self.width, dtype=torch.uint8, device=stacks.device)
        for back in range(1, self.stack):
            start = self._start((self.head - back) % self.lines)
            earlier = self.obs.actor[start : start + self.width]
            links |= link(back, stacks[:, -1 - back], earlier)
        return links

    def _start(self, line: int) -> int:
        """The address where writing into a line begins."""
        return line * self.columns + self.first

    @property
    def stored(self) -> int:
        """Rows stored, of all environments together."""
        return self.size * self.columns

    def trim(self, rows: int) -> Tensor | None:
        """Keep the newest `rows` per environment; tells the addresses that cannot be read any more, if any."""
        excess = self.size - rows
        if excess <= 0:
            return None
        start = (self.written - self.size) % self.lines
        age = torch.arange(excess, device=self.every_column.device).unsqueeze(1)
        self.size -= excess
        self.sync_counters()
        return ((start + age) % self.lines * self.columns + self.every_column).flatten()

    def mark_break(self) -> None:
        """Mark a break after the newest row: what is appended next does not follow from it.

        Rows whose episode was running become truncated, their last observation being the one stored ahead.
        """
        if self.size == 0:
            return
        start = self._start((self.head - 1) % self.lines)
        line = slice(start, start + self.width)
        running = self.ends[line] == 0
        self.ends[line] += running * TRUNCATED
        ahead = self.obs.gather(self.head * self.columns + self.every_column)
        owner = (self.written - 1) * self.columns + self.every_column
        self._store_finals(line, owner, running, ahead)

    def _store_finals(
        self, line: slice | Tensor, owner: Tensor, truncated: Tensor, last: Parts
    ) -> None:
        """The last observations of those rows at `line`, with the names `owner`, that were truncated."""
        place = (self.final_count + torch.cumsum(truncated, 0) - 1) % self.finals
        place = torch.where(truncated, place, self.finals)
        self.final_obs.scatter(place, last)
        self.final_owner[place] = owner
        self.entry[line] = torch.where(truncated, place, self.entry[line]).to(torch.int32)
        self.final_count += truncated.sum()

    def address(self, age: Tensor, column: Tensor) -> Tensor:
        return (self.num_dropped + age) % self.lines * self.columns + column

    def place(self, address: Tensor) -> tuple[Tensor, Tensor]:
        """Age and column of what is at an address: the inverse of `address`."""
        line = address // self.columns
        age = (line - self.num_dropped).remainder_(self.lines)
        return age, torch.add(address, line, alpha=-self.columns)

    def exists(self, age: Tensor, column: Tensor) -> Tensor:
        """Is there a row of this age (0 or more), or is it yet to come?"""
        return age < self.num_stored

    def uniform_rows(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """Age and column of rows that are all equally likely, from u [2, B] float64, uniform on [0, 1)."""
        return (u[0] * self.num_stored).long(), (u[1] * self.columns).long()

    def line(self, age: int, count: int = 1) -> Tensor:
        """Addresses of the rows of one age, or of `count` ages from it on, in the columns that are written to."""
        first = self.written - self.size + age
        if count == 1:
            return first % self.lines * self.columns + self.every_column
        line = torch.arange(first, first + count, device=self.every_column.device) % self.lines
        return (line.unsqueeze(1) * self.columns + self.every_column).flatten()

    def row_id(self, age: Tensor, column: Tensor) -> Tensor:
        """A number that names a row for ever, also after another has taken its place."""
        return torch.add(column, self.num_dropped + age, alpha=self.columns)

    def find(self, row_id: Tensor) -> tuple[Tensor, Tensor]:
        """Addresses of rows by their names, and [k] bool: can they still be read?"""
        return row_id % (self.lines * self.columns), row_id >= self.num_dropped * self.columns

    def obs_at(self, age: Tensor, column: Tensor) -> tuple[Obs, Tensor]:
        """The observations of rows, and [B] bool: are they as they were seen? (Always, but for stacks of frames.)"""
        address = self.address(age, column)
        actor, whole = self._actor_at(age, column, address, following=False)
        memory = self.obs.privileged
        privileged = None if memory is None else memory.index_select(0, address)
        return self.obs.whole(actor, privileged, self._task(column)), whole

    def next_obs_at(self, age: Tensor, column: Tensor, ended: Tensor) -> tuple[Obs, Tensor]:
        """The observation that followed each row, and whether it is the true one.

        It is not after a termination, nor where the simulator lost it, nor where the row's entry in the side table has
        been taken by a newer episode; such a row gets its own observation instead (of a stack, its newest frame).
        """
        address, ahead = self.address(age, column), self.address(age + 1, column)
        entry = torch.where(ended, self.entry.index_select(0, address), self.finals).long()
        is_stored = self.final_owner.index_select(0, entry) == self.row_id(age, column)
        if not self.exact_final_obs:
            is_stored = torch.zeros_like(is_stored)
        use_final = ended & is_stored
        stored = torch.where(ended & ~is_stored, address, ahead)
        newest = torch.where(use_final, self.first_final + entry, stored)
        actor, whole = self._actor_at(age, column, newest, following=True)
        privileged = None
        if self.obs.privileged is not None and self.final_obs.privileged is not None:
            privileged = self.obs.privileged.index_select(0, stored)
            final = self.final_obs.privileged.index_select(0, entry)
            privileged = torch.where(_like(use_final, privileged), final, privileged)
        return self.obs.whole(actor, privileged, self._task(column)), whole & (is_stored | ~ended)

    def _actor_at(
        self, age: Tensor, column: Tensor, newest: Tensor, *, following: bool
    ) -> tuple[Tensor, Tensor]:
        """What actors saw, with the newest frame at the places `newest` of `actor_memory`, and whether it is whole.

        The older frames of a stack are those of the row, or (`following`) of the one after it, whether or not that is
        stored: within an episode a stack moves on by one frame, also to the true last observation.
        """
        if self.links is None:
            return self.actor_memory.index_select(0, newest), torch.ones_like(age, dtype=torch.bool)
        at = self.address(age.unsqueeze(1) - self.back, column.unsqueeze(1))  # [B, S], oldest first
        links = self.links.index_select(0, at[:, -1])
        # 2 * links + 1: the frame 0 rows back is always the row's own.
        is_own_frame = (links.long() * 2 + 1).unsqueeze(1) >> self.back & 1
        at = torch.where(is_own_frame > 0, at, self.blank)
        older = at[:, 1:] if following else at[:, :-1]
        at = torch.cat([older, newest.unsqueeze(1)], 1)
        frames = self.actor_memory.index_select(0, at.flatten())
        return frames.view(*at.shape, *frames.shape[1:]), links < LOST_FRAME

    def _task(self, column: Tensor) -> Tensor | None:
        return None if self.task is None else self.task.index_select(0, column)

    def tensors(self) -> dict[str, Tensor]:
        """Everything stored, by name."""
        obs = {f"obs.{k}": v for k, v in self.obs.tensors().items()}
        final = {f"final_obs.{k}": v for k, v in self.final_obs.tensors().items()}
        plain = ("action", "reward", "ends", "entry", "final_owner", "final_count")
        links = {} if self.links is None else {"links": self.links}
        return obs | final | links | {name: getattr(self, name) for name in plain}

    def bytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in self.tensors().values())

    def state_dict(self) -> dict[str, Any]:
        return {"size": self.size, "written": self.written, "tensors": self.tensors()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if not 0 <= state["size"] <= min(self.rows, state["written"]):
            raise ValueError(f"{state['size']} rows cannot be stored in {self.rows}")
        entry = state["tensors"]["entry"]
        if not bool(((entry >= 0) & (entry <= self.finals)).all()):  # it is an index
            raise ValueError("entries of the side table lie outside of it")
        for name, tensor in self.tensors().items():
            tensor.copy_(state["tensors"][name])
        self.size, self.written = state["size"], state["written"]
        self.sync_counters()


def final_entries(spec: EnvSpec, rows: int, share: float) -> int:
    """Entries for truncated episodes: a share of all rows, and never fewer than the time limit needs."""
    by_share = math.ceil(rows * spec.num_envs * share)
    by_limit = 0
    if spec.episode_length:
        by_limit = (math.ceil(rows / spec.episode_length) + 1) * spec.num_envs
    return min(max(by_share, by_limit, spec.num_envs), (rows + 1) * spec.num_envs)


def _together(parts: Sequence[Parts]) -> Parts:
    actor = torch.cat([actor for actor, _ in parts])
    private = [privileged for _, privileged in parts if privileged is not None]
    return actor, torch.cat(private) if private else None


def _like(flag: Tensor, x: Tensor) -> Tensor:
    """[B] shaped so that it broadcasts against [B, ...]."""
    return flag.view(-1, *([1] * (x.dim() - 1)))
