"""Generalised advantage estimation (Schulman et al. 2016, arXiv 1506.02438)."""

from __future__ import annotations

import torch
from torch import Tensor


def gae(
    reward: Tensor, discount: Tensor, ended: Tensor, value: Tensor, next_value: Tensor, lam: float
) -> Tensor:
    """The advantages [T, ...] of T steps that follow one another, time first.

    delta_t = reward_t + discount_t next_value_t - value_t and A_t = delta_t + lam discount_t A_{t+1}, where nothing is
    carried across a row that has `ended`. `next_value` is that of what followed the action, so a truncation bootstraps.
    """
    delta = reward + discount * next_value - value
    return discounted_sums(delta, torch.where(ended, 0.0, lam * discount))


def discounted_sums(x: Tensor, carry: Tensor) -> Tensor:
    """y_t = x_t + carry_t y_{t+1} over the first axis, with y_T = 0.

    In log2(T) passes over all rows instead of T steps one after the other: after the pass of width k, y_t holds the sum
    over 2k rows, and the product of their carries is what comes before the next 2k.
    """
    width = 1
    while width < len(x):
        x = torch.cat([x[:-width] + carry[:-width] * x[width:], x[-width:]])
        carry = torch.cat([carry[:-width] * carry[width:], torch.zeros_like(carry[-width:])])
        width *= 2
    return x
