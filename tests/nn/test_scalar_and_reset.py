from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from fleetfoot.errors import UserError
from fleetfoot.nn.mlp import MLPConfig
from fleetfoot.nn.normalize import RunningNorm
from fleetfoot.nn.reset import ResetPoint, Resets
from fleetfoot.nn.scalar import ExpConfig, SquashedConfig
from fleetfoot.nn.spectral import SpectralLinear
from fleetfoot.optim import AdamWConfig, RMSPropConfig


def test_adjusters_start_where_they_are_told() -> None:
    for start in (1.0, 0.25):
        assert SquashedConfig(start=start).build()().item() == pytest.approx(start, rel=1e-5)
        assert ExpConfig(start=start).build()().item() == pytest.approx(start, rel=1e-6)
    assert ExpConfig(start=0.5).build(offset=1.0)().item() == pytest.approx(-0.5)


def test_adjusters_keep_to_their_ends() -> None:
    squashed, free = SquashedConfig().build(), ExpConfig(start=1.0).build(offset=1.0)
    for raw, wanted in ((50.0, 7.5), (-50.0, -10.0)):
        with torch.no_grad():
            squashed.get_parameter("raw").fill_(raw)
            free.get_parameter("raw").fill_(raw)
        assert squashed().log().item() == pytest.approx(wanted)
        assert free() >= -1.0
    with pytest.raises(UserError, match="must start between"):
        SquashedConfig(start=0.0).build()
    with pytest.raises(UserError, match="must start above 0"):
        ExpConfig(start=-1.0).build(offset=2.0)


@pytest.mark.parametrize("optim", [AdamWConfig(lr=0.01, lr_end=0.001), RMSPropConfig()])
def test_a_reset_brings_back_weights_and_optimisers_but_not_statistics(
    optim: AdamWConfig | RMSPropConfig,
) -> None:
    net, norm = MLPConfig(hidden=(8,)).build(3, 2), RunningNorm((3,))
    module = torch.nn.Sequential(norm, net)
    step = optim.build(net, total_steps=10)
    initial = ResetPoint([module], [step])
    begun = copy.deepcopy(net.state_dict())
    x = torch.randn(16, 3)

    def learn() -> dict[str, torch.Tensor]:
        for _ in range(4):
            step(module(x).square().mean())
        return {name: value.clone() for name, value in net.state_dict().items()}

    learned = learn()
    assert not torch.equal(learned["head.weight"], begun["head.weight"])
    where = [value.data_ptr() for value in net.parameters()]
    initial.restore_()
    assert [value.data_ptr() for value in net.parameters()] == where
    assert all(torch.equal(begun[name], value) for name, value in net.state_dict().items())
    again = learn()  # a second life is exactly like the first
    assert all(torch.equal(learned[name], again[name]) for name in learned)
    norm.update(x)
    initial.restore_()
    assert norm.count == 16


def test_a_reset_brings_back_what_follows_from_the_weights() -> None:
    net = MLPConfig(hidden=(8,), spectral_norm=True, start="orthogonal").build(3, 2)
    layer = next(module for module in net.modules() if isinstance(module, SpectralLinear))
    initial = ResetPoint([net], [])
    with torch.no_grad():
        layer.weight.normal_()
    net.constrain_()
    initial.restore_()
    norm = torch.linalg.matrix_norm(layer.normalized(), 2).item()
    assert norm == pytest.approx(1.0, abs=1e-3)


def test_counts_that_jump_over_a_reset_meet_it() -> None:
    weight = nn.Linear(1, 1)
    point = ResetPoint([weight], [])

    def made(counts: list[int], **when: Any) -> list[bool]:
        resets = Resets(point, **when)
        return [resets.restore_if_due_(count) for count in counts]

    assert made([15_000, 15_001, 15_002], at=(15_001,)) == [False, True, False]
    assert made([14_990, 15_010, 15_020], at=(15_001,)) == [False, True, False]
    assert made([10, 35, 39, 40], every=10) == [True, True, False, True]
    assert made([3, 7, 8], at=(1, 2, 7)) == [True, True, False], "several at once are one"
    assert made([10**9]) == [False]


def test_resets_that_were_made_are_not_made_again_after_a_restart() -> None:
    one, two = (Resets(ResetPoint([], []), every=10) for _ in range(2))
    assert one.restore_if_due_(25)
    two.load_state_dict(one.state_dict())
    assert [two.restore_if_due_(count) for count in (26, 29, 30)] == [False, False, True]
