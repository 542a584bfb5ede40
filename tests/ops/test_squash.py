from __future__ import annotations

import torch
from torch.distributions import Normal, TanhTransform, TransformedDistribution

from fleetfoot.ops.squash import squashed_sample


def test_log_density_equals_the_transformed_distribution() -> None:
    random = torch.Generator().manual_seed(0)
    mean, log_std, noise = (torch.randn(64, 3, generator=random).double() * 0.7 for _ in range(3))
    action, log_prob = squashed_sample(mean, log_std, noise)
    reference = TransformedDistribution(Normal(mean, log_std.exp()), [TanhTransform()])
    torch.testing.assert_close(log_prob, reference.log_prob(action).sum(-1), atol=1e-6, rtol=1e-6)  # type: ignore[no-untyped-call]


def test_stays_finite_far_out() -> None:
    mean = torch.tensor([[30.0, -30.0]], requires_grad=True)
    _, log_prob = squashed_sample(mean, torch.zeros(1, 2), torch.zeros(1, 2))
    log_prob.sum().backward()  # type: ignore[no-untyped-call]
    assert bool(torch.isfinite(log_prob).all())
    assert mean.grad is not None
    assert bool(torch.isfinite(mean.grad).all())
