"""Policy gradients from a set of distinct actions, drawn without replacement (Kool, van Hoof and Welling, ICLR 2020).

pi is a categorical policy over D actions, p_a its probabilities. k distinct actions are drawn one after the other, each
from what is left; S is the set of them, without their order, and q = 1 - p(S) the mass that was not drawn. For a part X
of S let

    (1)  G(X) = P(S - X | D - X), the probability that drawing from the actions outside X gives the rest of S
    (2)  G(S) = 1,  G(X) = sum_{a in S - X} p_a / (1 - p(X)) G(X + a)
    (3)  G(X) = int_0^1 prod_{a in S - X} (1 - v^(p_a / q)) dv

so P(S) = G({}). The leave-one-out ratios of the estimators are ratios of these numbers:

    (4)  R(S, a) = G({a}) / G({}),  R_a(S, b) = G({a, b}) / G({a}),  R_a(S, a) = 1
    (5)  set estimator:          sum_{a in S} p_a R(S, a) f(a) grad log pi(a)
    (6)  with its own baseline:  sum_{a in S} p_a R(S, a) (f(a) - sum_{b in S} p_b R_a(S, b) f(b)) grad log pi(a)

Both have the mean grad E_pi[f]. k = 1 is REINFORCE, for which (6) has no baseline; k = D is the exact sum over actions.

(2) takes 2^k sums and serves small sets; (3) serves all others. All of it is in logarithms, and 1 - p(X) is a sum over
the actions outside X and never a difference from 1: where nearly all of the mass is drawn nothing is lost, and there is
no threshold to choose (the authors' code sets R = 1 beyond a mass of 1 - 1e-5).
"""

from __future__ import annotations

import math
from itertools import combinations
from typing import NamedTuple

import torch
from torch import Tensor

LARGEST_BY_RECURSION = 8
"""Actions in a set up to which (2) takes less work than the integral (3)."""
# The trapezoid rule for (3) with v = exp(-exp(s)): the integrand is analytic and vanishes on both sides, so this many
# points are exact to about 15 digits.
FROM, TO, POINTS = -40.0, 4.5, 357


class SetRatios(NamedTuple):
    """Weights of the actions of a set. Neither has a gradient."""

    weight: Tensor  # [..., k] p_a R(S, a); k = 1: exactly 1
    baseline: Tensor  # [..., k, k] p_b R_a(S, b), a before b


def gumbels(uniform: Tensor) -> Tensor:
    """Standard Gumbel noise from uniform numbers on [0, 1)."""
    tiny = torch.finfo(uniform.dtype).tiny
    exponential = -torch.log1p(-uniform)  # no uniform number is 1, so this is finite
    return -exponential.clamp(min=tiny).log()


def gumbel_top_k(log_probs: Tensor, uniform: Tensor, k: int, first: Tensor | None = None) -> Tensor:
    """k distinct actions [..., k] of log_probs [..., D], in the order in which they were drawn.

    `uniform`: [..., D] on [0, 1). `first` [...]: an action that was drawn already (it was executed); the others are
    then drawn from the rest, so that the whole is a draw without replacement if `first` is a draw.
    """
    keys = log_probs.detach() + gumbels(uniform)
    if first is not None:
        keys = keys.scatter(-1, first.unsqueeze(-1), torch.inf)
    return keys.topk(k, dim=-1).indices


@torch.no_grad()
def set_ratios(log_probs: Tensor, actions: Tensor) -> SetRatios:
    """The weights (4) of the distinct actions [..., k], from the log-probabilities [..., D] of all."""
    k = actions.shape[-1]
    drawn = log_probs.gather(-1, actions)  # [..., k]
    rest = log_probs.scatter(-1, actions, -torch.inf).logsumexp(-1)  # [...] log q
    log_g = _by_recursion if k <= LARGEST_BY_RECURSION else _by_integral
    none, one, two = log_g(drawn, rest)  # [...], [..., k], [..., k, k]
    weight = drawn + one - none.unsqueeze(-1)
    baseline = drawn.unsqueeze(-2) + two - one.unsqueeze(-1)
    return SetRatios(weight.exp(), baseline.exp())


def set_coefficients(
    log_probs: Tensor, actions: Tensor, f: Tensor, *, own_baseline: bool
) -> Tensor:
    """What grad log pi of each action is multiplied by in (5) or (6), [..., k], from f [..., k]; no gradient."""
    ratios = set_ratios(log_probs, actions)
    f = f.detach()
    if own_baseline and actions.shape[-1] > 1:
        f = f - (ratios.baseline * f.unsqueeze(-2)).sum(-1)  # (6)
    return ratios.weight * f


def _by_recursion(drawn: Tensor, rest: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """log G of the empty set, of each action [..., k], and of each pair [..., k, k] (on the diagonal: of the action).

    By (2), from the largest parts of S to the smallest.
    """
    k = drawn.shape[-1]
    log_g = {tuple(range(k)): torch.zeros_like(rest)}
    for size in reversed(range(k)):
        for part in combinations(range(k), size):
            outside = [a for a in range(k) if a not in part]
            terms = [drawn[..., a] + log_g[tuple(sorted((*part, a)))] for a in outside]
            left = torch.cat([drawn[..., outside], rest.unsqueeze(-1)], -1).logsumexp(-1)
            log_g[part] = torch.stack(terms, -1).logsumexp(-1) - left
    one = torch.stack([log_g[(a,)] for a in range(k)], -1)
    pairs = [log_g[tuple(sorted({a, b}))] for a in range(k) for b in range(k)]
    return log_g[()], one, torch.stack(pairs, -1).view(*rest.shape, k, k)


def _by_integral(drawn: Tensor, rest: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The same by (3), for sets of any size."""
    s = torch.linspace(FROM, TO, POINTS, device=drawn.device, dtype=drawn.dtype)
    log_x = (drawn - rest.unsqueeze(-1)).unsqueeze(-1) + s  # [..., k, points]
    x = log_x.exp()
    # log(1 - exp(-x)); where x is small that is log x, also where x itself is too small for its type.
    factors = torch.where(x < 1e-7, log_x, torch.log(-torch.expm1(-x.clamp(min=1e-7))))
    every = factors.sum(-2) + s - s.exp() + math.log((TO - FROM) / (POINTS - 1))  # [..., points]
    without_one = every.unsqueeze(-2) - factors  # [..., k, points]
    one = without_one.logsumexp(-1)
    pairs = [(without_one - other.unsqueeze(-2)).logsumexp(-1) for other in factors.unbind(-2)]
    same = torch.eye(drawn.shape[-1], dtype=torch.bool, device=drawn.device)
    return every.logsumexp(-1), one, torch.where(same, one.unsqueeze(-1), torch.stack(pairs, -1))
