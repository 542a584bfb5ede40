"""Divergence between diagonal Gaussians."""

from __future__ import annotations

from torch import Tensor


def gaussian_kl(mean: Tensor, log_std: Tensor, from_mean: Tensor, from_log_std: Tensor) -> Tensor:
    """KL(N(mean, std) || N(from_mean, from_std)), [..., A] -> [...]: the sum over components of

    log(from_std / std) + (std^2 + (mean - from_mean)^2) / (2 from_std^2) - 1/2
    """
    ratio = (2.0 * (log_std - from_log_std)).exp()
    distance = ((mean - from_mean) * (-from_log_std).exp()).square()
    return (from_log_std - log_std + 0.5 * (ratio + distance) - 0.5).sum(-1)
