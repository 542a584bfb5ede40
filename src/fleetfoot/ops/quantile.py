"""Quantile regression (Dabney et al. 2018, 1710.10044): a distribution as K quantiles, at tau_i = (i + 0.5) / K."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def midpoints(quantiles: int, device: torch.device | None = None) -> Tensor:
    """tau, [K]."""
    return (torch.arange(quantiles, device=device) + 0.5) / quantiles


def huber_loss(predicted: Tensor, target: Tensor, tau: Tensor) -> Tensor:
    """predicted [..., B, K] and target [B, J] -> the loss of each row, [..., B].

    Of |tau_i - 1{y_j < theta_i}| Huber(y_j - theta_i), the sum over the predicted i and the mean over the targets j.
    A mean over i as well would make the gradient K times smaller. Huber(u) is u^2 / 2 up to 1, then linear.
    """
    shape = (*predicted.shape, target.shape[-1])  # [..., B, K, J]
    theta, y = predicted.unsqueeze(-1).expand(shape), target.unsqueeze(-2).expand(shape)
    tau = tau.unsqueeze(-1)
    weight = torch.where(y < theta, 1.0 - tau, tau)
    huber = F.huber_loss(theta, y, reduction="none")
    return (weight * huber).mean(-1).sum(-1)
