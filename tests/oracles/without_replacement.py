"""Drawing without replacement, by listing every order."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import permutations

import torch
from torch import Tensor


def order_probability(probs: list[float], order: Iterable[int]) -> float:
    """Of drawing these actions in this order (Plackett-Luce)."""
    left, product = [*probs], 1.0
    for action in order:
        product *= left[action] / math.fsum(left)
        left[action] = 0.0
    return product


def set_probability(probs: list[float], actions: Iterable[int]) -> float:
    """Of drawing these actions in any order."""
    return math.fsum(order_probability(probs, order) for order in permutations(actions))


def without(probs: list[float], *gone: int) -> list[float]:
    """Of the actions that are left; they need not sum to 1."""
    return [0.0 if action in gone else p for action, p in enumerate(probs)]


def exact_gradient(logits: Tensor, f: Tensor) -> Tensor:
    """Of E[f] with respect to the logits."""
    logits = logits.detach().requires_grad_()
    (gradient,) = torch.autograd.grad((logits.softmax(-1) * f).sum(), logits)
    return gradient
