"""Backward through bias and ReLU in one pass over memory."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS, COLUMNS = 64, 64  # of one tile
SHARES = 128  # of the rows; each sums up its own part of the bias gradient


@triton.jit
def _kernel(gradient, out, through, sums, rows, columns, gradient_member, gradient_row,
            out_member, out_row, RELU: tl.constexpr, ROWS_EACH: tl.constexpr,
            SHARES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # fmt: skip
    member = tl.program_id(2).to(tl.int64)
    share = tl.program_id(1)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < columns
    total = tl.zeros([COLUMNS], tl.float32)
    end = tl.minimum(rows, (share + 1) * ROWS_EACH)
    for done in range(0, ROWS_EACH, ROWS):
        row = (share * ROWS_EACH + done + tl.arange(0, ROWS)).to(tl.int64)
        here = (row < end)[:, None] & inside[None, :]
        from_above = member * gradient_member + row[:, None] * gradient_row + column[None, :]
        g = tl.load(gradient + from_above, mask=here, other=0.0)
        if RELU:
            at = member * out_member + row[:, None] * out_row + column[None, :]
            kept = tl.load(out + at, mask=here, other=0.0)
            g = tl.where(kept > 0, g, 0.0)
            tl.store(through + at, g, mask=here)
        total += tl.sum(g.to(tl.float32), axis=0)
    tl.store(sums + (member * SHARES + share) * columns + column, total, mask=inside)


@triton.jit
def _add_up(sums, total, columns, SHARES: tl.constexpr, COLUMNS: tl.constexpr):
    member = tl.program_id(1)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    share = tl.arange(0, SHARES)
    at = (member * SHARES + share)[:, None] * columns + column[None, :]
    parts = tl.load(sums + at, mask=(column < columns)[None, :], other=0.0)
    tl.store(total + member * columns + column, tl.sum(parts, axis=0), mask=column < columns)


def relu_backward(gradient: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
    """gradient, out [E, B, K] -> the gradient before the ReLU, laid out like `out`, and its sum over B, [E, K]."""
    through = torch.empty_like(out)
    return through, _run(gradient, out, through, relu=True)


def sum_rows(gradient: Tensor) -> Tensor:
    """[E, B, K] -> [E, K], summed up in float32."""
    return _run(gradient, gradient, gradient, relu=False)


def _run(gradient: Tensor, out: Tensor, through: Tensor, relu: bool) -> Tensor:
    ensemble_size, rows, columns = out.shape
    if gradient.stride(2) != 1:
        gradient = gradient.contiguous()
    sums = torch.empty(ensemble_size, SHARES, columns, dtype=torch.float32, device=out.device)
    total = torch.empty(ensemble_size, columns, dtype=out.dtype, device=out.device)
    width = triton.cdiv(columns, COLUMNS)
    _kernel[(width, SHARES, ensemble_size)](
        gradient, out, through, sums, rows, columns, gradient.stride(0), gradient.stride(1),
        out.stride(0), out.stride(1), RELU=relu, ROWS_EACH=triton.cdiv(rows, SHARES),
        SHARES=SHARES, ROWS=ROWS, COLUMNS=COLUMNS,
    )  # fmt: skip
    _add_up[(width, ensemble_size)](sums, total, columns, SHARES=SHARES, COLUMNS=COLUMNS)
    return total
