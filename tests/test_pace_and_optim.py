from __future__ import annotations

import copy
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fleetfoot.optim import AdamWConfig, cosine
from fleetfoot.pace import PaceConfig
from fleetfoot.part import UserError


@given(ratio=st.floats(0.01, 10), warmup=st.integers(0, 20), steps=st.integers(0, 200))
def test_updates_add_up_to_the_ratio(ratio: float, warmup: int, steps: int) -> None:
    cfg = PaceConfig(updates_per_vec_step=ratio, warmup_vec_steps=warmup)
    pace = cfg.build()
    owed = [pace.owed() for _ in range(steps)]
    assert sum(owed) == int(max(0, steps - warmup) * ratio) == cfg.updates_after(steps)
    assert all(abs(o - ratio) < 1 for o in owed[warmup:])
    assert not any(owed[:warmup])


def test_negative_ratio() -> None:
    with pytest.raises(UserError, match="0 or more"):
        PaceConfig(updates_per_vec_step=-1.0).build()


def test_first_adamw_step_by_hand() -> None:
    """The first step of AdamW is -lr * sign(gradient), after the weight has shrunk by lr * decay."""
    weight = nn.Parameter(torch.tensor([1.0, -2.0]))
    step = AdamWConfig(lr=0.1, lr_end=0.1, weight_decay=0.5).build([weight], 10)
    norm = step((weight * torch.tensor([3.0, -4.0])).sum())
    assert norm.item() == pytest.approx(5.0)
    assert weight.tolist() == pytest.approx([1 * 0.95 - 0.1, -2 * 0.95 + 0.1], abs=1e-6)


def test_clipping_scales_the_whole_gradient() -> None:
    """Seen in the second moment: after one step it is (1 - beta2) g^2."""
    weight = nn.Parameter(torch.zeros(2))
    cfg = AdamWConfig(weight_decay=0.0, beta2=0.5, max_grad_norm=1.0)
    step = cfg.build([weight], 10)
    step((weight * torch.tensor([3.0, 4.0])).sum())
    second = step.optimizer.state[weight]["exp_avg_sq"]
    assert second.tolist() == pytest.approx([0.5 * 0.36, 0.5 * 0.64], rel=1e-4)


def test_cosine_schedule() -> None:
    assert cosine(1.0, 0.1, 0.0) == pytest.approx(1.0)
    assert cosine(1.0, 0.1, 0.5) == pytest.approx(0.55)
    assert cosine(1.0, 0.1, 7.0) == pytest.approx(0.1)
    weight = nn.Parameter(torch.zeros(1))
    step = AdamWConfig(lr=1e-2, lr_end=1e-3).build([weight], 4)
    rates = []
    for _ in range(4):
        step((weight - 1).square().sum())
        rates.append(step.optimizer.param_groups[0]["lr"].item())
    wanted = [1e-3 + 0.5 * 9e-3 * (1 + math.cos(math.pi * k / 4)) for k in (1, 2, 3, 4)]
    assert rates == pytest.approx(wanted, rel=1e-5)


def test_restored_steppers_go_on_exactly() -> None:
    def make() -> tuple[nn.Parameter, object]:
        weight = nn.Parameter(torch.tensor([1.0, 2.0]))
        return weight, AdamWConfig(lr=1e-2, lr_end=1e-4).build([weight], 20)

    one, step_one = make()
    two, step_two = make()
    for _ in range(5):
        step_one(one.square().sum())  # type: ignore[operator]
    step_two.load_state_dict(copy.deepcopy(step_one.state_dict()))  # type: ignore[attr-defined]
    with torch.no_grad():
        two.copy_(one)
    for _ in range(5):
        step_one(one.square().sum())  # type: ignore[operator]
        step_two(two.square().sum())  # type: ignore[operator]
    assert torch.equal(one, two)
