from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from fleetfoot.nn.embed import Borrowed, UnitEmbedding
from fleetfoot.nn.return_extremes import ReturnExtremes, discounted_sums


def no(count: int) -> Tensor:
    return torch.zeros(count, dtype=torch.bool)


def test_a_constant_reward_in_closed_form() -> None:
    """Reward 1, horizon 1,000, truncated, gamma 0.99: every return is 100, two actions want 50 alpha more."""
    alpha, actions = torch.tensor(0.1), 2
    scale = ReturnExtremes(1, 1, 1_000, gamma=0.99, v_max=10.0, margin=actions / 4 / (1 - 0.99))
    for step in range(1_000):
        assert scale(torch.ones(1), None, alpha) == 0.0  # nothing is known yet
        scale.update(torch.ones(1), no(1), torch.tensor([step == 999]), None)
    assert scale.highest.item() == pytest.approx(100.0, rel=1e-12)
    assert scale.lowest.item() == pytest.approx(100.0, rel=1e-12)
    value = 100 * scale(torch.ones(1), None, alpha).item()
    assert value == pytest.approx(10 * 100 / (100 + 0.1 * 25 * actions), rel=1e-6)


@pytest.mark.parametrize("gamma", [0.0, 0.3, 0.99])
def test_against_the_definition(gamma: float) -> None:
    """Six environments, three tasks, episodes of all lengths that end both ways, some longer than the window."""
    torch.manual_seed(0)
    window, task = 7, torch.tensor([0, 1, 2, 0, 1, 0])
    scale = ReturnExtremes(6, 4, window, gamma=gamma, v_max=10.0, margin=0.0)
    low, high = [math.inf] * 4, [-math.inf] * 4
    running: list[list[float]] = [[] for _ in range(6)]
    for _ in range(60):
        reward = torch.randn(6)
        terminated = torch.rand(6) < 0.1
        truncated = (torch.rand(6) < 0.1) & ~terminated
        scale.update(reward, terminated, truncated, task)
        for i, episode in enumerate(running):
            episode.append(reward[i].item())
            if terminated[i] or truncated[i]:
                kept = episode[-window:]
                g = sum(kept) / len(kept) / (1 - gamma) if truncated[i] else 0.0
                for r in reversed(kept):
                    g = r + gamma * g
                    low[task[i]], high[task[i]] = min(low[task[i]], g), max(high[task[i]], g)
                episode.clear()
    assert scale.lowest.tolist() == pytest.approx(low)
    assert scale.highest.tolist() == pytest.approx(high)
    largest = torch.tensor([max(a, abs(b)) for a, b in zip(high, low, strict=True)])
    torch.testing.assert_close(scale.largest, largest)
    scaled = scale(torch.ones(4), torch.arange(4), torch.tensor(0.1))
    torch.testing.assert_close(scaled, 10 / largest)
    assert scaled[3] == 0  # a task that nobody has played


def test_returns_that_have_all_been_zero_scale_to_zero() -> None:
    """A sparse task whose reward nobody has found yet, without room for entropy."""
    scale, alpha = ReturnExtremes(1, 1, 5, gamma=0.9, v_max=10.0, margin=0.0), torch.tensor(0.1)
    scale.update(torch.zeros(1), torch.tensor([True]), no(1), None)
    assert scale(torch.tensor([0.0, 1.0]), None, alpha).tolist() == [0.0, 0.0]
    scale.update(torch.full((1,), 2.0), torch.tensor([True]), no(1), None)
    assert scale(torch.tensor([0.0, 1.0]), None, alpha).tolist() == [0.0, 5.0]


def test_all_rewards_times_a_thousand_are_scaled_to_the_same() -> None:
    one, large = (ReturnExtremes(2, 1, 10, gamma=0.9, v_max=10.0, margin=0.0) for _ in range(2))
    generator = torch.Generator().manual_seed(0)
    for step in range(20):
        reward, end = torch.randn(2, generator=generator), torch.full((2,), step % 10 == 9)
        one.update(reward, no(2), end, None)
        large.update(1_000 * reward, no(2), end, None)
    reward, alpha = torch.randn(5, generator=generator), torch.tensor(0.1)
    torch.testing.assert_close(one(reward, None, alpha), large(1_000 * reward, None, alpha))


def test_discounted_sums_do_not_overflow() -> None:
    x = torch.ones(3_000, dtype=torch.float64)
    torch.testing.assert_close(discounted_sums(x, 0.5)[-1].item(), 2.0)
    assert discounted_sums(x, 0.0).tolist() == [1.0] * 3_000


def test_unit_vectors_can_be_borrowed_but_not_taught() -> None:
    table = UnitEmbedding(3, 8)
    with torch.no_grad():
        table.weight.mul_(torch.tensor([[0.1], [1.0], [40.0]]))
    task = torch.tensor([0, 1, 2, 1])
    torch.testing.assert_close(table(task).norm(dim=-1), torch.ones(4))
    assert table(task).requires_grad
    assert not Borrowed(table)(task).requires_grad
    assert torch.equal(Borrowed(table)(task), table(task))
