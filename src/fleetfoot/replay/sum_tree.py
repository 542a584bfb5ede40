"""Trees over the leaves of a replay: set many leaves at once, draw leaves in proportion to their values.

Every node has `FAN` children that lie side by side, so a level is a table [nodes, FAN] and a step
down or up the tree is one gather of whole rows. That is a binary tree with several steps taken as
one, and the topmost steps, where at most `TOP` nodes are left, are one search among all of them.
Two million leaves then take three steps, each a few operations on all items together: for batches
of some hundred items an operation costs little more than its call, and what is left is the wait for
memory that no cache holds, so few operations and short rows are what makes it fast. A node is
always computed anew from all its children, never incremented, so nothing drifts however often
leaves change. All of it stays on the device; nothing here waits for data.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

FAN = 16  # of float64: two cache lines
TOP = 16384
BELOW = 1 - 1e-11  # more than what adding up TOP numbers in another order can change


class Found(NamedTuple):
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
        self.top = torch.full((top,), self.nothing, dtype=torch.float64, device=device)

    @staticmethod
    def combine(rows: Tensor) -> Tensor:
        """Nodes [k] from their children [k, FAN]."""
        raise NotImplementedError

    def total(self) -> Tensor:
        """What all leaves come to, a scalar."""
        return self.combine(self.top.unsqueeze(0))[0]

    def get(self, leaf: Tensor) -> Tensor:
        return self.levels[0].view(-1).index_select(0, leaf)

    def set(self, leaf: Tensor, value: Tensor, *, distinct: bool = False) -> None:
        """Give leaves ([k] int64) new values ([k]). Of equal leaves the last counts; `distinct` promises that there are
        none, or none with different values."""
        at: Tensor | None = leaf  # None: everywhere
        if not distinct:
            at, value = last_wins(leaf, value)
        value = value.to(torch.float64)
        for level in self.levels:
            if at is not None:
                level.view(-1).scatter_(0, at, value)
            else:
                level.view(-1)[: value.shape[0]] = value
            # Where as many leaves changed as the level has rows, computing all rows is less work than finding theirs.
            if at is not None and level.shape[0] > at.shape[0]:
                at = at // FAN
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
        self.zero = torch.zeros((), dtype=torch.float64, device=device)
        self.in_order = device.type == "cpu"  # one number after the other is how it adds up
        self.sums: Sums | None = None

    @staticmethod
    def combine(rows: Tensor) -> Tensor:
        return rows.sum(1)

    def set(self, leaf: Tensor, value: Tensor, *, distinct: bool = False) -> None:
        super().set(leaf, value, distinct=distinct)
        self.sums = None

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        super().load_state_dict(state)
        self.sums = None

    def top_sums(self) -> Sums:
        """Of the top as it is; several draws may follow one change, except where draws are recorded and repeated."""
        if self.sums is None or not self.in_order:
            ends = self.top.cumsum(0)
            total = ends[-1]
            self.sums = Sums(ends, ends - self.top, self.top * BELOW, total, total * BELOW)
        return self.sums

    def total(self) -> Tensor:
        return self.top_sums().total

    def find(self, mass: Tensor) -> Found:
        """Lay the leaves side by side, each as wide as its value; which of them lies at `mass`?

        mass [k] float64 in [0, total). The total itself, where rounding leads to it, finds the last leaf. Some leaf
        must be above 0.
        """
        return self._below_top(torch.minimum(mass, self.top_sums().most))

    def draw(self, u: Tensor) -> Found:
        """Leaves in proportion to their values, from u [k] float64, uniform on [0, 1]. Some leaf must be above 0."""
        return self._below_top(u * self.top_sums().most)

    def _below_top(self, mass: Tensor) -> Found:
        top = self.top_sums()
        node = torch.searchsorted(top.ends, mass, right=True)
        mass = mass - top.starts.index_select(0, node)
        # A node and the last of its children's `ends` are one sum in two orders: stay clear of the difference.
        most = top.mosts.index_select(0, node)
        mass = torch.clamp_(mass, self.zero, most).unsqueeze(1)
        for level in self.levels[:0:-1]:
            values = level.index_select(0, node)  # [k, FAN]
            ends = values.cumsum(1)
            child = place_in(ends, mass)
            value = values.gather(1, child)
            mass = mass - (ends.gather(1, child) - value)
            mass = torch.clamp_(mass, self.zero, value.mul_(BELOW))
            node = torch.add(child.view(-1), node, alpha=FAN)
        values = self.levels[0].index_select(0, node)
        child = place_in(values.cumsum(1), mass)
        value = values.gather(1, child).view(-1)
        node = torch.add(child.view(-1), node, alpha=FAN)
        if self.in_order:
            return Found(node, value)
        # A device that adds up in parallel may end a child of 0 later than the one before it, by a rounding.
        found, sound = value > 0, value.argmax(0, keepdim=True)
        return Found(
            torch.where(found, node, node.index_select(0, sound)),
            torch.where(found, value, value.index_select(0, sound)),
        )


class Sums(NamedTuple):
    """Of the nodes at the top, laid side by side."""

    ends: Tensor  # [top]
    starts: Tensor  # [top]
    mosts: Tensor  # [top] the largest mass to look for below each
    total: Tensor
    most: Tensor  # the largest mass to look for


def place_in(ends: Tensor, mass: Tensor) -> Tensor:
    """[k, 1]: how many ends of each row [k, FAN] are not above the row's mass [k, 1].

    That is a binary search, but short rows are counted faster than searched: nothing has to be guessed.
    """
    return (ends <= mass).sum(1, keepdim=True)


class MinTree(Tree):
    """The smallest leaf. Leaves that do not count are infinite."""

    nothing = torch.inf

    @staticmethod
    def combine(rows: Tensor) -> Tensor:
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
    """The same pairs, sorted by leaf, equal leaves all with the value of the last of them.

    Whatever order a device writes them in, the outcome is then the same.
    """
    leaf, order = leaf.sort(stable=True)
    last = torch.searchsorted(leaf, leaf, right=True) - 1
    return leaf, value.index_select(0, order.index_select(0, last))


def first_of_each(leaf: Tensor) -> Tensor:
    """[k] bool: no equal leaf stands before this one."""
    ordered, order = leaf.sort(stable=True)
    new = torch.ones_like(leaf, dtype=torch.bool)
    new[1:] = ordered[1:] != ordered[:-1]
    return torch.empty_like(new).scatter_(0, order, new)
