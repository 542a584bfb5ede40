"""What evaluations measure besides returns, against its definitions."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fleetfoot.diagnose import SmoothnessMeter
from fleetfoot.evaluate import Evaluation, InfoMeter


def measure(actions: Tensor, lengths: list[int], step_seconds: float = 0.02) -> dict[str, float]:
    """actions [T, N, A]; the episode of environment i has lengths[i] steps."""
    meter = SmoothnessMeter(step_seconds)
    for t, action in enumerate(actions):
        meter.update(action, torch.tensor([t < length for length in lengths]))
    return meter.metrics()


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000), lengths=st.lists(st.integers(1, 12), min_size=1, max_size=4))
def test_means_of_what_a_task_tells_within_episodes(seed: int, lengths: list[int]) -> None:
    """Robots on a GPU tell something only in some steps. What is not for the log is left out."""
    rows = torch.rand(12, len(lengths), generator=torch.Generator().manual_seed(seed))
    every, third = InfoMeter(), InfoMeter()
    for t, row in enumerate(rows):
        running = torch.tensor([t < length for length in lengths])
        late = {"env/late": row} if t else {}  # begins to be told in the middle of episodes
        every.update({"env/error": row, "success": row} | late, running)
        third.update({"env/error": row, "env/twice": 2 * row} if t % 3 == 0 else {}, running)
    inside = torch.tensor([[t < length for length in lengths] for t in range(12)])
    assert every.metrics() == {"error": pytest.approx(float(rows[inside].mean()), rel=1e-5)}
    mean = float(rows[::3][inside[::3]].mean())
    wanted = {"error": pytest.approx(mean, rel=1e-5), "twice": pytest.approx(2 * mean, rel=1e-5)}
    assert third.metrics() == wanted
    assert InfoMeter().metrics() == {}


def test_a_task_cannot_take_the_name_of_the_return() -> None:
    """The best checkpoint goes by it."""
    told = {"return": 777.0, "length": 3.0, "action_jerk": 5.0, "speed": 2.0}
    ten = torch.tensor([10.0, 10.0])
    found = Evaluation(ten, ten, None, smoothness={"action_jerk": 1.0}, task_means=told).metrics()
    assert found["eval/return"] == found["eval/length"] == 10.0
    assert found["eval/action_jerk"] == 1.0
    assert found["eval/speed"] == 2.0
