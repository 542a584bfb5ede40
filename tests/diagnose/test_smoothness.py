"""What evaluations measure besides returns, against its definitions."""

from __future__ import annotations

import math

import numpy as np
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
def test_differences_within_episodes(seed: int, lengths: list[int]) -> None:
    random = torch.Generator().manual_seed(seed)
    actions = 2 * torch.rand(12, len(lengths), 3, generator=random) - 1
    found = measure(actions, lengths)
    for name, order in (("action_change", 1), ("action_jerk", 3)):
        episodes = [actions[:length, i].double().numpy() for i, length in enumerate(lengths)]
        wanted = [np.abs(np.diff(episode, order, axis=0)).mean(1) for episode in episodes]
        flat = np.concatenate(wanted)
        if len(flat) == 0:
            assert name not in found
        else:
            assert found[name] == pytest.approx(flat.mean(), rel=1e-5)


@pytest.mark.parametrize(("hertz", "share"), [(1.0, 0.0), (4.0, 0.0), (16.0, 1.0), (20.0, 1.0)])
def test_power_of_a_wave_lies_at_its_frequency(hertz: float, share: float) -> None:
    t = torch.arange(256) * 0.02
    wave = 0.3 + torch.sin(2 * math.pi * hertz * t)
    found = measure(wave[:, None, None].expand(-1, 2, 1), [256, 256])["action_above_10hz"]
    assert found == pytest.approx(share, abs=1e-3)


def test_noise_has_its_power_everywhere() -> None:
    random = torch.Generator().manual_seed(0)
    noise = torch.randn(512, 8, 4, generator=random)
    found = measure(noise, [512] * 8)["action_above_10hz"]
    # Of the frequencies k / 64 / 0.02 s, those with k from 13 to 32, the last of which counts half.
    assert found == pytest.approx(19.5 / 31.5, abs=0.02)


def test_no_spectrum_where_there_is_none_to_see() -> None:
    wave = torch.zeros(256, 1, 1)
    assert "action_above_10hz" not in measure(wave, [256], step_seconds=0.05)
    assert "action_above_10hz" not in measure(wave, [63])
    assert measure(wave, [256])["action_above_10hz"] == 0.0


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
