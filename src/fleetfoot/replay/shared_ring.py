"""A ring for several writers: actors whose transitions arrive apart.

Each writer has a share of the columns, side by side, and a write head of its own. A slow writer holds up nobody, and
one that is replaced goes on in the same columns after a `cut`. All lies in the one memory of `Ring`, so a sample is
still one gather, whoever wrote its rows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fleetfoot.data import EnvSpec
from fleetfoot.replay.ring import Ring


class Head(NamedTuple):
    """`Ring.size` and `written` of one writer."""

    size: int = 0
    written: int = 0


class SharedRing(Ring):
    """The head that `Ring` knows is that of the writer whose turn it is; reading looks up each column's own."""

    def __init__(
        self,
        spec: EnvSpec,
        rows: int,
        *,
        compact: bool,
        final_share: float,
        device: torch.device,
        writers: int,
    ):
        super().__init__(spec, rows, compact=compact, final_share=final_share, device=device)
        self.writers, self.width = writers, self.columns // writers
        assert self.width * writers == self.columns
        self.heads = [Head()] * writers
        self.shares = self.every_column.view(writers, self.width)
        # Of each column: the rows stored, and the rows dropped before them.
        self.sizes, self.dropped = torch.zeros(2, self.columns, dtype=torch.int64, device=device)
        self.write_as(0)

    def write_as(self, writer: int) -> None:
        self.writer, self.first = writer, writer * self.width
        self.every_column = self.shares[writer]
        self.size, self.written = self.heads[writer]

    def sync_counters(self) -> None:
        """Write down where the writer's head is now."""
        self.heads[self.writer] = Head(self.size, self.written)
        share = slice(self.first, self.first + self.width)
        self.sizes[share] = self.size
        self.dropped[share] = self.written - self.size

    @property
    def stored(self) -> int:
        return sum(head.size for head in self.heads) * self.width

    def trim(self, rows: int) -> Tensor | None:
        gone = []
        for writer in range(self.writers):
            self.write_as(writer)
            if (leaves := super().trim(rows)) is not None:
                gone.append(leaves)
        return torch.cat(gone) if gone else None

    def address(self, age: Tensor, column: Tensor) -> Tensor:
        dropped: Tensor = self.dropped[column]
        return (dropped + age) % self.lines * self.columns + column

    def place(self, address: Tensor) -> tuple[Tensor, Tensor]:
        line = address // self.columns
        column = address - line * self.columns
        return (line - self.dropped.index_select(0, column)) % self.lines, column

    def row_id(self, age: Tensor, column: Tensor) -> Tensor:
        dropped: Tensor = self.dropped[column]
        return (dropped + age) * self.columns + column

    def find(self, row_id: Tensor) -> tuple[Tensor, Tensor]:
        first = self.dropped.index_select(0, row_id % self.columns) * self.columns
        return row_id % (self.lines * self.columns), row_id >= first

    def exists(self, age: Tensor, column: Tensor) -> Tensor:
        size: Tensor = self.sizes[column]
        return age < size

    def uniform_rows(self, u: Tensor) -> tuple[Tensor, Tensor]:
        ends = self.sizes.cumsum(0)
        column = torch.searchsorted(ends, (u[1] * ends[-1]).long(), right=True)
        return (u[0] * self.sizes[column]).long(), column

    def state_dict(self) -> dict[str, Any]:
        heads = [list(head) for head in self.heads]
        return {"heads": heads, "tensors": self.tensors()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if len(state["heads"]) != self.writers:
            raise ValueError(f"{len(state['heads'])} writers filled it, there are {self.writers}")
        for name, tensor in self.tensors().items():
            tensor.copy_(state["tensors"][name])
        for writer, head in enumerate(state["heads"]):
            self.heads[writer] = Head(*head)
            self.write_as(writer)
            self.sync_counters()
