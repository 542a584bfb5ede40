"""What surrounds the matrix products of `ops/flash_net.py`.

A BatchNorm takes two passes over its features. The first adds up columns in parts of the rows, a small kernel adds up
the parts, and the second pass uses the sums. Measured on an H200: the last program of the first pass could add up the
parts as well, and so could each program of the second, but neither gained anything.

More than 300 lines: all passes of one operation, forward and backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor


class Tile(NamedTuple):
    """What a program has in its registers at a time: so many rows and columns, in so many warps."""

    rows: int
    columns: int
    warps: int


SUMS = Tile(16, 64, 1)  # of passes that add up columns
AHEAD = 5  # tiles that they load before they need them
PROGRAMS = 1024  # of such a pass, about
ELEMENTS = Tile(32, 64, 2)  # of the other passes
PARTS = 64  # of the rows, at most
FINISHED = 32  # columns that one program of the small kernel adds up
WARPS = 4
RMS_ROWS, RMS_PARTS = 8, 128


def _over(features: Tensor, members: int) -> tuple[int, dict[str, int]]:
    """Into how many parts rows are cut, and the options of a kernel that adds up columns."""
    wanted = PROGRAMS // (triton.cdiv(features.shape[-1], SUMS.columns) * members)
    parts, tiles = _cut(features.shape[-2], SUMS.rows, min(PARTS, wanted))
    options = {"TILES": tiles, "ROWS": SUMS.rows, "COLUMNS": SUMS.columns, "AHEAD": AHEAD}
    return parts, options | {"num_warps": SUMS.warps}


def _cut(rows: int, of_tile: int, most: int) -> tuple[int, int]:
    """Into how many parts rows are cut, and how many tiles each has."""
    tiles, parts = rows // of_tile, 1
    while parts < most and tiles % (2 * parts) == 0:
        parts *= 2
    return parts, tiles // parts


def _shared(groups: int, members: int, learning: int) -> tuple[int, int]:
    """`share` and `cycle`: the group of a member is member % cycle // share."""
    return (1, members) if groups == members else (learning // groups, learning)


@triton.jit
def _columns(block, columns, COLUMNS: tl.constexpr):
    column = block * COLUMNS + tl.arange(0, COLUMNS)
    return column, column < columns


@triton.jit
def _statistics_kernel(x, partial, columns, x_group, x_row, share, cycle,
                       TILES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
                       AHEAD: tl.constexpr):  # fmt: skip
    part, parts, member = tl.program_id(1), tl.num_programs(1), tl.program_id(2)
    column, inside = _columns(tl.program_id(0), columns, COLUMNS)
    first = (part * TILES * ROWS).to(tl.int64)
    source = x + (member % cycle // share).to(tl.int64) * x_group + first * x_row
    # Squares of differences from one of the rows: those of numbers far from zero would lose their digits.
    pivot = tl.load(source + column, mask=inside, other=0.0).to(tl.float32)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    squares = tl.zeros([ROWS, COLUMNS], tl.float32)
    for tile in tl.range(0, TILES, num_stages=AHEAD):
        row = (tile * ROWS + tl.arange(0, ROWS)).to(tl.int64)
        at = row[:, None] * x_row + column[None, :]
        v = tl.load(source + at, mask=inside[None, :], other=0.0).to(tl.float32) - pivot[None, :]
        total += v
        squares += v * v
    off = tl.sum(total, axis=0) / (TILES * ROWS)
    spread = tl.maximum(tl.sum(squares, axis=0) - off * off * (TILES * ROWS), 0.0)
    at = (member * parts + part) * 2 * columns + column
    tl.store(partial + at, pivot + off, mask=inside)
    tl.store(partial + at + columns, spread, mask=inside)


@triton.jit
def _finish_statistics_kernel(partial, old_mean, old_variance, stats, rows, columns, momentum, eps,
                              PARTS: tl.constexpr, COLUMNS: tl.constexpr):  # fmt: skip
    member, members = tl.program_id(1), tl.num_programs(1)
    column, inside = _columns(tl.program_id(0), columns, COLUMNS)
    each = member * PARTS + tl.arange(0, PARTS)
    at = each[:, None] * 2 * columns + column[None, :]
    means = tl.load(partial + at, mask=inside[None, :], other=0.0)
    spreads = tl.load(partial + at + columns, mask=inside[None, :], other=0.0)
    mean = tl.sum(means, axis=0) / PARTS
    apart = means - mean[None, :]
    whole = tl.sum(spreads + apart * apart * (rows // PARTS), axis=0)
    at, size = member * columns + column, members * columns
    tl.store(stats + at, mean, mask=inside)
    tl.store(stats + size + at, tl.rsqrt(whole / rows + eps), mask=inside)
    old = tl.load(old_mean + at, mask=inside, other=0.0)
    tl.store(stats + 2 * size + at, old + momentum * (mean - old), mask=inside)
    old = tl.load(old_variance + at, mask=inside, other=0.0)
    unbiased = whole / (rows - 1)
    tl.store(stats + 3 * size + at, old + momentum * (unbiased - old), mask=inside)


@triton.jit
def _norm(stats, scale, shift, member, members, columns, column, inside):
    """Mean, 1 / root(variance), the factors and the bases of some columns."""
    at = member * columns + column
    mean = tl.load(stats + at, mask=inside, other=0.0)
    root = tl.load(stats + members * columns + at, mask=inside, other=0.0)
    factor = root * tl.load(scale + at, mask=inside, other=0.0)
    return mean, root, factor, tl.load(shift + at, mask=inside, other=0.0)


@triton.jit
def _normalise_kernel(y, stats, scale, shift, plus, out, columns, width, y_group, y_row,
                      plus_member, out_member, share, cycle, RELU: tl.constexpr,
                      PLUS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # fmt: skip
    member = tl.program_id(2)
    column, inside = _columns(tl.program_id(0), columns, COLUMNS)
    row = (tl.program_id(1) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    source = y + (member % cycle // share).to(tl.int64) * y_group
    v = tl.load(source + row[:, None] * y_row + column[None, :], mask=inside[None, :], other=0.0)
    mean, _, factor, base = _norm(
        stats, scale, shift, member, tl.num_programs(2), columns, column, inside
    )
    v = (v.to(tl.float32) - mean[None, :]) * factor[None, :] + base[None, :]
    if RELU:
        v = tl.maximum(v, 0.0)
    at = row[:, None] * width + column[None, :]
    room = (column < width)[None, :]
    if PLUS:
        source = plus + member.to(tl.int64) * plus_member
        v += tl.load(source + at, mask=room, other=0.0).to(tl.float32)
    tl.store(out + member.to(tl.int64) * out_member + at, v.to(out.dtype.element_ty), mask=room)


def normalise(
    y: Tensor,
    norm: Sequence[Tensor],
    plus: Tensor | None,
    out: Tensor,
    *,
    relu: bool,
    learning: int,
    momentum: float,
    eps: float,
) -> Tensor:
    mean, variance, scale, shift = norm
    groups, rows, columns = y.shape
    members, _, width = out.shape
    parts, over = _over(y, members)
    shared = _shared(groups, members, learning)
    stats = torch.empty(4, members, columns, dtype=torch.float32, device=y.device)
    partial = torch.empty(members, parts, 2, columns, dtype=torch.float32, device=y.device)
    _statistics_kernel[(triton.cdiv(columns, SUMS.columns), parts, members)](
        y, partial, columns, y.stride(0), y.stride(1), *shared, **over
    )
    _finish_statistics_kernel[(triton.cdiv(columns, FINISHED), members)](
        partial, mean, variance, stats, rows, columns, momentum, eps,
        PARTS=parts, COLUMNS=FINISHED, num_warps=WARPS,
    )  # fmt: skip
    residual = y if plus is None else plus
    tile = ELEMENTS
    _normalise_kernel[(triton.cdiv(width, tile.columns), rows // tile.rows, members)](
        y, stats, scale, shift, residual, out, columns, width, y.stride(0), y.stride(1),
        residual.stride(0), out.stride(0), *shared, RELU=relu, PLUS=plus is not None,
        ROWS=tile.rows, COLUMNS=tile.columns, num_warps=tile.warps,
    )  # fmt: skip
    return stats


@triton.jit
def _through(gradient, y, mean, root, factor, base, row, g_row, y_row, column, inside,
             RELU: tl.constexpr):  # fmt: skip
    """The gradient before the ReLU, and the normalised features: [ROWS, COLUMNS] each."""
    here = inside[None, :]
    v = tl.load(y + row[:, None] * y_row + column[None, :], mask=here, other=0.0).to(tl.float32)
    g = tl.load(gradient + row[:, None] * g_row + column[None, :], mask=here, other=0.0)
    g = g.to(tl.float32)
    off = v - mean[None, :]
    if RELU:  # in the order of the forward pass, so that both agree on what is positive
        g = tl.where(off * factor[None, :] + base[None, :] > 0.0, g, 0.0)
    return g, off * root[None, :]


@triton.jit
def _sums_kernel(gradient, y, stats, scale, shift, partial, columns, members,
                 g_member, g_row, y_group, y_row, share, RELU: tl.constexpr,
                 TILES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
                 AHEAD: tl.constexpr):  # fmt: skip
    part, parts, member = tl.program_id(1), tl.num_programs(1), tl.program_id(2)
    column, inside = _columns(tl.program_id(0), columns, COLUMNS)
    mean, root, factor, base = _norm(stats, scale, shift, member, members, columns, column, inside)
    above = gradient + member.to(tl.int64) * g_member
    features = y + (member // share).to(tl.int64) * y_group
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    crossed = tl.zeros([ROWS, COLUMNS], tl.float32)
    for tile in tl.range(0, TILES, num_stages=AHEAD):
        row = ((part * TILES + tile) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
        g, normal = _through(
            above, features, mean, root, factor, base, row, g_row, y_row, column, inside, RELU
        )
        total += g
        crossed += g * normal
    at = (member * parts + part) * 2 * columns + column
    tl.store(partial + at, tl.sum(crossed, axis=0), mask=inside)
    tl.store(partial + at + columns, tl.sum(total, axis=0), mask=inside)


@triton.jit
def _finish_sums_kernel(partial, to_scale, to_shift, columns,
                        PARTS: tl.constexpr, COLUMNS: tl.constexpr):  # fmt: skip
    member = tl.program_id(1)
    column, inside = _columns(tl.program_id(0), columns, COLUMNS)
    each = member * PARTS + tl.arange(0, PARTS)
    at = each[:, None] * 2 * columns + column[None, :]
    crossed = tl.load(partial + at, mask=inside[None, :], other=0.0)
    total = tl.load(partial + at + columns, mask=inside[None, :], other=0.0)
    tl.store(to_scale + member * columns + column, tl.sum(crossed, axis=0), mask=inside)
    tl.store(to_shift + member * columns + column, tl.sum(total, axis=0), mask=inside)


@triton.jit
def _norm_backward_kernel(gradient, y, stats, scale, shift, to_scale, to_shift, out,
                          rows, columns, members, g_member, g_row, y_member, y_row, out_member,
                          out_row, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # fmt: skip
    member = tl.program_id(2)
    column, inside = _columns(tl.program_id(0), columns, COLUMNS)
    row = (tl.program_id(1) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    mean, root, factor, base = _norm(stats, scale, shift, member, members, columns, column, inside)
    slope = tl.load(to_scale + member * columns + column, mask=inside, other=0.0) / rows
    total = tl.load(to_shift + member * columns + column, mask=inside, other=0.0) / rows
    g, normal = _through(
        gradient + member.to(tl.int64) * g_member, y + member.to(tl.int64) * y_member,
        mean, root, factor, base, row, g_row, y_row, column, inside, True,
    )  # fmt: skip
    v = factor[None, :] * (g - total[None, :] - normal * slope[None, :])
    to = out + member.to(tl.int64) * out_member + row[:, None] * out_row + column[None, :]
    tl.store(to, v.to(out.dtype.element_ty), mask=inside[None, :])


def norm_backward(
    gradient: Tensor,
    y: Tensor,
    norm: Sequence[Tensor],
    sums: Sequence[Tensor],
    out: Tensor | None,
) -> None:
    groups, rows, columns = y.shape
    learning, members = gradient.shape[0], norm[0].shape[1]
    parts, over = _over(y, learning)
    partial = torch.empty(learning, parts, 2, columns, dtype=torch.float32, device=y.device)
    strides = (gradient.stride(0), gradient.stride(1), y.stride(0), y.stride(1))
    _sums_kernel[(triton.cdiv(columns, SUMS.columns), parts, learning)](
        gradient, y, *norm, partial, columns, members, *strides, learning // groups,
        RELU=out is not None, **over,
    )  # fmt: skip
    _finish_sums_kernel[(triton.cdiv(columns, FINISHED), learning)](
        partial, *sums, columns, PARTS=parts, COLUMNS=FINISHED, num_warps=WARPS
    )
    if out is not None:
        tile = ELEMENTS
        _norm_backward_kernel[(triton.cdiv(columns, tile.columns), rows // tile.rows, learning)](
            gradient, y, *norm, *sums, out, rows, columns, members, *strides, out.stride(0),
            out.stride(1), ROWS=tile.rows, COLUMNS=tile.columns, num_warps=tile.warps,
        )  # fmt: skip


@triton.jit
def _rms_kernel(x, weight, out, root, rows, x_member, learning, skipped, eps,
                ROWS: tl.constexpr, WIDTH: tl.constexpr):  # fmt: skip
    member = tl.program_id(1).to(tl.int64)
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    column = tl.arange(0, WIDTH)
    first = tl.where(member < learning, 0, skipped)  # of the rows that count
    v = tl.load(x + member * x_member + (first + row)[:, None] * WIDTH + column[None, :])
    v = v.to(tl.float32)
    factor = tl.rsqrt(tl.sum(v * v, axis=1) / WIDTH + eps)
    w = tl.load(weight + member * WIDTH + column)
    at = (member * rows + row)[:, None] * WIDTH + column[None, :]
    tl.store(out + at, (v * factor[:, None] * w[None, :]).to(out.dtype.element_ty))
    tl.store(root + member * rows + row, factor)


def rms(x: Tensor, weight: Tensor, eps: float, out: Tensor, root: Tensor, learning: int) -> None:
    members, rows, width = out.shape
    _rms_kernel[(rows // RMS_ROWS, members)](
        x, weight, out, root, rows, x.stride(0), learning, x.shape[1] - rows, eps,
        ROWS=RMS_ROWS, WIDTH=width, num_warps=WARPS,
    )  # fmt: skip


@triton.jit
def _rms_backward_kernel(gradient, x, root, weight, out, partial, rows, x_member, out_member,
                         PARTS: tl.constexpr, TILES: tl.constexpr,
                         ROWS: tl.constexpr, WIDTH: tl.constexpr):  # fmt: skip
    part, member = tl.program_id(0), tl.program_id(1).to(tl.int64)
    column = tl.arange(0, WIDTH)
    w = tl.load(weight + member * WIDTH + column)
    total = tl.zeros([ROWS, WIDTH], tl.float32)
    for tile in tl.range(0, TILES, loop_unroll_factor=4):
        row = ((part * TILES + tile) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
        at = row[:, None] * WIDTH + column[None, :]
        factor = tl.load(root + member * rows + row)[:, None]
        normal = tl.load(x + member * x_member + at).to(tl.float32) * factor
        g = tl.load(gradient + member * rows * WIDTH + at).to(tl.float32)
        total += g * normal
        g = g * w[None, :]
        along = tl.sum(g * normal, axis=1) / WIDTH
        v = factor * (g - normal * along[:, None])
        tl.store(out + member * out_member + at, v.to(out.dtype.element_ty))
    tl.store(partial + (member * PARTS + part) * WIDTH + column, tl.sum(total, axis=0))


@triton.jit
def _add_up_kernel(partial, out, columns, PARTS: tl.constexpr, COLUMNS: tl.constexpr):
    member = tl.program_id(1)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    part = member * PARTS + tl.arange(0, PARTS)
    total = tl.sum(tl.load(partial + part[:, None] * columns + column[None, :]), axis=0)
    tl.store(out + member * columns + column, total)


def rms_backward(
    gradient: Tensor, x: Tensor, root: Tensor, weight: Tensor, out: Tensor, to_weight: Tensor
) -> None:
    learning, rows, width = gradient.shape
    parts, tiles = _cut(rows, RMS_ROWS, RMS_PARTS)
    partial = torch.empty(learning, parts, width, dtype=torch.float32, device=x.device)
    _rms_backward_kernel[(parts, learning)](
        gradient, x, root, weight, out, partial, rows, x.stride(0), out.stride(0),
        PARTS=parts, TILES=tiles, ROWS=RMS_ROWS, WIDTH=width, num_warps=WARPS,
    )  # fmt: skip
    _add_up_kernel[(width // FINISHED, learning)](
        partial, to_weight, width, PARTS=parts, COLUMNS=FINISHED, num_warps=WARPS
    )
