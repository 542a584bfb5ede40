"""The tanh-squashed Gaussian."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)


def squashed_sample(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Reparametrised sample a = tanh(mean + std * noise) and its log-density: [..., A], [...].

    log p(a) = sum_i [log N(u_i) - log(1 - tanh(u_i)^2)], the last term in the form
    2 (log 2 - u - softplus(-2u)) that stays finite for large |u|.
    """
    u = mean + log_std.exp() * noise
    log_gauss = -0.5 * noise.square() - log_std - _HALF_LOG_TWO_PI
    log_slope = 2.0 * (math.log(2.0) - u - F.softplus(-2.0 * u))
    return torch.tanh(u), (log_gauss - log_slope).sum(-1)
