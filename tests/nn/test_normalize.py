from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetfoot.errors import UserError
from fleetfoot.nn.normalize import RunningNorm
from fleetfoot.nn.reward_scale import RewardScale
from support.made_up import make_spec


@settings(max_examples=50, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 20), min_size=1, max_size=6),
    drift=st.floats(-100, 100),
    seed=st.integers(0, 1000),
)
def test_equals_the_statistics_of_all_data(sizes: list[int], drift: float, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    norm = RunningNorm((3,))
    data = [
        torch.randn(rows, 3, generator=random) * (k + 1) + drift * k for k, rows in enumerate(sizes)
    ]
    for batch in data:
        norm.update(batch)
    joint = torch.cat(data).double()
    torch.testing.assert_close(norm.mean, joint.mean(0), atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(norm.variance, joint.var(0, correction=0), atol=1e-8, rtol=1e-8)
    wanted = (joint - joint.mean(0)) / (joint.std(0, correction=0) + 0.01)
    torch.testing.assert_close(norm(joint.float()), wanted.float(), atol=2e-3, rtol=1e-3)


def test_two_distant_batches() -> None:
    """Merging with the already updated mean would give 7.25 here."""
    norm = RunningNorm((1,))
    norm.update(torch.tensor([[-1.0], [1.0]]))
    norm.update(torch.tensor([[9.0], [11.0]]))
    assert norm.variance.item() == pytest.approx(26.0)


def test_reading_never_writes() -> None:
    norm = RunningNorm((2,))
    norm.update(torch.randn(10, 2))
    before = {k: v.clone() for k, v in norm.state_dict().items()}
    norm(torch.randn(100, 2) * 50)
    assert all(torch.equal(v, before[k]) for k, v in norm.state_dict().items())


@settings(max_examples=25, deadline=None)
@given(tasks=st.integers(1, 3), seed=st.integers(0, 1000), steps=st.integers(1, 30))
def test_reward_scale_equals_lists_of_returns(tasks: int, seed: int, steps: int) -> None:
    """Returns are kept per environment, statistics per task, whatever the number of environments of a task."""
    envs, gamma, g_max = 5, 0.9, 2.0
    random = torch.Generator().manual_seed(seed)
    task = torch.arange(envs) % tasks
    scale = RewardScale(envs, tasks, gamma, g_max)
    running = [0.0] * envs
    seen: list[list[float]] = [[] for _ in range(tasks)]
    for _ in range(steps):
        reward = torch.randn(envs, generator=random) * (1 + task)
        ended = torch.rand(envs, generator=random) < 0.2
        scale.update(reward, ended, None if tasks == 1 else task)
        for i in range(envs):
            running[i] = gamma * running[i] + float(reward[i])
            seen[int(task[i])].append(running[i])
            if ended[i]:
                running[i] = 0.0
    for k in range(tasks):
        returns = torch.tensor(seen[k], dtype=torch.float64)
        wanted = max(float(returns.std(correction=0)), float(returns.abs().max()) / g_max)
        assert scale.divisor[k].item() == pytest.approx(wanted, rel=1e-5)
    given = torch.tensor([3.0] * tasks)
    out = scale(given, None if tasks == 1 else torch.arange(tasks))
    torch.testing.assert_close(out, given / scale.divisor)


def test_without_a_discount_rewards_are_not_scaled() -> None:
    with pytest.raises(UserError, match="give a gamma below 1"):
        RewardScale.into(-5.0, 5.0, make_spec(), 1.0)
