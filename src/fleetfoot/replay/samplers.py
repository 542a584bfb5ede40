"""Which rows to learn from.

Above 300 lines: half of it is the contract, and the two samplers that keep it are read against each other.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from fleetfoot.config import part
from fleetfoot.errors import UserError
from fleetfoot.replay.evict import EvictionConfig, FifoConfig
from fleetfoot.replay.ring import Ring
from fleetfoot.replay.sum_tree import MinTree, SumTree, last_wins, tree_bytes
from fleetfoot.rng import generator_state, restore_generator

LEAST = 1e-6  # added to every absolute error, so that no row is out of reach
MOST = 1e30  # stands for errors that are infinite, which would make every sum infinite


class Drawn(NamedTuple):
    """Rows that were drawn from the ring."""

    age: Tensor  # [B] int64
    column: Tensor  # [B] int64
    weight: Tensor  # [B] importance weight
    held_out: Drawn | None = None  # rows that are never learned from, where some are held out


class Rows(Protocol):
    """What equally likely rows are drawn from."""

    def uniform_rows(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """Age and column of rows that are all equally likely, from u [2, B] float64, uniform on [0, 1)."""
        ...


class Sampler(Protocol):
    """Draws rows of one ring, and is told of every change to it."""

    prioritised: bool
    """Each update changes what the next one draws."""

    def draw(self, rows: int, ring: Ring) -> Drawn: ...

    def apart(self, seed: int) -> Sampler:
        """Draws from the same rows, all equally likely, with random numbers of its own."""
        ...

    def appended(self, ring: Ring, td_error: Tensor | None, lines: int = 1) -> None:
        """The ring has just taken `lines`; td_error (one per row) is absolute, or None where it is not known yet."""
        ...

    def reprioritize(self, ring: Ring, row_id: Tensor, td_error: Tensor | None) -> None:
        """An update has learned from rows (`Batch.row_id`) and found these absolute errors. Rows that are gone are
        ignored; of a row named twice the last error counts."""
        ...

    def trim(self, ring: Ring, updates: int) -> None:
        """So many updates have been made since the last call: rows beyond the capacity go, if it is time. Nothing else
        that an update needs of a sampler depends on the host, so the rest can be recorded once and repeated."""
        ...

    def readable(self, ring: Ring) -> int:
        """Transitions that can be drawn."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class SamplerConfig(Protocol):
    """The part of a replay that decides which rows are drawn."""

    prioritised: ClassVar[bool]
    """Errors of rows change how likely they are drawn."""

    def check(self, n_step: int) -> None:
        """UserError where rows must not be folded with the n - 1 that follow."""
        ...

    def ring_rows(self, rows: int) -> int:
        """Rows that the ring must have for a capacity of `rows`, both per environment."""
        ...

    def tree_bytes(self, leaves: int) -> int:
        """Memory beside the ring."""
        ...

    def build_sampler(self, ring: Ring, rows: int, seed: int, device: torch.device) -> Sampler:
        """`rows` is the capacity per environment."""
        ...


@part
class UniformConfig:
    """Every row is equally likely."""

    prioritised: ClassVar[bool] = False

    def check(self, n_step: int) -> None:
        """Any will do."""

    def ring_rows(self, rows: int) -> int:
        return rows

    def tree_bytes(self, leaves: int) -> int:
        return 0

    def build_sampler(self, ring: Ring, rows: int, seed: int, device: torch.device) -> Uniform:
        return Uniform(seed, device)


