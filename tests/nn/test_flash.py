from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fleetfoot.nn.batch_norm import BatchNorm, statistics, store_
from fleetfoot.nn.flash import FlashNetConfig, RMSNorm, UnitLinear
from fleetfoot.nn.mlp import MLPConfig
from oracles.flash_sac import Trunk

SMALL = FlashNetConfig(width=8, blocks=2)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def shaken(network: Any) -> Any:
    """Weights and statistics away from where they start."""
    with torch.no_grad():
        for number, tensor in enumerate([*network.parameters(), *network.buffers()]):
            tensor.add_(normal(*tensor.shape, seed=number).abs() * 0.3)
    return network


def test_a_network_is_the_plain_one_in_both_modes() -> None:
    torch.manual_seed(0)
    net = shaken(SMALL.build(5, 3))
    plain = Trunk(net, None)
    x = normal(9, 5)
    torch.testing.assert_close(net(x), plain.eval()(x), atol=1e-5, rtol=1e-5)
    fresh: list[Tensor] = []
    torch.testing.assert_close(net(x, fresh), plain.train()(x), atol=1e-5, rtol=1e-5)
    store_(statistics(net), fresh)
    torch.testing.assert_close(net(x), plain.eval()(x), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("shared", [True, False])
def test_members_are_networks_of_their_own(shared: bool) -> None:
    torch.manual_seed(0)
    net = shaken(SMALL.build(5, 3, ensemble_size=2))
    x = normal(9, 5) if shared else normal(2, 9, 5)
    fresh: list[Tensor] = []
    trained, given = net(x, fresh), net(x)
    for member in range(2):
        own = x if shared else x[member]
        plain = Trunk(net, member)
        torch.testing.assert_close(given[member], plain.eval()(own), atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(trained[member], plain.train()(own), atol=1e-5, rtol=1e-5)


def test_running_statistics_take_a_hundredth_and_the_unbiased_variance() -> None:
    norm, x = BatchNorm(3), 2 * normal(10, 3) + 1
    fresh: list[Tensor] = []
    norm(x, fresh)
    assert torch.equal(norm.mean, torch.zeros(3))  # nothing is written yet
    store_(statistics(norm), fresh)
    torch.testing.assert_close(norm.mean, 0.01 * x.mean(0))
    torch.testing.assert_close(norm.variance, 0.99 + 0.01 * x.var(0))
    for _ in range(2_000):
        fresh = []
        norm(x, fresh)
        store_(statistics(norm), fresh)
    torch.testing.assert_close(norm.mean, x.mean(0), atol=1e-4, rtol=1e-4)
    # The same rows again: evaluation mode gives what training mode gave, but for the variance's correction.
    torch.testing.assert_close(norm(x), norm(x, []) * 0.9**0.5, atol=1e-3, rtol=1e-3)


def test_one_row_has_no_variance() -> None:
    with pytest.raises(ValueError, match="one row"):
        BatchNorm(3)(normal(1, 3), [])


def test_statistics_come_in_the_order_of_the_calls() -> None:
    net = SMALL.build(5, 3, ensemble_size=2)
    fresh: list[Tensor] = []
    net(normal(9, 5), fresh)
    assert [f.shape[1:] for f in fresh] == [s.shape for s in statistics(net)]
    assert len(fresh) == 2 * (1 + 2 * SMALL.blocks)


def test_networks_without_statistics_take_and_ignore_the_list() -> None:
    net, fresh = MLPConfig(hidden=(4,)).build(3, 2), [torch.zeros(1)]
    x = normal(5, 3)
    assert torch.equal(net(x, fresh), net(x))
    assert len(fresh) == 1
    assert statistics(net) == []
    store_([], [])


def test_projections_bring_everything_to_its_length() -> None:
    net: Any = shaken(SMALL.build(5, 3, ensemble_size=2))
    net.constrain_()
    for module in net.modules():
        if isinstance(module, UnitLinear):
            torch.testing.assert_close(
                module.weight.norm(dim=-2), torch.ones(2, module.weight.shape[-1])
            )
        if isinstance(module, BatchNorm):
            size = module.weight.square().sum(-1) + module.bias.square().sum(-1)
            torch.testing.assert_close(size, torch.full((2,), float(module.weight.shape[-1])))
        if isinstance(module, RMSNorm):
            torch.testing.assert_close(module.weight.square().sum(-1), torch.full((2,), 8.0))
    again = copy.deepcopy(net)
    again.constrain_()
    for one, two in zip(net.parameters(), again.parameters(), strict=True):
        torch.testing.assert_close(one, two)


def test_length_means_nothing() -> None:
    """Weights seven times as long, or moved along themselves, are the same after the projection."""
    net = SMALL.build(5, 3)
    long = copy.deepcopy(net)
    with torch.no_grad():
        for module in long.modules():
            if isinstance(module, UnitLinear):
                module.weight.mul_(7.0)
    long.constrain_()
    x = normal(9, 5)
    torch.testing.assert_close(long(x), net(x), atol=1e-5, rtol=1e-5)


def test_the_start() -> None:
    torch.manual_seed(0)
    net = FlashNetConfig(width=64, blocks=2).build(20, 12)
    out = net(normal(500, 20), [])
    assert out.std().item() == pytest.approx(1.0, abs=0.2)  # unit rows on features of size 1
    assert not net.state_dict()["head.bias"].any()
    published = FlashNetConfig().build(245, 101, ensemble_size=2)
    assert sum(p.numel() for p in published.parameters()) == 2_286_238


def test_rms_norm() -> None:
    norm, x = RMSNorm(6, ensemble_size=2), normal(2, 5, 6)
    with torch.no_grad():
        norm.weight.copy_(normal(2, 6, seed=1))
    for member in range(2):
        wanted = F.rms_norm(x[member], (6,), norm.weight[member], eps=1e-6)
        torch.testing.assert_close(norm(x)[member], wanted)


def test_the_residual_stream_only_grows() -> None:
    net = SMALL.build(5, 3)
    block, x = net.get_submodule("blocks.0"), normal(9, 8)
    assert float((block(x, []) - x).min()) >= 0.0
