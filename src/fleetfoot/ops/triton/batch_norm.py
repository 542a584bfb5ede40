"""Batch normalisation on a GPU: the twin of what `ops/batch_norm.py` says in plain torch.

Two kernels each way. The first sums up shares of the rows; the second merges the sums of all shares, for its columns
alone, and then does its tile. Merging is repeated by every program of a column, which costs less than a kernel.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS, COLUMNS, WARPS = 64, 64, 8  # of one tile
MOST_SHARES = 16


@triton.jit
def _moments(x, means, squares, rows, columns, shares, x_member, x_row,
             ROWS_EACH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # fmt: skip
    """The mean of each share of the rows, and the sum of squares about it."""
    member, share = tl.program_id(2).to(tl.int64), tl.program_id(1)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < columns
    mean = tl.zeros([COLUMNS], tl.float32)
    square = tl.zeros([COLUMNS], tl.float32)
    for done in range(0, ROWS_EACH, ROWS):
        begin = share * ROWS_EACH + done
        row = begin + tl.arange(0, ROWS)
        here = (row < rows)[:, None] & inside[None, :]
        at = member * x_member + row.to(tl.int64)[:, None] * x_row + column[None, :]
        v = tl.load(x + at, mask=here, other=0.0).to(tl.float32)
        count = tl.minimum(tl.maximum(rows - begin, 0), ROWS).to(tl.float32)
        total = tl.maximum(tl.minimum(tl.maximum(rows - share * ROWS_EACH, 0), done + ROWS), 1)
        own = tl.sum(v, axis=0) / tl.maximum(count, 1.0)
        off = tl.where(here, v - own[None, :], 0.0)
        # Chan: the squares about both means, and what the distance between the means adds.
        delta = own - mean
        part = count / total.to(tl.float32)
        square += tl.sum(off * off, axis=0) + delta * delta * (1.0 - part) * count
        mean += delta * part
    at = (member * shares + share) * columns + column
    tl.store(means + at, mean, mask=inside)
    tl.store(squares + at, square, mask=inside)


@triton.jit
def _normalise(x, means, squares, weight, bias, running_mean, running_variance, plus, out,
               new_mean, new_variance, mean_out, rate_out, rows, columns, shares,
               x_member, x_row, plus_member, plus_row, parts_member, momentum, eps,
               RELU: tl.constexpr, PLUS: tl.constexpr, ROWS_EACH: tl.constexpr,
               SHARES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # fmt: skip
    member = tl.program_id(2).to(tl.int64)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < columns
    # The tile is asked for first: it arrives while the sums are merged.
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    here = (row < rows)[:, None] & inside[None, :]
    row = row.to(tl.int64)[:, None]
    v = tl.load(x + member * x_member + row * x_row + column[None, :], mask=here, other=0.0)
    share = tl.arange(0, SHARES)
    count = tl.minimum(tl.maximum(rows - share * ROWS_EACH, 0), ROWS_EACH).to(tl.float32)[:, None]
    there = (share < shares)[:, None] & inside[None, :]
    at = member * parts_member + share[:, None] * columns + column[None, :]
    part = tl.load(means + at, mask=there, other=0.0)
    mean = tl.sum(part * count, axis=0) / rows
    off = part - mean[None, :]
    square = tl.load(squares + at, mask=there, other=0.0) + off * off * count
    variance = tl.sum(tl.where(there, square, 0.0), axis=0) / rows
    rate = 1.0 / tl.sqrt(variance + eps)
    own = member * columns + column
    w = tl.load(weight + own, mask=inside, other=0.0)
    b = tl.load(bias + own, mask=inside, other=0.0)
    if tl.program_id(1) == 0:
        before = tl.load(running_mean + own, mask=inside, other=0.0)
        tl.store(new_mean + own, before + momentum * (mean - before), mask=inside)
        before = tl.load(running_variance + own, mask=inside, other=0.0)
        unbiased = variance * (rows / (rows - 1.0))
        tl.store(new_variance + own, before + momentum * (unbiased - before), mask=inside)
        tl.store(mean_out + own, mean, mask=inside)
        tl.store(rate_out + own, rate, mask=inside)
    y = (v.to(tl.float32) - mean[None, :]) * (rate * w)[None, :] + b[None, :]
    if RELU:
        y = tl.maximum(y, 0.0)
    if PLUS:
        at = member * plus_member + row * plus_row + column[None, :]
        y += tl.load(plus + at, mask=here, other=0.0).to(tl.float32)
    at = (member * rows + row) * columns + column[None, :]
    tl.store(out + at, y.to(out.dtype.element_ty), mask=here)


@triton.jit
def _before_relu(gradient, x, mean, rate, w, b, member, row, column, here, gradient_member,
                 gradient_row, x_member, x_row, RELU: tl.constexpr):  # fmt: skip
    """The gradient of a tile before the ReLU, and its normalised features."""
    at = member * gradient_member + row * gradient_row + column[None, :]
    g = tl.load(gradient + at, mask=here, other=0.0).to(tl.float32)
    v = tl.load(x + member * x_member + row * x_row + column[None, :], mask=here, other=0.0)
    normed = tl.where(here, (v.to(tl.float32) - mean[None, :]) * rate[None, :], 0.0)
    if RELU:
        g = tl.where(normed * w[None, :] + b[None, :] > 0.0, g, 0.0)
    return g, normed


@triton.jit
def _gradient_sums(gradient, x, means, rates, weight, bias, sums, alongs, rows, columns, shares,
                   gradient_member, gradient_row, x_member, x_row, RELU: tl.constexpr,
                   ROWS_EACH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # fmt: skip
    member, share = tl.program_id(2).to(tl.int64), tl.program_id(1)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < columns
    own = member * columns + column
    mean = tl.load(means + own, mask=inside, other=0.0)
    rate = tl.load(rates + own, mask=inside, other=0.0)
    w = tl.load(weight + own, mask=inside, other=0.0)
    b = tl.load(bias + own, mask=inside, other=0.0)
    total = tl.zeros([COLUMNS], tl.float32)
    along = tl.zeros([COLUMNS], tl.float32)
    for done in range(0, ROWS_EACH, ROWS):
        row = share * ROWS_EACH + done + tl.arange(0, ROWS)
        here = (row < rows)[:, None] & inside[None, :]
        g, normed = _before_relu(gradient, x, mean, rate, w, b, member, row.to(tl.int64)[:, None],
                                 column, here, gradient_member, gradient_row, x_member, x_row,
                                 RELU)  # fmt: skip
        total += tl.sum(g, axis=0)
        along += tl.sum(g * normed, axis=0)
    at = (member * shares + share) * columns + column
    tl.store(sums + at, total, mask=inside)
    tl.store(alongs + at, along, mask=inside)


@triton.jit
def _gradients(gradient, x, means, rates, weight, bias, sums, alongs, x_gradient,
               weight_gradient, bias_gradient, rows, columns, shares, gradient_member,
               gradient_row, x_member, x_row, RELU: tl.constexpr, TO_X: tl.constexpr,
               SHARES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # fmt: skip
    member = tl.program_id(2).to(tl.int64)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < columns
    share = tl.arange(0, SHARES)
    there = (share < shares)[:, None] & inside[None, :]
    at = (member * shares + share)[:, None] * columns + column[None, :]
    total = tl.sum(tl.load(sums + at, mask=there, other=0.0), axis=0)
    along = tl.sum(tl.load(alongs + at, mask=there, other=0.0), axis=0)
    own = member * columns + column
    if tl.program_id(1) == 0:
        tl.store(weight_gradient + own, along, mask=inside)
        tl.store(bias_gradient + own, total, mask=inside)
    if TO_X:
        mean = tl.load(means + own, mask=inside, other=0.0)
        rate = tl.load(rates + own, mask=inside, other=0.0)
        w = tl.load(weight + own, mask=inside, other=0.0)
        b = tl.load(bias + own, mask=inside, other=0.0)
        row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
        here = (row < rows)[:, None] & inside[None, :]
        row = row.to(tl.int64)[:, None]
        g, normed = _before_relu(gradient, x, mean, rate, w, b, member, row, column, here,
                                 gradient_member, gradient_row, x_member, x_row, RELU)  # fmt: skip
        g -= (total / rows)[None, :] + normed * (along / rows)[None, :]
        g *= (w * rate)[None, :]
        at = (member * rows + row) * columns + column[None, :]
        tl.store(x_gradient + at, g.to(x_gradient.dtype.element_ty), mask=here)


def batch_norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    running_mean: Tensor,
    running_variance: Tensor,
    plus: Tensor | None,
    momentum: float,
    eps: float,
    relu: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """x [E, B, d] or [B, d] for all members, weight and the like [E, d], plus [E, B, d]: the result [E, B, d], the
    running mean and variance as they become, and the rows' mean and 1 / root(variance + eps), [E, d] each."""
    members, columns = weight.shape
    rows = x.shape[-2]
    x, x_member = _member_first(x)
    shares, each = _shares(rows)
    held = 1 if x_member == 0 else members
    means, squares = (x.new_empty(held, shares, columns, dtype=torch.float32) for _ in range(2))
    width = triton.cdiv(columns, COLUMNS)
    _moments[(width, shares, held)](
        x, means, squares, rows, columns, shares, x_member, x.stride(-2),
        ROWS_EACH=each, ROWS=ROWS, COLUMNS=COLUMNS, num_warps=WARPS,
    )  # fmt: skip
    out = x.new_empty(members, rows, columns)
    new_mean, new_variance, mean, rate = (torch.empty_like(running_mean) for _ in range(4))
    added, plus_member = (out, 0) if plus is None else _member_first(plus)
    _normalise[(width, triton.cdiv(rows, ROWS), members)](
        x, means, squares, weight, bias, running_mean, running_variance, added, out,
        new_mean, new_variance, mean, rate, rows, columns, shares, x_member, x.stride(-2),
        plus_member, added.stride(-2), 0 if x_member == 0 else shares * columns, momentum, eps,
        RELU=relu, PLUS=plus is not None, ROWS_EACH=each, SHARES=triton.next_power_of_2(shares),
        ROWS=ROWS, COLUMNS=COLUMNS, num_warps=WARPS,
    )  # fmt: skip
    return out, new_mean, new_variance, mean, rate


