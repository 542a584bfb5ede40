"""Categorical value distributions on a fixed support (C51): the projection and the mean."""

from __future__ import annotations

import torch
from torch import Tensor


def support(v_min: float, v_max: float, atoms: int, device: torch.device | None = None) -> Tensor:
    """The atoms z, [K], evenly spaced from v_min to v_max."""
    return torch.linspace(v_min, v_max, atoms, device=device)


def project(probs: Tensor, shifted: Tensor, z: Tensor) -> Tensor:
    """Project mass `probs` sitting at `shifted` onto the atoms `z`; all mass is kept, and so is the mean.

    probs [..., K], shifted [..., K] (already clamped to [z_0, z_last]), z [K] evenly spaced. Each atom's mass is shared
    between its two neighbours in proportion to nearness. Where a shifted atom falls exactly on atom i the lower
    neighbour is i and takes everything, so no mass is lost and none counted twice.
    """
    last = z.numel() - 1
    place = ((shifted - z[0]) * (last / (z[-1] - z[0]))).clamp(0, last)  # in units of atoms
    lower = place.floor().clamp(max=last - 1)  # so that lower + 1 exists
    to_upper = probs * (place - lower)
    index = lower.nan_to_num(0.0).long()  # a NaN must show in the result, not address memory
    out = torch.zeros_like(probs)
    out.scatter_add_(-1, index, probs - to_upper)
    out.scatter_add_(-1, index + 1, to_upper)
    return out


def mean(probs: Tensor, z: Tensor) -> Tensor:
    """Expected value of a distribution over z: [..., K] -> [...]."""
    # Not probs @ z: under autocast a product would round values and atoms to bfloat16.
    return (probs * z).sum(-1)
