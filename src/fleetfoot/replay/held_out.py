"""Rows that nobody learns from: a share of the replay, held out for as long as its rows live.

Whether a row is held out is decided once, when it is appended: by whole episodes, at their first row, or row by row.
Held out are the second and every 1 / share-th from there, counted in a random order among those that begin at once: the
share is exact, and nobody waits for a lucky draw (with 1/16 and a coin for each, one run in 40 has none among 58).
Both sets keep the addresses of their rows in the order they came. Rows leave the ring in that order too, so each set
is a ring of addresses from `num_dropped` to `written`, and one random number names one of its rows, all equally likely
and without a second try. Counters and addresses stay on the device: neither `appended` nor a draw waits for it.
"""

from __future__ import annotations

import copy
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from fleetfoot.config import part
from fleetfoot.errors import UserError
from fleetfoot.replay.ring import Ring
from fleetfoot.replay.samplers import Drawn
from fleetfoot.rng import generator_state, restore_generator


@part
class HeldOutUniformConfig:
    """Uniform sampling, with a share of all rows held out and never learned from (`Batch.held_out`)."""

    prioritised: ClassVar[bool] = False

    share: float = 1 / 16
    """Share of all episodes, or of all rows, that is held out."""
    by: Literal["episode", "transition"] = "episode"
    """The unit that is held out. Neighbours in an episode are similar, so single transitions are less
    independent."""
    rows: int = 256
    """Held-out rows that come with each batch."""

    def __post_init__(self) -> None:
        if not 0.0 < self.share < 1.0:
            raise UserError(f"replay.sampler.share must lie between 0 and 1, not {self.share}.")
        if self.rows < 2:
            raise UserError(f"replay.sampler.rows must be at least 2, not {self.rows}.")

    def check(self, n_step: int) -> None:
        if n_step > 1 and self.by == "transition":
            raise UserError(
                f"a return of {n_step} steps would read the rewards of held-out transitions: use "
                "--replay.sampler.by episode, or --replay.n-step 1."
            )

    def ring_rows(self, rows: int) -> int:
        return rows

    def tree_bytes(self, leaves: int) -> int:
        return leaves * (1 + 2 * address_dtype(leaves).itemsize)

    def build_sampler(
        self, ring: Ring, rows: int, seed: int, device: torch.device
    ) -> HeldOutUniform:
        if ring.writers > 1:
            raise UserError(
                "rows can be held out only if a single process appends: use --topology SynchronousConfig."
            )
        return HeldOutUniform(self, ring, seed, device)


