"""Categorical value distributions on a GPU: the twin of what `ops/categorical.py` says in plain torch.

One program handles one row. Nothing is scattered: each atom of the result asks every source atom for its share, a
hundred times a hundred multiplications in registers, which costs less than the atomics that scattering needs.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

CHUNK = 32  # atoms of the result computed together


@triton.jit
def _project_kernel(logits, base, slope, z, out, rows, atoms, logits_member, logits_row,
                    LOWEST: tl.constexpr, MEMBERS: tl.constexpr,
                    WIDTH: tl.constexpr, CHUNK: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, WIDTH)
    inside = k < atoms
    first = tl.load(z)
    final = tl.load(z + atoms - 1)
    last = atoms - 1
    b = tl.load(base + row)
    s = tl.load(slope + row)
    y = b + s * tl.load(z + k, mask=inside, other=0.0)
    y = tl.minimum(tl.maximum(y, first), final)
    place = tl.minimum(tl.maximum((y - first) * (last / (final - first)), 0.0), last * 1.0)
    # Comparisons swallow what is not a number; it must show in the result.
    spoiled = tl.where((b != b) | (s != s), float("nan"), 0.0)
    best = 0.0
    kept = tl.zeros([WIDTH], tl.float32)
    for member in tl.static_range(MEMBERS):
        at = logits + member * logits_member + row * logits_row + k
        x = tl.load(at, mask=inside, other=-float("inf")).to(tl.float32)
        p = tl.exp(x - tl.max(x, axis=0))
        p = p / tl.sum(p, axis=0)
        if LOWEST:
            mean = tl.sum(p * y, axis=0)
            if member == 0:
                best = mean
                kept = p
            else:
                lower = (mean < best) | (mean != mean)
                best = tl.where(lower, mean, best)
                kept = tl.where(lower, p, kept)
        else:
            kept = p
        if (not LOWEST) or (member == MEMBERS - 1):
            to = row if LOWEST else member * rows.to(tl.int64) + row
            for chunk in tl.static_range(0, WIDTH, CHUNK):
                at_k = chunk + tl.arange(0, CHUNK)
                near = 1.0 - tl.abs(place[None, :] - at_k[:, None].to(tl.float32))
                mass = tl.sum(kept[None, :] * tl.maximum(near, 0.0), axis=1) + spoiled
                tl.store(out + to * atoms + at_k, mass, mask=at_k < atoms)


def project_shifted(logits: Tensor, base: Tensor, slope: Tensor, z: Tensor, lowest: bool) -> Tensor:
    members, rows, atoms = logits.shape
    logits = logits if logits.stride(2) == 1 else logits.contiguous()
    shape = (rows, atoms) if lowest else (members, rows, atoms)
    out = torch.empty(shape, dtype=torch.float32, device=logits.device)
    _project_kernel[(rows,)](
        logits, base.contiguous(), slope.contiguous(), z, out, rows, atoms,
        logits.stride(0), logits.stride(1), LOWEST=lowest, MEMBERS=members,
        WIDTH=max(CHUNK, triton.next_power_of_2(atoms)), CHUNK=CHUNK,
    )  # fmt: skip
    return out


@triton.jit
def _cross_entropy_kernel(logits, target, z, loss, q, lse, rows, atoms,
                          logits_member, logits_row, target_member,
                          WIDTH: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    member = tl.program_id(1).to(tl.int64)
    k = tl.arange(0, WIDTH)
    inside = k < atoms
    at = logits + member * logits_member + row * logits_row + k
    x = tl.load(at, mask=inside, other=-float("inf")).to(tl.float32)
    t = tl.load(target + member * target_member + row * atoms + k, mask=inside, other=0.0)
    top = tl.max(x, axis=0)
    e = tl.exp(x - top)
    total = tl.sum(e, axis=0)
    norm = top + tl.log(total)
    value = tl.sum(e * tl.load(z + k, mask=inside, other=0.0), axis=0) / total
    to = member * rows + row
    tl.store(loss + to, tl.sum(tl.where(inside, t * (norm - x), 0.0), axis=0))
    tl.store(q + to, value)
    tl.store(lse + to, norm)


@triton.jit
def _cross_entropy_backward_kernel(logits, target, lse, by, gradient, rows, atoms,
                                   logits_member, logits_row, target_member,
                                   WIDTH: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    member = tl.program_id(1).to(tl.int64)
    k = tl.arange(0, WIDTH)
    inside = k < atoms
    at = logits + member * logits_member + row * logits_row + k
    x = tl.load(at, mask=inside, other=-float("inf")).to(tl.float32)
    t = tl.load(target + member * target_member + row * atoms + k, mask=inside, other=0.0)
    own = member * rows + row
    p = tl.exp(x - tl.load(lse + own))
    g = tl.load(by + own) * (p * tl.sum(t, axis=0) - t)
    tl.store(gradient + own * atoms + k, g, mask=inside)


def cross_entropy(logits: Tensor, target: Tensor, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The loss [E, B], the means [E, B], and the logarithms of the normalising sums [E, B], for `backward`."""
    members, rows, atoms = logits.shape
    loss, q, lse = torch.empty(3, members, rows, dtype=torch.float32, device=logits.device)
    _cross_entropy_kernel[(rows, members)](
        logits, target, z, loss, q, lse, rows, atoms, logits.stride(0), logits.stride(1),
        target.stride(0) if target.dim() == 3 else 0, WIDTH=triton.next_power_of_2(atoms),
    )  # fmt: skip
    return loss, q, lse


def cross_entropy_backward(logits: Tensor, target: Tensor, lse: Tensor, by: Tensor) -> Tensor:
    members, rows, atoms = logits.shape
    gradient = torch.empty(logits.shape, dtype=logits.dtype, device=logits.device)
    _cross_entropy_backward_kernel[(rows, members)](
        logits, target, lse, by.contiguous(), gradient, rows, atoms, logits.stride(0),
        logits.stride(1), target.stride(0) if target.dim() == 3 else 0,
        WIDTH=triton.next_power_of_2(atoms),
    )  # fmt: skip
    return gradient
