"""Categorical value distributions on a GPU: the twin of what `ops/categorical.py` says in plain torch.

Nothing is scattered. The shifted atoms are evenly spaced, so each atom of a result knows which few source atoms can
have a share for it, and asks those alone.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS, WARPS = 8, 2  # of one program
PROJECT_ROWS = 4  # it keeps more in registers


@triton.jit
def _project_kernel(logits, base, slope, z, out, rows, atoms, logits_member, logits_row,
                    LOWEST: tl.constexpr, MEMBERS: tl.constexpr,
                    ROWS: tl.constexpr, WIDTH: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    k = tl.arange(0, WIDTH)
    here = (row < rows)[:, None] & (k < atoms)[None, :]
    last = atoms - 1
    first = tl.load(z)
    scale = last / (tl.load(z + last) - first)
    b = tl.load(base + row, mask=row < rows, other=0.0)
    s = tl.load(slope + row, mask=row < rows, other=0.0)
    # Comparisons swallow what is not a number; it must show in the result.
    spoiled = tl.where((b != b) | (s != s), float("nan"), 0.0)
    b = tl.where(b == b, b, 0.0)
    s = tl.where(s == s, s, 0.0)
    zk = tl.load(z + k, mask=k < atoms, other=0.0)
    y = b[:, None] + s[:, None] * zk[None, :]
    place = tl.minimum(tl.maximum((y - first) * scale, 0.0), last * 1.0)
    clipped = first + place / scale
    # Where slope is 0 all mass sits at one place; otherwise the sources of atom k begin here, and are so many.
    moves = s > 0
    spacing = tl.where(moves, s, 1.0)
    zero = (b + s * first - first) * scale  # the place of source atom 0, before clipping
    begin = (k[None, :] - 1 - zero[:, None]) / spacing[:, None]
    begin = tl.minimum(tl.maximum(begin, 0.0), atoms * 1.0).to(tl.int32)
    begin = tl.maximum(begin - 1, 0)
    many = tl.minimum(2.0 / spacing + 4, atoms * 1.0).to(tl.int32)
    many = tl.max(tl.where(moves, many, 0), axis=0)
    best = tl.zeros([ROWS], tl.float32)
    kept = tl.zeros([ROWS], tl.int32)
    top = tl.zeros([ROWS], tl.float32)
    norm = tl.zeros([ROWS], tl.float32)
    low = tl.zeros([ROWS], tl.float32)
    high = tl.zeros([ROWS], tl.float32)
    for member in tl.static_range(MEMBERS):
        at = logits + member * logits_member + row[:, None] * logits_row + k[None, :]
        x = tl.load(at, mask=here, other=-float("inf")).to(tl.float32)
        x = tl.where((row < rows)[:, None], x, 0.0)  # rows beyond the last must not spoil anything
        own_top = tl.max(x, axis=1)
        e = tl.exp(x - own_top[:, None])
        own_norm = tl.sum(e, axis=1)
        p = e / own_norm[:, None]
        own_low = tl.sum(tl.where(place <= 0.0, p, 0.0), axis=1)
        own_high = tl.sum(tl.where(place >= last, p, 0.0), axis=1)
        mean = tl.sum(p * clipped, axis=1)
        take = (mean < best) | (mean != mean)
        if (member == 0) or (not LOWEST):
            take = tl.full([ROWS], 1, tl.int1)
        best = tl.where(take, mean, best)
        kept = tl.where(take, member, kept)
        top = tl.where(take, own_top, top)
        norm = tl.where(take, own_norm, norm)
        low = tl.where(take, own_low, low)
        high = tl.where(take, own_high, high)
        if (not LOWEST) or (member == MEMBERS - 1):
            ends = tl.where(k == 0, 1.0, 0.0)[None, :] * low[:, None]
            ends += tl.where(k == last, 1.0, 0.0)[None, :] * high[:, None]
            near = tl.maximum(1.0 - tl.abs(place - k[None, :]), 0.0)
            inner = (place > 0.0) & (place < last)
            mass = ends + tl.where(inner & (s == 0)[:, None], near, 0.0)
            source = logits + kept[:, None].to(tl.int64) * logits_member + row[:, None] * logits_row
            i = 0
            while i < many:
                j = begin + i
                ok = here & (j < atoms) & moves[:, None]
                zj = tl.load(z + j, mask=ok, other=0.0)
                x = tl.load(source + j, mask=ok, other=-float("inf")).to(tl.float32)
                at_j = (b[:, None] + s[:, None] * zj - first) * scale
                near = tl.maximum(1.0 - tl.abs(at_j - k[None, :]), 0.0)
                share = tl.exp(x - top[:, None]) / norm[:, None] * near
                mass += tl.where(ok & (at_j > 0.0) & (at_j < last), share, 0.0)
                i += 1
            to = row if LOWEST else member * tl.cast(rows, tl.int64) + row
            tl.store(out + to[:, None] * atoms + k[None, :], mass + spoiled[:, None], mask=here)


def project_shifted(logits: Tensor, base: Tensor, slope: Tensor, z: Tensor, lowest: bool) -> Tensor:
    """`slope` must be 0 or more."""
    ensemble_size, rows, atoms = logits.shape
    logits = _in_rows(logits)
    shape = (rows, atoms) if lowest else (ensemble_size, rows, atoms)
    out = torch.empty(shape, dtype=torch.float32, device=logits.device)
    _project_kernel[(triton.cdiv(rows, PROJECT_ROWS),)](
        logits, base.contiguous(), slope.contiguous(), z, out, rows, atoms,
        logits.stride(0), logits.stride(1), LOWEST=lowest, MEMBERS=ensemble_size,
        ROWS=PROJECT_ROWS, WIDTH=triton.next_power_of_2(atoms), num_warps=WARPS,
    )  # fmt: skip
    return out


@triton.jit
def _cross_entropy_kernel(logits, target, z, loss, q, lse, rows, atoms,
                          logits_member, logits_row, target_member,
                          ROWS: tl.constexpr, WIDTH: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    member = tl.program_id(1).to(tl.int64)
    k = tl.arange(0, WIDTH)
    here = (row < rows)[:, None] & (k < atoms)[None, :]
    at = member * logits_member + row[:, None] * logits_row + k[None, :]
    x = tl.load(logits + at, mask=here, other=-float("inf")).to(tl.float32)
    x = tl.where((row < rows)[:, None], x, 0.0)
    at = member * target_member + row[:, None] * atoms + k[None, :]
    t = tl.load(target + at, mask=here, other=0.0)
    top = tl.max(x, axis=1)
    e = tl.exp(x - top[:, None])
    total = tl.sum(e, axis=1)
    norm = top + tl.log(total)
    zk = tl.load(z + k, mask=k < atoms, other=0.0)
    value = tl.sum(e * zk[None, :], axis=1) / total
    to = member * rows + row
    crossed = tl.sum(tl.where(here, t * (norm[:, None] - x), 0.0), axis=1)
    tl.store(loss + to, crossed, mask=row < rows)
    tl.store(q + to, value, mask=row < rows)
    tl.store(lse + to, norm, mask=row < rows)


@triton.jit
def _cross_entropy_backward_kernel(logits, target, lse, by, gradient, rows, atoms,
                                   logits_member, logits_row, target_member,
                                   ROWS: tl.constexpr, WIDTH: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    member = tl.program_id(1).to(tl.int64)
    k = tl.arange(0, WIDTH)
    here = (row < rows)[:, None] & (k < atoms)[None, :]
    at = member * logits_member + row[:, None] * logits_row + k[None, :]
    x = tl.load(logits + at, mask=here, other=-float("inf")).to(tl.float32)
    at = member * target_member + row[:, None] * atoms + k[None, :]
    t = tl.load(target + at, mask=here, other=0.0)
    own = member * rows + row
    norm = tl.load(lse + own, mask=row < rows, other=0.0)
    weight = tl.load(by + own, mask=row < rows, other=0.0)
    g = weight[:, None] * (tl.exp(x - norm[:, None]) * tl.sum(t, axis=1)[:, None] - t)
    tl.store(gradient + own[:, None] * atoms + k[None, :], g, mask=here)


def cross_entropy(logits: Tensor, target: Tensor, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The loss [E, B], the means [E, B], and the logarithms of the normalising sums [E, B], for `backward`."""
    ensemble_size, rows, atoms = logits.shape
    logits, target = _in_rows(logits), target.contiguous()
    loss, q, lse = (
        torch.empty(ensemble_size, rows, dtype=torch.float32, device=logits.device)
        for _ in range(3)
    )
    _cross_entropy_kernel[(triton.cdiv(rows, ROWS), ensemble_size)](
        logits, target, z, loss, q, lse, rows, atoms, logits.stride(0), logits.stride(1),
        target.stride(0) if target.dim() == 3 else 0,
        ROWS=ROWS, WIDTH=triton.next_power_of_2(atoms), num_warps=WARPS,
    )  # fmt: skip
    return loss, q, lse


def cross_entropy_backward(logits: Tensor, target: Tensor, lse: Tensor, by: Tensor) -> Tensor:
    ensemble_size, rows, atoms = logits.shape
    logits, target = _in_rows(logits), target.contiguous()
    gradient = torch.empty(logits.shape, dtype=logits.dtype, device=logits.device)
    _cross_entropy_backward_kernel[(triton.cdiv(rows, ROWS), ensemble_size)](
        logits, target, lse, by.contiguous(), gradient, rows, atoms, logits.stride(0),
        logits.stride(1), target.stride(0) if target.dim() == 3 else 0,
        ROWS=ROWS, WIDTH=triton.next_power_of_2(atoms), num_warps=WARPS,
    )  # fmt: skip
    return gradient


def _in_rows(logits: Tensor) -> Tensor:
    """Atoms side by side, which is how all kernels read them."""
    return logits if logits.stride(2) == 1 else logits.contiguous()
