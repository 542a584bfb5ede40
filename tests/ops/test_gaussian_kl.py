from __future__ import annotations

import torch
from torch.distributions import Independent, Normal

from fleetfoot.ops.ensemble import bound
from fleetfoot.ops.gaussian_kl import gaussian_kl


def test_the_closed_form_equals_monte_carlo() -> None:
    random = torch.Generator().manual_seed(0)
    mean, other = torch.randn(2, 3, generator=random).double()
    log_std, other_log_std = 0.3 * torch.randn(2, 3, generator=random).double()
    p, q = (
        Independent(Normal(m, s.exp()), 1) for m, s in ((mean, log_std), (other, other_log_std))
    )
    draws = mean + log_std.exp() * torch.randn(400_000, 3, generator=random).double()
    sampled = (p.log_prob(draws) - q.log_prob(draws)).mean()  # type: ignore[no-untyped-call]
    closed = gaussian_kl(mean, log_std, other, other_log_std)
    torch.testing.assert_close(closed, sampled, atol=1e-2, rtol=0)
    assert closed > 0.1
    assert gaussian_kl(mean, log_std, mean, log_std).abs() < 1e-12


def test_bounds_of_two_critics() -> None:
    q = torch.randn(2, 50, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(bound(q, 1.0), q.amin(0))
    torch.testing.assert_close(bound(q, -1.0), q.amax(0))
    torch.testing.assert_close(bound(q, 0.0), q.mean(0))
    assert (bound(q, torch.tensor(-3.0)) > q.amax(0)).all()