class Uniform:
    """Every row of every environment is equally likely."""

    prioritised = False

    def __init__(self, seed: int, device: torch.device):
        self.device = device
        self.generator = torch.Generator(device).manual_seed(seed)

    def draw(self, rows: int, ring: Rows) -> Drawn:
        return Drawn(*ring.uniform_rows(self.shares(rows)), torch.ones(rows, device=self.device))

    def apart(self, seed: int) -> Uniform:
        return Uniform(seed, self.device)

    def shares(self, rows: int) -> Tensor:
        """[2, B], uniform on [0, 1). float64: float32 has too few steps to reach every row of a large ring."""
        return torch.rand(
            2, rows, generator=self.generator, device=self.device, dtype=torch.float64
        )

    def appended(self, ring: Ring, td_error: Tensor | None, lines: int = 1) -> None:
        """There are no priorities."""

    def reprioritize(self, ring: Ring, row_id: Tensor, td_error: Tensor | None) -> None:
        """There are no priorities."""

    def trim(self, ring: Ring, updates: int) -> None:
        """The ring forgets by itself."""

    def readable(self, ring: Ring) -> int:
        return ring.stored

    def state_dict(self) -> dict[str, Any]:
        return {"generator": generator_state(self.generator)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        restore_generator(self.generator, state["generator"])


@part
class ProportionalConfig:
    """P(row) is proportional to its last absolute error ** alpha (prioritised replay)."""

    prioritised: ClassVar[bool] = True

    alpha: float = 0.6
    """How much errors count; 0: uniform sampling."""
    beta: float = 0.4
    """How much of that the importance weights correct; 1: all of it."""
    stratified: bool = True
    """Sample one row from each of B equal shares of all priorities, instead of B independent rows."""
    largest_weight: Literal["batch", "buffer"] = "batch"
    """Weights are divided by the largest one, either of the batch or of all rows."""
    eviction: EvictionConfig = FifoConfig()

    def __post_init__(self) -> None:
        for name in ("alpha", "beta"):
            if not 0.0 <= getattr(self, name) < math.inf:
                raise UserError(
                    f"replay.sampler.{name} must be 0 or more, not {getattr(self, name)}."
                )

    def check(self, n_step: int) -> None:
        """Any will do."""

    def ring_rows(self, rows: int) -> int:
        return self.eviction.ring_rows(rows)

    def tree_bytes(self, leaves: int) -> int:
        trees = 2 if self.largest_weight == "buffer" else 1
        return trees * tree_bytes(leaves + 1) + self.eviction.tree_bytes(leaves + 1)

    def build_sampler(self, ring: Ring, rows: int, seed: int, device: torch.device) -> Proportional:
        return Proportional(self, ring, rows, seed, device)


class Proportional:
    """P(k) = p_k^alpha / sum_j p_j^alpha with p = |td_error| + 1e-6, and weights (N P(k))^-beta over their largest.

    The tree's leaves are the addresses of the ring, and one more that stands for nowhere. They hold
    p^alpha; rows that cannot be read hold 0. N and the sum cancel in the weights: with m the
    smallest leaf, of the batch or of all, a weight is (leaf / m)^-beta.

    Rows of unknown error get the largest priority so far, which is 1 at first.
    """

    prioritised = True

    def __init__(
        self, cfg: ProportionalConfig, ring: Ring, rows: int, seed: int, device: torch.device
    ):
        self.cfg, self.device = cfg, device
        rows_at_all = ring.lines * ring.columns
        leaves = rows_at_all + 1
        self.nowhere = torch.tensor(rows_at_all, device=device)  # the leaf of no row
        self.tree = SumTree(leaves, device)
        self.smallest = MinTree(leaves, device) if cfg.largest_weight == "buffer" else None
        self.largest = torch.ones((), dtype=torch.float64, device=device)  # priority, before alpha
        self.eviction = cfg.eviction.build_eviction(rows, ring.columns, leaves, seed + 1, device)
        self.generator = torch.Generator(device).manual_seed(seed)
        self.shares: dict[int, Tensor] = {}  # by their number: where each of equal shares begins

    def draw(self, rows: int, ring: Ring) -> Drawn:
        u = self._uniform(rows)
        leaf, value = self.tree.draw(u)
        smallest = value.amin() if self.smallest is None else self.smallest.total()
        weight = (value / smallest).float().pow_(-self.cfg.beta)
        age, column = ring.place(leaf)
        return Drawn(age, column, weight)

    def apart(self, seed: int) -> Uniform:
        return Uniform(seed, self.device)

    def _uniform(self, rows: int) -> Tensor:
        """[rows] float64 on [0, 1): independent, or one from each of `rows` equal shares."""
        if not self.cfg.stratified:
            return self._random(rows, 1.0)
        if rows not in self.shares:
            begins = torch.arange(rows, dtype=torch.float64, device=self.device) / rows
            self.shares[rows] = begins
        return self._random(rows, 1 / rows).add_(self.shares[rows])

    def _random(self, rows: int, most: float) -> Tensor:
        u = torch.empty(rows, dtype=torch.float64, device=self.device)
        return u.uniform_(0.0, most, generator=self.generator)

    def appended(self, ring: Ring, td_error: Tensor | None, lines: int = 1) -> None:
        if td_error is None:
            priority = self.largest.expand(lines * ring.width)
        else:
            priority = self._priority(td_error)
            torch.maximum(self.largest, priority.amax(), out=self.largest)
        # Rows of age -1 have just lost their place, or never had one. Of several lines that did, some are new again.
        lost = min(lines, ring.stack)
        leaf = torch.cat([ring.line(ring.size - lines, lines), ring.line(-lost, lost)])
        self.set_priority(leaf, torch.cat([priority, priority.new_zeros(lost * ring.width)]))
        self._clear(self.eviction.appended(ring, lines))

    def reprioritize(self, ring: Ring, row_id: Tensor, td_error: Tensor | None) -> None:
        if td_error is None:
            raise UserError(
                "this agent reports no errors, so its replay cannot be prioritised: "
                "use --replay.sampler UniformConfig."
            )
        if td_error.shape != row_id.shape:
            raise UserError(
                f"an update must return one td_error for each of its {len(row_id):,} rows, not {list(td_error.shape)}."
            )
        leaf, readable = ring.find(row_id)
        leaf = torch.where(readable, leaf, self.nowhere)
        # Nowhere and rows that were given up hold 0, and keep it.
        priority = self._priority(td_error).mul_(self.tree.get(leaf) > 0)
        torch.maximum(self.largest, priority.amax(), out=self.largest)
        self.set_priority(*last_wins(leaf, priority))

    def trim(self, ring: Ring, updates: int) -> None:
        self._clear(self.eviction.updated(ring, updates))

    def readable(self, ring: Ring) -> int:
        return self.eviction.readable(ring)

    def _priority(self, td_error: Tensor) -> Tensor:
        # One error that is not a number must not spoil the sums of all rows.
        error = td_error.detach().to(self.device, torch.float64).abs()
        return error.nan_to_num_(nan=0.0, posinf=MOST).add_(LEAST)

    def set_priority(self, leaf: Tensor, priority: Tensor) -> None:
        """float64, before alpha; 0: the row cannot be drawn. For equal leaves see `last_wins`."""
        value = priority.pow(self.cfg.alpha)
        if self.cfg.alpha == 0:
            value *= priority > 0
        self.tree.set(leaf, value, distinct=True)
        if self.smallest is not None:
            self.smallest.set(leaf, value.masked_fill(value == 0, torch.inf), distinct=True)
        self.eviction.changed(leaf, priority)

    def _clear(self, leaf: Tensor | None) -> None:
        if leaf is not None:
            zero = torch.zeros(leaf.shape, dtype=torch.float64, device=self.device)
            self.set_priority(leaf, zero)

    def state_dict(self) -> dict[str, Any]:
        state = {
            "generator": generator_state(self.generator),
            "tree": self.tree.state_dict(),
            "largest": self.largest,
            "eviction": self.eviction.state_dict(),
        }
        return state if self.smallest is None else state | {"smallest": self.smallest.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        restore_generator(self.generator, state["generator"])
        self.tree.load_state_dict(state["tree"])
        self.largest.copy_(state["largest"])
        self.eviction.load_state_dict(state["eviction"])
        if self.smallest is not None:
            self.smallest.load_state_dict(state["smallest"])