def batch_norm_backward(
    gradient: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    rate: Tensor,
    relu: bool,
    to_x: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x (for every member, [E, B, d]; empty unless `to_x`), weight and bias."""
    members, columns = weight.shape
    rows = x.shape[-2]
    x, x_member = _member_first(x)
    gradient, gradient_member = _member_first(gradient)
    shares, each = _shares(rows)
    sums, alongs = (x.new_empty(members, shares, columns, dtype=torch.float32) for _ in range(2))
    width = triton.cdiv(columns, COLUMNS)
    strides = (gradient_member, gradient.stride(-2), x_member, x.stride(-2))
    _gradient_sums[(width, shares, members)](
        gradient, x, mean, rate, weight, bias, sums, alongs, rows, columns, shares, *strides,
        RELU=relu, ROWS_EACH=each, ROWS=ROWS, COLUMNS=COLUMNS, num_warps=WARPS,
    )  # fmt: skip
    x_gradient = x.new_empty((members, rows, columns) if to_x else (0,))
    weight_gradient, bias_gradient = torch.empty_like(weight), torch.empty_like(bias)
    _gradients[(width, triton.cdiv(rows, ROWS) if to_x else 1, members)](
        gradient, x, mean, rate, weight, bias, sums, alongs, x_gradient, weight_gradient,
        bias_gradient, rows, columns, shares, *strides, RELU=relu, TO_X=to_x,
        SHARES=triton.next_power_of_2(shares), ROWS=ROWS, COLUMNS=COLUMNS, num_warps=WARPS,
    )  # fmt: skip
    return x_gradient, weight_gradient, bias_gradient


def _member_first(x: Tensor) -> tuple[Tensor, int]:
    """With columns side by side, and how far members lie apart (0: there is one of it for all)."""
    if x.stride(-1) != 1:
        x = x.contiguous()
    return x, 0 if x.dim() == 2 else x.stride(0)


def _shares(rows: int) -> tuple[int, int]:
    """How many shares of the rows there are, and how many rows each has."""
    each = ROWS * triton.cdiv(rows, ROWS * MOST_SHARES)
    return triton.cdiv(rows, each), each
