"""Backward through bias and ReLU in one pass over memory."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS, COLUMNS = 32, 256  # of one tile
WARPS = 4
SHARES = 128  # of the rows; each sums up its own part of the bias gradient


@triton.jit
def _kernel(gradient, out, through, sums, rows, columns, gradient_member, gradient_row,
            out_member, out_row, ROWS_EACH: tl.constexpr, SHARES: tl.constexpr,
            ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # fmt: skip
    member = tl.program_id(2).to(tl.int64)
    share = tl.program_id(1)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < columns
    total = tl.zeros([COLUMNS], tl.float32)
    end = tl.minimum(rows, (share + 1) * ROWS_EACH)
    for done in range(0, ROWS_EACH, ROWS):
        row = (share * ROWS_EACH + done + tl.arange(0, ROWS)).to(tl.int64)
        here = (row < end)[:, None] & inside[None, :]
        at = member * out_member + row[:, None] * out_row + column[None, :]
        from_above = member * gradient_member + row[:, None] * gradient_row + column[None, :]
        g = tl.load(gradient + from_above, mask=here, other=0.0)
        kept = tl.load(out + at, mask=here, other=0.0)
        g = tl.where(kept > 0, g, 0.0)
        tl.store(through + at, g, mask=here)
        total += tl.sum(g.to(tl.float32), axis=0)
    tl.store(sums + (member * SHARES + share) * columns + column, total, mask=inside)


def relu_backward(gradient: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
    """gradient, out [E, B, K] -> the gradient before the ReLU, laid out like `out`, and its sum over B, [E, K]."""
    members, rows, columns = out.shape
    if gradient.stride(2) != 1:
        gradient = gradient.contiguous()
    through = torch.empty_like(out)
    sums = torch.empty(members, SHARES, columns, dtype=torch.float32, device=out.device)
    grid = (triton.cdiv(columns, COLUMNS), SHARES, members)
    _kernel[grid](
        gradient, out, through, sums, rows, columns, gradient.stride(0), gradient.stride(1),
        out.stride(0), out.stride(1), ROWS_EACH=triton.cdiv(rows, SHARES), SHARES=SHARES,
        ROWS=ROWS, COLUMNS=COLUMNS, num_warps=WARPS,
    )  # fmt: skip
    return through, sums.sum(1).to(out.dtype)
