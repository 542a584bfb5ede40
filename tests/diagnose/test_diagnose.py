"""Diagnostics against their definitions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fleetfoot import diagnose
from fleetfoot.nn.mlp import MLPConfig


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def network(ensemble_size: int | None = None, layer_norm: bool = False) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        cfg = MLPConfig(hidden=(100, 100), layer_norm=layer_norm)
        return cfg.build(8, 3, ensemble_size=ensemble_size)


@pytest.mark.parametrize("ensemble_size", [None, 2])
@torch.no_grad()
def test_killed_units_are_found(ensemble_size: int | None) -> None:
    net, x = network(ensemble_size), draw(256, 8)
    body: Any = net.body
    layers = [body[0], body[1]]
    # A few are silent by chance.
    assert float(diagnose.dormant(diagnose.hidden_activations(net, x))) < 0.03
    for layer in layers:
        layer.weight[..., :30] = 0.0
        layer.bias[..., :30] = -1.0
    assert float(diagnose.dormant(diagnose.hidden_activations(net, x))) == pytest.approx(
        0.30, abs=0.02
    )


def test_dormant_by_hand() -> None:
    """Mean sizes 0, 1, 3 and 4 have the mean 2, so the scores are 0, 0.5, 1.5 and 2."""
    h = torch.tensor([[0.0, 2.0, -3.0, 4.0], [0.0, 0.0, 3.0, 4.0]])
    for tau, share in ((0.025, 0.25), (0.5, 0.5), (0.49, 0.25), (1.5, 0.75)):
        assert float(diagnose.dormant([h], tau)) == share
    assert float(diagnose.dormant([h, torch.zeros(5, 2)])) == pytest.approx(3 / 6)


def test_hidden_sees_each_layer_after_its_relu_and_leaves_no_hooks() -> None:
    x = draw(16, 8)
    for layer_norm in (False, True):
        net = network(layer_norm=layer_norm)
        first, second = diagnose.hidden_activations(net, x)
        assert first.shape == second.shape == (16, 100)
        assert first.min() == second.min() == 0.0
        assert torch.equal(net.head(second), net(x))  # type: ignore[operator]
        assert not any(module._forward_hooks for module in net.modules())
    assert not first.requires_grad


def test_effective_rank_of_a_noisy_matrix_of_rank_3() -> None:
    low = draw(200, 3) @ draw(3, 64, seed=1)
    noisy = low + 1e-6 * draw(200, 64, seed=2)
    assert float(diagnose.effective_rank(noisy)) == 3
    assert float(diagnose.effective_rank(torch.stack([noisy, draw(200, 1) @ draw(1, 64)]))) == 2
    assert float(diagnose.effective_rank(torch.zeros(4, 4))) == 0


@pytest.mark.parametrize(("share", "rank"), [(0.5, 1), (0.51, 2), (0.8, 2), (0.81, 3), (1.0, 4)])
def test_effective_rank_by_hand(share: float, rank: int) -> None:
    """Singular values 5, 3, 1, 1: of their sum, 10, the first hold 5, 8, 9, 10."""
    features = torch.diag(torch.tensor([1.0, 5.0, 1.0, 3.0]))
    assert float(diagnose.effective_rank(features, share)) == rank


def test_norms() -> None:
    net = nn.Linear(2, 1)
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[3.0, 0.0]]))
        net.bias.fill_(4.0)
    assert float(diagnose.parameter_norm(net)) == 5.0
    assert float(diagnose.feature_norm(torch.tensor([[3.0, 4.0], [0.0, 1.0]]))) == 3.0


def test_plasticity_gathers_them() -> None:
    net, x = network(ensemble_size=2), draw(64, 8)
    found = diagnose.plasticity(net, x)
    features = diagnose.hidden_activations(net, x)[-1]
    assert set(found) == {"dormant", "rank", "feature_norm", "parameter_norm"}
    assert found["rank"] == diagnose.effective_rank(features)
    assert set(diagnose.plasticity(nn.Linear(8, 1), x)) == {"parameter_norm"}


def test_monte_carlo_by_hand() -> None:
    """Four environments, three steps, gamma 1/2: goes on, terminates, is truncated, terminates at once."""
    reward = torch.tensor([[1.0, 1.0, 1.0, 8.0], [2.0, 2.0, 2.0, 4.0], [4.0, 4.0, 4.0, 2.0]])
    terminated = torch.zeros(3, 4, dtype=torch.bool)
    truncated = torch.zeros(3, 4, dtype=torch.bool)
    terminated[1, 1] = truncated[1, 2] = terminated[0, 3] = True
    next_value = torch.full((3, 4), 16.0)
    returns = diagnose.monte_carlo(reward, terminated, truncated, next_value, 0.5)
    by_hand = [[5.0, 2.0, 6.0, 8.0], [8.0, 2.0, 10.0, 9.0], [12.0, 12.0, 12.0, 10.0]]
    assert returns.tolist() == by_hand


def test_overestimation_is_relative_and_counts_what_it_is_told() -> None:
    returns = torch.tensor([[-4.0, 2.0], [6.0, 99.0]])
    counted = torch.tensor([[True, True], [True, False]])
    assert float(diagnose.overestimation(returns + 1.0, returns, counted)) == pytest.approx(1 / 4)
    assert float(diagnose.overestimation(returns - 2.0, returns, counted)) == pytest.approx(-1 / 2)


def test_overfitting_is_a_ratio_and_a_difference() -> None:
    ratio, difference = diagnose.overfitting(torch.tensor(0.5), torch.tensor(2.0))
    assert (float(ratio), float(difference)) == (4.0, 1.5)
