"""The kernels of `ops/triton/flash_net.py` in torch's operations: their definition, and what tests run on a CPU."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


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
    """Writes `out`; returns the statistics. `norm`: running mean and variance, scale, shift."""
    mean, variance, scale, shift = norm
    features, rows = _for_members(y, len(mean), learning), y.shape[1]
    of_rows, spread = features.mean(1), features.var(1, correction=0)
    root, unbiased = (spread + eps).rsqrt(), spread * (rows / (rows - 1))
    found = (features - of_rows.unsqueeze(1)) * (root * scale).unsqueeze(1)
    found = found + shift.unsqueeze(1)
    found = found.relu() if relu else found
    found = found if plus is None else found + plus
    out.copy_(F.pad(found, (0, out.shape[-1] - y.shape[-1])))
    new = (torch.lerp(mean, of_rows, momentum), torch.lerp(variance, unbiased, momentum))
    return torch.stack([of_rows, root, *new])


def norm_backward(
    gradient: Tensor,
    y: Tensor,
    norm: Sequence[Tensor],
    sums: Sequence[Tensor],
    out: Tensor | None,
) -> None:
    """Writes the gradients of scale and shift to `sums`, and that of y to `out`, which may be `gradient`. Without
    `out` nobody asks for it, and there was no ReLU. `norm`: statistics, scale, shift."""
    (stats, scale, shift), (to_scale, to_shift) = norm, sums
    count, rows = len(gradient), y.shape[1]
    mean, root = (stats[at, :count].unsqueeze(1) for at in (0, 1))
    factor, base = root * scale[:count].unsqueeze(1), shift[:count].unsqueeze(1)
    off, above = _for_members(y, count, count) - mean, gradient[..., : y.shape[-1]].float()
    above = above if out is None else above * (off * factor + base > 0)
    normal = off * root
    to_shift.copy_(above.sum(1))
    to_scale.copy_((above * normal).sum(1))
    if out is not None:
        down, along = (sums.unsqueeze(1) / rows for sums in (to_shift, to_scale))
        out.copy_(factor * (above - down - normal * along))


def rms(x: Tensor, weight: Tensor, eps: float, out: Tensor, root: Tensor, learning: int) -> None:
    """Writes `out` and `root`: for members that learn the first rows, for the others the last ones, as many as there is
    room for."""
    count = out.shape[1]
    kept = torch.cat([x[:learning, :count], x[learning:, x.shape[1] - count :]]).float()
    root.copy_((kept.square().mean(-1) + eps).rsqrt())
    out.copy_(kept * root.unsqueeze(-1) * weight.unsqueeze(1))


def rms_backward(
    gradient: Tensor, x: Tensor, root: Tensor, weight: Tensor, out: Tensor, to_weight: Tensor
) -> None:
    """Writes as many rows of `out` as `gradient` has."""
    count, factor = gradient.shape[1], root.unsqueeze(-1)
    normal, above = x[:, :count].float() * factor, gradient.float()
    to_weight.copy_((above * normal).sum(1))
    above = above * weight[: len(x)].unsqueeze(1)
    along = (above * normal).mean(-1, keepdim=True)
    out[:, :count] = (factor * (above - normal * along)).to(out.dtype)


def _for_members(x: Tensor, members: int, learning: int) -> Tensor:
    """[G, ...] -> [M, ...] in float32."""
    if len(x) == members:
        return x.float()
    return x.float().repeat_interleave(learning // len(x), 0).repeat(members // learning, 1, 1)
