"""Trees over the leaves of a replay: set many leaves at once, draw leaves in proportion to their values.

Every node has `FAN` children that lie side by side, so a level is a table [nodes, FAN] and a step
down or up the tree is one gather of whole rows. That is a binary tree with several steps taken as
one, and the topmost steps, where at most `TOP` nodes are left, are one search among all of them,
whose running sums are kept. Two million leaves then take three steps, each a few operations on all
items together: for batches of some hundred items an operation costs little more than its call, and
what is left is the wait for memory that no cache holds, so few operations and short rows are what
makes it fast. A node is always computed anew from all its children, never incremented, so nothing
drifts however often leaves change. All of it stays on the device, in memory that is never replaced;
nothing here waits for data.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

FAN = 16  # of float64: two cache lines
TOP = 16384
BELOW = 1 - 2**-50  # times the total: still below it however a product is rounded
ABOVE = 1 + 2**-52  # times a mass: just beyond it
LEAST = 1e-300  # a mass above 0


class Found(NamedTuple):
    """Leaves that were drawn from the tree."""

    leaf: Tensor  # [k] int64
    value: Tensor  # [k] float64, above zero


class Tree:
    """Leaves 0..leaves-1 in float64, and what the leaves below each node come to."""

    nothing: float  # the value of a leaf that does not count

    def __init__(self, leaves: int, device: torch.device):
        *rows, top = level_sizes(leaves)
        self.levels = [  # leaves first
            torch.full((count, FAN), self.nothing, dtype=torch.float64, device=device)
            for count in rows
        ]
        self.flat = [level.view(-1) for level in self.levels]  # the same memory
        self.top = torch.full((top,), self.nothing, dtype=torch.float64, device=device)
        self.fan = torch.tensor(FAN, device=device)

    def combine(self, rows: Tensor) -> Tensor:
        """Nodes [k] from their children [k, FAN]."""
        raise NotImplementedError

    def total(self) -> Tensor:
        """What all leaves come to, a scalar."""
        return self.combine(self.top.unsqueeze(0))[0]

    def get(self, leaf: Tensor) -> Tensor:
        return self.flat[0].index_select(0, leaf)

    def set(self, leaf: Tensor, value: Tensor, *, distinct: bool = False) -> None:
        """Give leaves ([k] int64) new values ([k]). Of equal leaves the last counts; `distinct` promises that there are
        none, or none with different values."""
        at: Tensor | None = leaf  # None: everywhere
        if not distinct:
            at, value = last_wins(leaf, value)
        value = value.to(torch.float64)
        for level, flat in zip(self.levels, self.flat, strict=True):
            if at is not None:
                flat.scatter_(0, at, value)
            else:
                flat[: value.shape[0]] = value
            # Where as many leaves changed as the level has rows, computing all rows is less work than finding theirs.
            if at is not None and level.shape[0] > at.shape[0]:
                at = torch.div(at, self.fan, rounding_mode="trunc")
                value = self.combine(level.index_select(0, at))
            else:
                at, value = None, self.combine(level)
        if at is not None:
            self.top.scatter_(0, at, value)
        else:
            self.top.copy_(value)

    def bytes(self) -> int:
        return sum(level.nbytes for level in self.state_dict().values())

    def state_dict(self) -> dict[str, Tensor]:
        return {f"level{depth}": level for depth, level in enumerate([*self.levels, self.top])}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        for name, level in self.state_dict().items():
            level.copy_(state[name])


class SumTree(Tree):
    """Leaves are 0 or more. A leaf of 0 is never found."""

    nothing = 0.0

    def __init__(self, leaves: int, device: torch.device):
        super().__init__(leaves, device)
        self.in_order = device.type == "cpu"  # one number after the other is how it adds up
        self.ones = torch.ones(FAN, dtype=torch.float64, device=device)
        self.below = torch.tensor(BELOW, dtype=torch.float64, device=device)
        self.least = torch.tensor(LEAST, dtype=torch.float64, device=device)
        # The nodes of the top laid side by side: `edges` are where the first begins and where each ends, `ends` the
        # latter in rows, of which the last is filled up with ends that no mass reaches.
        nodes = len(self.top)
        rows = -(-nodes // FAN)
        self.edges = torch.full((rows * FAN + 1,), torch.inf, dtype=torch.float64, device=device)
        self.edges[0] = 0.0
        self.top_ends, self.top_end = self.edges[1 : nodes + 1], self.edges[nodes]
        self.ends = self.edges[1:].view(rows, FAN)
        self.last_ends = self.ends[:, -1]
        self.row_ends = self.last_ends.clone()
        self.most = torch.zeros_like(self.least)  # the largest mass to look for
        self._add_up()

    def combine(self, rows: Tensor) -> Tensor:
        return rows.mv(self.ones)

    def set(self, leaf: Tensor, value: Tensor, *, distinct: bool = False) -> None:
        super().set(leaf, value, distinct=distinct)
        self._add_up()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        super().load_state_dict(state)
        self._add_up()

    def _add_up(self) -> None:
        torch.cumsum(self.top, 0, out=self.top_ends)
        self.row_ends.copy_(self.last_ends)
        torch.mul(self.top_end, self.below, out=self.most)

    def total(self) -> Tensor:
        return self.top_end.clone()

    def find(self, mass: Tensor) -> Found:
        """Lay the leaves side by side, each as wide as its value; which of them lies at `mass`?

        mass [k] float64 in [0, total). The total itself, where rounding leads to it, finds the last leaf. Some leaf
        must be above 0.
        """
        # Where two leaves meet the later one is meant.
        return self._find(torch.minimum(mass * ABOVE, self.most))

    def draw(self, u: Tensor) -> Found:
        """Leaves in proportion to their values, from u [k] float64, uniform on [0, 1]. Some leaf must be above 0."""
        return self._find(u * self.most)

    def _find(self, mass: Tensor) -> Found:
        """Where two leaves meet it is either of them."""
        # A search guesses at every step and pays for each that is wrong, so it is among few; the rest is counting how
        # many end before the mass, in short rows. Counts, and with them nodes, are float64, because the product of a
        # matrix with a vector is the shortest way to add up rows and more: FAN * node + count.
        row = torch.searchsorted(self.row_ends, mass, right=True)
        before = self.ends.index_select(0, row).le_(mass.unsqueeze(1))
        place = torch.addmv(row.double(), before, self.ones, beta=FAN)
        node = place.long()
        mass = mass - self.edges.index_select(0, node)
        for level in self.levels[:0:-1]:
            values = level.index_select(0, node)  # [k, FAN]
            before = self._before(mass, values)
            place = torch.addmv(place, before, self.ones, beta=FAN)
            node = place.long()
            mass = torch.addmv(mass, before.mul_(values), self.ones, alpha=-1)
        before = self._before(mass, self.levels[0].index_select(0, node))
        leaf = torch.addmv(place, before, self.ones, beta=FAN).long()
        value = self.get(leaf)
        if self.in_order:
            return Found(leaf, value)
        # A device that adds up in parallel may end a child of 0 later than the one before it, by a rounding.
        is_positive, largest = value > 0, value.argmax(0, keepdim=True)
        return Found(
            torch.where(is_positive, leaf, leaf.index_select(0, largest)),
            torch.where(is_positive, value, value.index_select(0, largest)),
        )

    def _before(self, mass: Tensor, values: Tensor) -> Tensor:
        """[k, FAN] 1 or 0: does a child end before the mass [k] of its row? `mass` is moved into the row."""
        ends = values.cumsum(1)
        # A node and the last of its children's ends are one sum in two orders, so a mass may lie outside by a rounding.
        # At the last end itself it finds the last child above 0.
        mass.clamp_(self.least, ends.select(1, FAN - 1))
        return ends.lt_(mass.unsqueeze(1))  # in place, which takes half the time


class MinTree(Tree):
    """The smallest leaf. Leaves that do not count are infinite."""

    nothing = torch.inf

    def combine(self, rows: Tensor) -> Tensor:
        return rows.amin(1)


def level_sizes(leaves: int) -> list[int]:
    """Rows of each level, leaves first, and at last the number of nodes at the top."""
    sizes = [-(-leaves // FAN)]
    while sizes[-1] > TOP:
        sizes.append(-(-sizes[-1] // FAN))
    return [*sizes, sizes[-1]]


def tree_bytes(leaves: int) -> int:
    """Memory of a tree, without building it."""
    *rows, top = level_sizes(leaves)
    return 8 * (FAN * sum(rows) + top)


def last_wins(leaf: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """The same pairs, written so that of equal leaves the last counts.

    A CPU writes one after the other, so there nothing has to be done. Other devices write in any order: there the pairs
    are sorted by leaf, and equal leaves all get the value of the last.
    """
    if leaf.device.type == "cpu":
        return leaf, value
    leaf, order = leaf.sort(stable=True)
    last = torch.searchsorted(leaf, leaf, right=True) - 1
    return leaf, value.index_select(0, order.index_select(0, last))


def first_of_each(leaf: Tensor) -> Tensor:
    """[k] bool: no equal leaf stands before this one."""
    ordered, order = leaf.sort(stable=True)
    new = torch.ones_like(leaf, dtype=torch.bool)
    new[1:] = ordered[1:] != ordered[:-1]
    return torch.empty_like(new).scatter_(0, order, new)
