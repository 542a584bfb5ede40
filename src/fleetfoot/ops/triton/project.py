"""Projections of all weights of a network at once: the twin of what `ops/project.py` says in plain torch.

The weights are anywhere in memory, so a table on the device tells each program the address of its share.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

ELEMENTS, WARPS = 16_384, 8  # of one program, at most; it holds them all


class Table(NamedTuple):
    """The rows of many weights, for one launch."""

    rows: Tensor  # int64, a row for each program
    size: int  # of the largest


@triton.jit
def _units(table, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    entry = table + tl.program_id(0) * 4
    first = tl.load(entry).to(tl.pointer_type(tl.float32))
    rows, apart, columns = tl.load(entry + 1), tl.load(entry + 2), tl.load(entry + 3)
    row, column = tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS)[None, :]
    here = (row < rows) & (column < columns)
    at = first + row * apart + column
    w = tl.load(at, mask=here, other=0.0)
    length = tl.sqrt(tl.sum(w * w, axis=0))
    tl.store(at, w / tl.maximum(length, 1e-8)[None, :], mask=here)


@triton.jit
def _lengths(table, SIZE: tl.constexpr):
    entry = table + tl.program_id(0) * 4
    first = tl.load(entry).to(tl.pointer_type(tl.float32))
    second = tl.load(entry + 1).to(tl.pointer_type(tl.float32))
    size = tl.load(entry + 2)
    k = tl.arange(0, SIZE)
    here = k < size
    there = k < tl.load(entry + 3)
    x = tl.load(first + k, mask=here, other=0.0)
    y = tl.load(second + k, mask=there, other=0.0)
    squares = tl.sum(x * x, axis=0) + tl.sum(y * y, axis=0)
    factor = tl.sqrt(size.to(tl.float32)) / tl.sqrt(squares + 1e-8)
    tl.store(first + k, x * factor, mask=here)
    tl.store(second + k, y * factor, mask=there)


def tables_of_units(weights: Sequence[Tensor]) -> list[Table]:
    """One for each size, rounded up to a power of two, of what enters the layers."""
    found: dict[int, list[list[int]]] = {}
    for weight in weights:
        inputs, outputs = _checked(weight).shape[-2:]
        size = triton.next_power_of_2(inputs)
        step = max(1, ELEMENTS // size)
        for matrix in weight.detach().view(-1, inputs, outputs):
            for column in range(0, outputs, step):
                address = matrix.data_ptr() + 4 * column
                row = [address, inputs, outputs, min(step, outputs - column)]
                found.setdefault(size, []).append(row)
    device = weights[0].device
    return [Table(torch.tensor(rows, device=device), size) for size, rows in found.items()]


def table_of_vectors(vectors: Sequence[tuple[Tensor, ...]]) -> Table:
    """One or two vectors that belong together, with or without members."""
    rows = []
    for together in vectors:
        size = _checked(together[0]).shape[-1]
        for member in range(together[0].numel() // size):
            places = [_checked(vector).data_ptr() + 4 * member * size for vector in together]
            rows.append([places[0], places[-1], size, size * (len(places) - 1)])
    table = torch.tensor(rows, device=vectors[0][0].device)
    return Table(table, triton.next_power_of_2(max(row[2] for row in rows)))


def unit_columns_(table: Table) -> None:
    columns = max(1, ELEMENTS // table.size)
    _units[(len(table.rows),)](table.rows, ROWS=table.size, COLUMNS=columns, num_warps=WARPS)


def root_length_(table: Table) -> None:
    _lengths[(len(table.rows),)](table.rows, SIZE=table.size, num_warps=4)


def _checked(tensor: Tensor) -> Tensor:
    if tensor.dtype != torch.float32 or not tensor.is_contiguous():
        raise ValueError("weights are projected in place, so they must be contiguous and float32")
    return tensor
