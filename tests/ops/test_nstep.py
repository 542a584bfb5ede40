from __future__ import annotations

import pytest
import torch

from fleetfoot.ops.nstep import fold


def test_a_hand_made_episode() -> None:
    """Seven steps with rewards 1..7, n = 3, gamma = 0.9, ending in a termination."""
    rewards = torch.arange(1.0, 8.0)
    windows = torch.arange(7).unsqueeze(1) + torch.arange(3)
    exists = windows < 7
    at = windows.clamp(max=6)
    ended = (at == 6) & exists
    out = fold(rewards[at], ended, ended, exists, gamma=0.9)
    wanted = [1 + 1.8 + 2.43, 2 + 2.7 + 3.24, 3 + 3.6 + 4.05, 4 + 4.5 + 4.86, 5 + 5.4 + 5.67]
    assert out.reward.tolist() == pytest.approx([*wanted, 6 + 6.3, 7.0])
    assert out.discount.tolist() == pytest.approx([0.729] * 4 + [0.0] * 3)
    assert out.length.tolist() == [3, 3, 3, 3, 3, 2, 1]


def test_a_truncated_window_keeps_what_is_left_of_gamma() -> None:
    reward = torch.tensor([[1.0, 2.0, 100.0]])
    ended = torch.tensor([[False, True, False]])
    none = torch.zeros_like(ended)
    out = fold(reward, none, ended, ~none, gamma=0.5)
    assert out.reward.item() == pytest.approx(2.0)
    assert out.discount.item() == pytest.approx(0.25)
    assert out.length.item() == 2
    assert bool(out.ended)