class HeldOutUniform:
    """Draws from both sets at once.

    The very first row (of the first environment, with its episode) is never held out. Should a set be empty all the
    same, its rows have weight 0 and mean nothing.
    """

    prioritised = False

    def __init__(self, cfg: HeldOutUniformConfig, ring: Ring, seed: int, device: torch.device):
        self.cfg, self.device = cfg, device
        leaves = ring.lines * ring.columns
        self.held = torch.zeros(leaves, dtype=torch.bool, device=device)  # by address
        self.training, self.held_out = (
            Addresses(ring.rows * ring.columns, address_dtype(leaves), device) for _ in range(2)
        )
        self.generator = torch.Generator(device).manual_seed(seed)
        # Who is held out does not depend on how often anything is drawn.
        self.membership = torch.Generator(device).manual_seed(seed + 1)
        self.begun = torch.zeros((), dtype=torch.int64, device=device)  # episodes, or rows

    def draw(self, rows: int, ring: Ring) -> Drawn:
        # float64: float32 has too few steps to reach every row of a large ring.
        count = rows + self.cfg.rows
        u = torch.rand(count, generator=self.generator, device=self.device, dtype=torch.float64)
        drawn = self._draw(self.training, u[:rows], ring)
        return drawn._replace(held_out=self._draw(self.held_out, u[rows:], ring))

    def _draw(self, of: Addresses, u: Tensor, ring: Ring) -> Drawn:
        address, any_at_all = of.pick(u)
        age, column = ring.place(address)
        age, column = torch.where(any_at_all, age, 0), torch.where(any_at_all, column, 0)
        return Drawn(age, column, any_at_all.float().expand(len(u)))

    def apart(self, seed: int) -> HeldOutUniform:
        other = copy.copy(self)
        other.generator = torch.Generator(self.device).manual_seed(seed)
        return other

    def appended(self, ring: Ring, td_error: Tensor | None, lines: int = 1) -> None:
        for age in range(ring.size - lines, ring.size):
            self._appended(ring, age)

    def _appended(self, ring: Ring, age: int) -> None:
        """One line, the oldest of those that are new."""
        newest, before = ring.line(age), ring.line(age - 1)
        written = ring.written - ring.size + age + 1  # lines so far
        u = torch.rand(ring.width, generator=self.membership, device=self.device)
        begins = torch.ones_like(u, dtype=torch.bool)
        if written == 1:
            u[0] = -1.0  # the very first: there must be something to learn from
        elif self.cfg.by == "episode":
            begins = ring.ends[before] > 0
        number = self.begun + torch.where(begins, u, 2.0).argsort().argsort()  # the order is random
        self.begun += begins.sum()
        chosen = (number > 0) & (self._quota(number) > self._quota(number - 1))
        chosen = torch.where(begins, chosen, self.held[before])
        self.held[newest] = chosen
        self.training.add(newest, ~chosen)
        self.held_out.add(newest, chosen)
        if written > ring.rows:  # the line that was there before has lost its place
            lost = self.held[ring.line(age - ring.rows)].sum()
            self.held_out.num_dropped += lost
            self.training.num_dropped += ring.width - lost

    def _quota(self, number: Tensor) -> Tensor:
        """How many are held out up to the one of this number (from 0), less one."""
        return ((number - 1).double() * self.cfg.share).floor()

    def reprioritize(self, ring: Ring, row_id: Tensor, td_error: Tensor | None) -> None:
        """There are no priorities."""

    def trim(self, ring: Ring, updates: int) -> None:
        """The ring forgets by itself."""

    def readable(self, ring: Ring) -> int:
        """Of both sets together: how many are in each, only the device knows."""
        return ring.stored

    def state_dict(self) -> dict[str, Any]:
        return {
            "generator": generator_state(self.generator),
            "membership": generator_state(self.membership),
            "begun": self.begun,
            "held": self.held,
            "training": self.training.tensors(),
            "held_out": self.held_out.tensors(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        restore_generator(self.generator, state["generator"])
        restore_generator(self.membership, state["membership"])
        self.begun.copy_(state["begun"])
        self.held.copy_(state["held"])
        for name, addresses in (("training", self.training), ("held_out", self.held_out)):
            for key, tensor in addresses.tensors().items():
                tensor.copy_(state[name][key])


class Addresses:
    """The addresses of one set of rows, oldest first."""

    def __init__(self, capacity: int, dtype: torch.dtype, device: torch.device):
        self.capacity = capacity
        # One more: rows that are not of this set are written there, so that no shape depends on data.
        self.at = torch.zeros(capacity + 1, dtype=dtype, device=device)
        self.written, self.num_dropped = torch.zeros(2, dtype=torch.int64, device=device).unbind()

    def add(self, address: Tensor, members: Tensor) -> None:
        """Those of `address` [k] that are `members` [k] bool."""
        place = (self.written + members.cumsum(0) - 1) % self.capacity
        place = torch.where(members, place, self.capacity)
        self.at.scatter_(0, place, address.to(self.at.dtype))
        self.written += members.sum()

    def pick(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """All equally likely, from u [k] float64, uniform on [0, 1); and, a single bool: are there any?"""
        count = self.written - self.num_dropped
        place = (self.num_dropped + (u * count).long()) % self.capacity
        return self.at.index_select(0, place).long(), count > 0

    def tensors(self) -> dict[str, Tensor]:
        return {"at": self.at, "written": self.written, "num_dropped": self.num_dropped}


def address_dtype(leaves: int) -> torch.dtype:
    return torch.int32 if leaves < 2**31 else torch.int64
