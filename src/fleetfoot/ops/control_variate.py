"""A policy gradient whose variance a model lowers and whose mean no model can change.

s is a state, a_1 the action that pi drew there and that was executed, f its real return, and V a guess of f that knows
s alone. f^(a) is what a model says of each action a, computed with random numbers w that do not depend on a_1.

    (1)  m = sum_a pi(a) f^(a),  A^(a) = f^(a) - m
    (2)  gradient = sum_a beta pi(a) A^(a) grad log pi(a)
                    + kappa (f - V - alpha (m - V) - beta A^(a_1)) grad log pi(a_1)
    (3)  alpha = <f - V, m - V> / <m - V, m - V>,  beta = <f - V, A^> / <A^, A^>, at a_1; sums over earlier states

Given s and w, m is a number, so it is a baseline; and the mean of beta A^(a_1) grad log pi(a_1) over a_1 is the first
sum, so the two cancel. Hence with kappa = 1 (2) has the mean of (f - V) grad log pi(a_1), the gradient of actor-critic,
for every model, alpha and beta that do not depend on a_1. The better f^ explains f, the less of the noise is left. (3)
is least squares on each of the two alone, which are uncorrelated if f^ is of one trajectory. A model that knows nothing
gets zeros, and what remains is kappa times actor-critic. kappa < 1 trades noise for the model's errors: the mean is
kappa times the gradient of actor-critic plus (1 - kappa) beta times the one that the model gives.

The random numbers w are those of the real trajectory: the model then takes the same decisions as were taken after a_1,
unless its states ask for others. They are not stored, but drawn given the executed actions:

    (4)  a = argmax_b (log pi(b) + g_b) with standard Gumbel numbers g, and max_b (log pi(b) + g_b) = G is a standard
         Gumbel number that does not depend on a; so log pi(a) + g_a = G, and every other log pi(b) + g_b is a Gumbel
         number with the location log pi(b) that is at most G:  -log(exp(-G) + exp(-log pi(b) - g'_b))

Whatever the state was and however it came about, averaged over the executed action these are standard Gumbel numbers
again, so they do not depend on any earlier action. Several trajectories share the executed actions, and so together
they do depend on them. Each alone does not, and (2) is linear in f^, so its mean stays.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


def gumbels_given(log_probs: Tensor, action: Tensor, fresh: Tensor) -> Tensor:
    """(4): Gumbel numbers [..., D] with which `action` [...] is drawn from log_probs [..., D].

    `fresh` [..., D]: Gumbel numbers that know nothing of the action.
    """
    chosen = action.unsqueeze(-1)
    top = fresh.gather(-1, chosen)  # G
    below = -torch.logaddexp(-top, -(log_probs + fresh))
    return below.scatter(-1, chosen, top) - log_probs


def coefficients(
    log_probs: Tensor,
    actions: Tensor,
    error: Tensor,
    f: Tensor,
    alpha: Tensor,
    beta: Tensor,
    real_weight: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """What grad log pi of each action is multiplied by in (2), [..., D], and the products of (3), [..., 4].

    `actions` [..., D]: all actions, the executed one first; `error` [...]: f - V; `f` [..., D]: f^ - V of `actions`;
    `real_weight`: kappa.
    """
    probs = log_probs.gather(-1, actions).exp()
    mean = (probs * f).sum(-1)  # m - V
    advantage = f - mean.unsqueeze(-1)  # (1)
    executed = advantage[..., 0]
    rest = real_weight * (error - alpha * mean - beta * executed)
    imagined = beta * probs * advantage
    coefficient = torch.cat([imagined[..., :1] + rest.unsqueeze(-1), imagined[..., 1:]], -1)  # (2)
    products = error * mean, mean * mean, error * executed, executed * executed
    return coefficient, torch.stack(products, -1)


def explained(products: Tensor, error: Tensor) -> Tensor:
    """The share of the squares of `error` [B] that (3) explains in the data that the means `products` [4] are of."""
    tiny = torch.finfo(products.dtype).tiny
    squares = products[0].square() / products[1].clamp(min=tiny)
    squares = squares + products[2].square() / products[3].clamp(min=tiny)
    return squares / error.square().mean().clamp(min=tiny)


class Regression(nn.Module):
    """(3), over about the last 1 / `rate` rollouts."""

    sums: Tensor

    def __init__(self, rate: float = 0.05):
        super().__init__()
        self.rate = rate
        self.register_buffer("sums", torch.zeros(4))

    def forward(self) -> tuple[Tensor, Tensor]:
        """alpha and beta, between 0 and 1; 0 as long as nothing is known."""
        sums, tiny = self.sums, torch.finfo(self.sums.dtype).tiny
        alpha = sums[..., 0] / sums[..., 1].clamp(min=tiny)
        beta = sums[..., 2] / sums[..., 3].clamp(min=tiny)
        return alpha.clamp(0.0, 1.0), beta.clamp(0.0, 1.0)

    @torch.no_grad()
    def update(self, products: Tensor) -> None:
        """The means over one rollout, [4] or, of several seeds, [4, S]."""
        self.sums.lerp_(products.movedim(0, -1), self.rate)
