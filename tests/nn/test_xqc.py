from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from fleetfoot.errors import UserError
from fleetfoot.nn.batch_norm import BatchNorm, statistics, store_
from fleetfoot.nn.flash import UnitLinear
from fleetfoot.nn.network import Network
from fleetfoot.nn.xqc import XQCNetConfig
from fleetfoot.optim import AdamConfig
from oracles.xqc import PlainXQC

SMALL = XQCNetConfig(width=8, layers=3)
NEAR: dict[str, Any] = {"atol": 1e-5, "rtol": 1e-5}


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def shaken(network: Network) -> Network:
    """Weights and statistics away from where they start."""
    with torch.no_grad():
        for number, tensor in enumerate([*network.parameters(), *network.buffers()]):
            tensor.add_(normal(*tensor.shape, seed=number).abs() * 0.3)
    return network


def norms(network: Network) -> list[BatchNorm]:
    return [module for module in network.modules() if isinstance(module, BatchNorm)]


def lengths(network: Network) -> list[Tensor]:
    linears = [module for module in network.modules() if isinstance(module, UnitLinear)]
    return [linear.weight.detach().norm(dim=-2) for linear in linears]


def test_a_network_is_the_plain_one_in_both_modes() -> None:
    torch.manual_seed(0)
    net = shaken(SMALL.build(5, 3))
    plain = PlainXQC(net, None)
    x = normal(9, 5)
    torch.testing.assert_close(net(x), plain.eval()(x), **NEAR)
    fresh: list[Tensor] = []
    torch.testing.assert_close(net(x, fresh), plain.train()(x), **NEAR)
    store_(statistics(net), fresh)
    torch.testing.assert_close(net(x), plain.eval()(x), **NEAR)


@pytest.mark.parametrize("shared", [True, False])
def test_members_are_networks_of_their_own(shared: bool) -> None:
    torch.manual_seed(0)
    net = shaken(SMALL.build(5, 3, ensemble_size=2))
    x = normal(9, 5) if shared else normal(2, 9, 5)
    fresh: list[Tensor] = []
    trained, given = net(x, fresh), net(x)
    for member in range(2):
        own = x if shared else x[member]
        plain = PlainXQC(net, member)
        torch.testing.assert_close(given[member], plain.eval()(own), **NEAR)
        torch.testing.assert_close(trained[member], plain.train()(own), **NEAR)


def test_statistics_come_in_the_order_of_the_calls() -> None:
    """With features of different widths, and of different statistics: each is stored where it belongs."""
    torch.manual_seed(0)
    net = SMALL.build(5, 3, ensemble_size=2)
    called: list[BatchNorm] = []
    for norm in norms(net):
        norm.register_forward_pre_hook(lambda module, _: called.append(module))
    fresh: list[Tensor] = []
    net(3 * normal(9, 5) + 2, fresh)
    assert called == norms(net)
    assert len(fresh) == 2 * (1 + SMALL.layers)
    assert [f.shape[1:] for f in fresh] == [s.shape for s in statistics(net)]
    store_(statistics(net), fresh)
    wanted = 0.01 * (3 * normal(9, 5) + 2).mean(0)
    torch.testing.assert_close(norms(net)[0].mean, wanted.expand(2, 5))


def test_weights_have_unit_length_from_the_start_and_after_each_step() -> None:
    """Scales, shifts and the head's bias go where the optimiser takes them."""
    torch.manual_seed(0)
    net = SMALL.build(5, 3, ensemble_size=2)
    step = AdamConfig(lr=0.1).build(net, 10)
    for seed in range(3):
        before = copy.deepcopy(net)
        step(net(normal(9, 5, seed=seed), []).square().mean())
        for length in (*lengths(before), *lengths(net)):
            torch.testing.assert_close(length, torch.ones_like(length), atol=1e-6, rtol=0)
        for old, new in zip(norms(before), norms(net), strict=True):
            assert float((new.weight - old.weight).detach().abs().max()) > 0.01
    for norm in norms(net):
        squares = norm.weight.square().sum(-1) + norm.bias.square().sum(-1)
        assert bool(((squares / norm.weight.shape[-1] - 1).abs() > 1e-3).all())  # as Adam left them
    head: Any = net.get_submodule("head")
    assert float(head.bias.detach().abs().min()) > 0.0


def test_the_shift_of_the_first_norm_means_nothing() -> None:
    """The norm of the first layer subtracts it; it is there because the authors have it."""
    net = SMALL.build(5, 3)
    shift: Any = net.get_submodule("norm").bias
    x = normal(9, 5)
    before = net(x, [])
    (gradient,) = torch.autograd.grad(before.square().sum(), shift)
    torch.testing.assert_close(gradient, torch.zeros(5), atol=1e-4, rtol=0)
    with torch.no_grad():
        shift.add_(normal(5, seed=1))
    torch.testing.assert_close(net(x, []), before, **NEAR)


def test_length_means_nothing() -> None:
    """Weights seven times as long are the same after the projection."""
    net = shaken(SMALL.build(5, 3))
    net.constrain_()
    long = copy.deepcopy(net)
    with torch.no_grad():
        for module in long.modules():
            if isinstance(module, UnitLinear):
                module.weight.mul_(7.0)
    long.constrain_()
    torch.testing.assert_close(long(normal(9, 5)), net(normal(9, 5)), **NEAR)


def test_the_start_and_the_published_size() -> None:
    torch.manual_seed(0)
    net = XQCNetConfig(width=64).build(20, 12)
    features = net(normal(500, 20), [])
    assert 0.4 < features.std().item() < 1.2  # unit rows on features whose mean square is a half
    head: Any = net.get_submodule("head")
    assert float(head.bias.detach().abs().max()) == 0.0
    # dm_control's humanoid: 67 observations, 21 actions. About 2 million, as the authors say.
    critic = XQCNetConfig().build(67 + 21, 101, ensemble_size=2)
    policy = XQCNetConfig(width=256).build(67, 2 * 21)
    count = [sum(p.numel() for p in each.parameters()) for each in (critic, policy)]
    hidden = 88 * 512 + 3 * 512**2 + 512 * 101 + 101 + 2 * (88 + 4 * 512)
    assert count[0] == 2 * hidden
    assert 1.8e6 < sum(count) < 2.2e6


def test_wrong_sizes() -> None:
    for wrong in ({"width": 0}, {"layers": 0}):
        with pytest.raises(UserError, match=next(iter(wrong))):
            XQCNetConfig(**wrong)
