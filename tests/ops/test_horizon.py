"""Returns over a fixed number of steps, against a loop."""

from __future__ import annotations

import pytest
import torch

from fleetfoot.ops.horizon import horizon_returns, lambda_means

GAMMA = 0.9


@pytest.mark.parametrize("horizon", [1, 2, 5, 12])
def test_against_a_loop(horizon: int) -> None:
    generator = torch.Generator().manual_seed(horizon)
    shape = steps, envs = 9, 40
    reward = torch.randn(shape, generator=generator, dtype=torch.float64)
    next_value = torch.randn(shape, generator=generator, dtype=torch.float64)
    terminated = torch.rand(shape, generator=generator) < 0.15
    truncated = (torch.rand(shape, generator=generator) < 0.15) & ~terminated
    discount = torch.where(terminated, 0.0, GAMMA).double()
    got, after = horizon_returns(reward, discount, terminated | truncated, next_value, horizon)
    for n in range(envs):
        for t in range(steps):
            total, factor, at = 0.0, 1.0, t
            while True:
                total += factor * float(reward[at, n])
                factor *= float(discount[at, n])
                made = at - t + 1
                if made == horizon or terminated[at, n] or truncated[at, n] or at + 1 == steps:
                    break
                at += 1
            total += factor * float(next_value[at, n])
            assert float(got[t, n]) == pytest.approx(total)
            assert int(after[t, n]) == (horizon if terminated[at, n] else made)


@pytest.mark.parametrize("lam", [0.0, 0.7])
def test_lambda_is_a_mean_over_horizons(lam: float) -> None:
    generator = torch.Generator().manual_seed(0)
    shape = steps, _ = 6, 30
    reward = torch.randn(shape, generator=generator, dtype=torch.float64)
    next_value = torch.randn(shape, generator=generator, dtype=torch.float64)
    ended = torch.rand(shape, generator=generator) < 0.2
    discount = torch.where(ended, 0.0, GAMMA).double()
    flow = reward, discount, ended, next_value
    each = torch.stack([horizon_returns(*flow, horizon)[0] for horizon in range(1, steps + 1)])
    for horizon in range(1, steps + 1):
        got, _ = horizon_returns(*flow, horizon, lam)
        weights = [(1 - lam) * lam**i for i in range(horizon - 1)] + [lam ** (horizon - 1)]
        wanted = sum(weight * value for weight, value in zip(weights, each, strict=False))
        assert isinstance(wanted, torch.Tensor)
        torch.testing.assert_close(got, wanted)
        torch.testing.assert_close(lambda_means(each, lam)[horizon - 1], wanted)
