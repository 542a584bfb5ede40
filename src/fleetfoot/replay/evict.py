"""Which rows a prioritised replay gives up when it holds more than its capacity.

A ring cannot fill holes: memory is used again when the write head comes round. Both ways therefore keep some lines
beyond the capacity (`slack`), and *giving a row up* means that it is not drawn any more. Its data stay for the windows
and frame stacks of its neighbours until the head gets there.

Adding never waits. Where rows come faster than they are given up, the ring overwrites its oldest
ones, so there are never more than (1 + slack) times the capacity.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import torch
from torch import Tensor

from fleetfoot.config import part
from fleetfoot.errors import UserError
from fleetfoot.replay.ring import Ring
from fleetfoot.replay.sum_tree import SumTree, first_of_each, tree_bytes
from fleetfoot.rng import generator_state, restore_generator


class Eviction(Protocol):
    """Says which leaves (addresses of the ring) become unreadable; the sampler clears them and tells it so."""

    def changed(self, leaf: Tensor, priority: Tensor) -> None:
        """Priorities have changed; 0: the row cannot be drawn any more. Of equal leaves the last counts."""
        ...

    def appended(self, ring: Ring, lines: int) -> Tensor | None:
        """Leaves to clear after `lines` were appended, if any."""
        ...

    def updated(self, ring: Ring, updates: int) -> Tensor | None:
        """Leaves to clear after `updates` of the learner, if any."""
        ...

    def readable(self, ring: Ring) -> int:
        """Transitions that can be drawn."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class EvictionConfig(Protocol):
    """The part of a sampler that decides which rows leave a full replay."""

    def ring_rows(self, rows: int) -> int:
        """Rows that the ring must have for a capacity of `rows`, both per environment."""
        ...

    def tree_bytes(self, leaves: int) -> int: ...

    def build_eviction(
        self, rows: int, columns: int, leaves: int, seed: int, device: torch.device
    ) -> Eviction:
        """`rows` is the capacity per environment. The last of the `leaves` belongs to no row."""
        ...


@part
class FifoConfig:
    """A soft capacity: the excess is dropped periodically, the oldest rows first."""

    every_updates: int = 100
    """Updates between two trims."""
    slack: float = 0.05
    """Extra room between two trims, as a share of the capacity. 0: a hard capacity."""

    def __post_init__(self) -> None:
        if self.every_updates < 1 or not 0.0 <= self.slack < math.inf:
            raise UserError(
                "replay.sampler.eviction needs every_updates of at least 1 and a slack of 0 or more, "
                f"not {self.every_updates} and {self.slack}."
            )

    def ring_rows(self, rows: int) -> int:
        return math.ceil(rows * (1 + self.slack))

    def tree_bytes(self, leaves: int) -> int:
        return 0

    def build_eviction(
        self, rows: int, columns: int, leaves: int, seed: int, device: torch.device
    ) -> Fifo:
        return Fifo(self, rows)


class Fifo:
    """Drops the oldest rows."""

    def __init__(self, cfg: FifoConfig, rows: int):
        self.every, self.rows = cfg.every_updates, rows
        self.updates = 0

    def changed(self, leaf: Tensor, priority: Tensor) -> None:
        """Age alone decides."""

    def appended(self, ring: Ring, lines: int) -> None:
        return None

    def updated(self, ring: Ring, updates: int) -> Tensor | None:
        before, self.updates = self.updates, self.updates + updates
        return None if before // self.every == self.updates // self.every else ring.trim(self.rows)

    def readable(self, ring: Ring) -> int:
        return ring.stored

    def state_dict(self) -> dict[str, Any]:
        return {"updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.updates = state["updates"]


@part
class InverseConfig:
    """A hard capacity: rows to drop are drawn at random, low priorities more likely (Ape-X DPG)."""

    exponent: float = -0.4
    """P(row is dropped) is proportional to priority ** exponent."""
    slack: float = 1.0
    """Extra room for rows that outlive others, as a share of the capacity. With 1, a row can live up to twice
    as long as in first-in-first-out order, and the replay takes twice the memory."""

    def __post_init__(self) -> None:
        if not 0.0 < self.slack < math.inf or not -math.inf < self.exponent <= 0:
            raise UserError(
                "replay.sampler.eviction needs a slack above 0 and an exponent of 0 or less, "
                f"not {self.slack} and {self.exponent}."
            )

    def ring_rows(self, rows: int) -> int:
        return math.ceil(rows * (1 + self.slack))

    def tree_bytes(self, leaves: int) -> int:
        return tree_bytes(leaves)

    def build_eviction(
        self, rows: int, columns: int, leaves: int, seed: int, device: torch.device
    ) -> Inverse:
        return Inverse(self, rows * columns, leaves, seed, device)


class Inverse:
    """Draws without replacement: of twice as many candidates as rows came in, the first distinct ones go.

    Should the candidates be so alike that they do not suffice, the rest goes after the next append.
    """

    def __init__(
        self, cfg: InverseConfig, capacity: int, leaves: int, seed: int, device: torch.device
    ):
        self.exponent, self.capacity, self.nowhere = cfg.exponent, capacity, leaves - 1
        self.tree = SumTree(leaves, device)
        self.count = torch.zeros((), dtype=torch.int64, device=device)  # rows that can be drawn
        self.generator = torch.Generator(device).manual_seed(seed)

    def changed(self, leaf: Tensor, priority: Tensor) -> None:
        readable = priority > 0
        # Leaves named twice stay what they are, readable or not, so each counts once.
        self.count += readable.sum() - (self.tree.get(leaf) > 0).sum()
        chance = torch.where(readable, priority, 1.0).pow(self.exponent)
        self.tree.set(leaf, torch.where(readable, chance, 0.0), distinct=True)

    def appended(self, ring: Ring, lines: int) -> Tensor | None:
        u = torch.rand(
            2 * ring.width * lines,
            generator=self.generator,
            device=self.count.device,
            dtype=torch.float64,
        )
        if ring.stored <= self.capacity:
            return None
        leaf = self.tree.draw(u).leaf
        first = first_of_each(leaf)
        goes = first & (first.cumsum(0) <= self.count - self.capacity)
        return torch.where(goes, leaf, self.nowhere)

    def updated(self, ring: Ring, updates: int) -> None:
        return None

    def readable(self, ring: Ring) -> int:
        return min(ring.stored, self.capacity)

    def state_dict(self) -> dict[str, Any]:
        return {
            "tree": self.tree.state_dict(),
            "count": self.count,
            "generator": generator_state(self.generator),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.tree.load_state_dict(state["tree"])
        self.count.copy_(state["count"])
        restore_generator(self.generator, state["generator"])
