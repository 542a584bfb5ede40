"""Spectral norm, CReLU, orthogonal starts and ReDo, each against its definition."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from fleetfoot.errors import UserError
from fleetfoot.nn.linear import LayerNorm, Linear
from fleetfoot.nn.mlp import MLP, CReLU, MLPConfig
from fleetfoot.nn.redo import ReDo, fresh_columns
from fleetfoot.nn.spectral import SpectralLinear
from fleetfoot.optim import AdamConfig


def make(
    ensemble_size: int | None = 2, inputs: int = 5, outputs: int = 1, **changes: object
) -> MLP:
    torch.manual_seed(0)
    net = MLPConfig(**{"hidden": (32, 32), "start": "orthogonal"} | changes).build(  # type: ignore[arg-type]
        inputs, outputs, ensemble_size
    )
    assert isinstance(net, MLP)
    return net


@pytest.mark.parametrize("ensemble_size", [None, 2])
def test_orthogonal_starts_have_gain_sqrt_two_and_no_bias(ensemble_size: int | None) -> None:
    for layer in make(ensemble_size).modules():
        if isinstance(layer, Linear):
            sizes = torch.linalg.svdvals(layer.weight)
            torch.testing.assert_close(sizes, torch.full_like(sizes, math.sqrt(2.0)))
            assert layer.bias is not None
            assert not layer.bias.any()


@pytest.mark.parametrize("ensemble_size", [None, 3])
def test_spectral_layers_divide_by_the_largest_singular_value(ensemble_size: int | None) -> None:
    layer = SpectralLinear(7, 16, ensemble_size)
    with torch.no_grad():
        layer.weight.mul_(3.0)
    for _ in range(30):
        layer.iterate_()
    sigma = torch.linalg.svdvals(layer.weight)[..., :1, None]
    torch.testing.assert_close(layer.normalized(), layer.weight / sigma, rtol=1e-3, atol=1e-4)
    x = torch.randn(4, 7)
    assert layer.bias is not None
    wanted = x @ (layer.weight / sigma) + layer.bias.unsqueeze(-2)
    torch.testing.assert_close(layer(x), wanted, rtol=1e-3, atol=1e-3)


def test_spectral_weights_stay_below_one_while_they_learn_and_the_output_layer_is_free() -> None:
    net = make(spectral_norm=True)
    assert [type(m) for m in net.body] == [SpectralLinear, SpectralLinear]
    assert type(net.head) is Linear
    step = AdamConfig(lr=3e-3).build(net, 100)
    x = torch.randn(64, 5)
    y = 20 * x[:, :1] * x[:, 1:2]
    for _ in range(100):
        step((net(x) - y).square().mean())
        for layer in net.body:
            assert isinstance(layer, SpectralLinear)
            assert torch.linalg.svdvals(layer.normalized()).max() <= 1 + 1e-3
    first = net.body[0]
    assert isinstance(first, SpectralLinear)
    # Without its division the weight would be beyond.
    assert torch.linalg.svdvals(first.weight).max() > 1.2


def test_the_gradient_of_a_spectral_layer_is_that_of_its_definition() -> None:
    layer = SpectralLinear(4, 3).double()
    for _ in range(200):
        layer.iterate_()

    def by_definition(weight: Tensor) -> Tensor:
        singular: Tensor = torch.linalg.svdvals(weight)
        return (weight / singular[0]).sin().sum()

    (exact,) = torch.autograd.grad(by_definition(layer.weight), layer.weight)
    (found,) = torch.autograd.grad(layer.normalized().sin().sum(), layer.weight)
    torch.testing.assert_close(found, exact)


def test_several_networks_with_spectral_norm_can_be_computed_as_one() -> None:
    nets = [make(spectral_norm=True, layer_norm=False) for _ in range(3)]
    for i, net in enumerate(nets):
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.add_(0.1 * (i + 1))
        net.constrain_()
    weights, buffers = torch.func.stack_module_state(nets)
    x = torch.randn(3, 6, 5)

    def one(w: dict[str, Tensor], b: dict[str, Tensor], rows: Tensor) -> Tensor:
        out: Tensor = torch.func.functional_call(nets[0], (w, b), (rows,))
        return out.square().mean()

    together = torch.func.vmap(torch.func.grad(one))(weights, buffers, x)
    for i, net in enumerate(nets):
        alone = torch.autograd.grad(net(x[i]).square().mean(), list(net.parameters()))
        for name, gradient in zip(dict(net.named_parameters()), alone, strict=True):
            torch.testing.assert_close(together[name][i], gradient, rtol=1e-4, atol=1e-5)


def test_crelu_keeps_both_signs_and_the_width() -> None:
    x = torch.tensor([[1.0, -2.0]])
    torch.testing.assert_close(CReLU()(x), torch.tensor([[1.0, 0.0, 0.0, 2.0]]))
    plain, both = make(), make(activation=("crelu",))
    assert [m.weight.shape[-2:] for m in both.modules() if isinstance(m, Linear)] == [
        (5, 16),
        (32, 16),
        (32, 1),
    ]
    out = both.body(torch.randn(4, 5))
    assert out.shape == plain.body(torch.randn(4, 5)).shape == (2, 4, 32)
    with pytest.raises(UserError, match="even"):
        make(hidden=(31,), activation=("crelu",))


def test_fresh_columns_are_those_of_an_orthogonal_start() -> None:
    """Second and fourth moments of an entry agree with many orthogonal matrices, for tall and for wide layers."""
    for inputs, outputs in ((8, 4), (4, 8)):
        many = make(1500, inputs, hidden=(outputs,)).body[0]
        assert isinstance(many, Linear)
        normal = torch.randn(1500, 8, outputs, generator=torch.Generator().manual_seed(1))
        fresh = fresh_columns(normal, inputs)
        assert fresh.shape == many.weight.shape
        for power in (2, 4):
            wanted, found = (w.detach().pow(power).mean().item() for w in (many.weight, fresh))
            assert found == pytest.approx(wanted, rel=0.03)
        lengths = (torch.linalg.vector_norm(w.detach(), dim=-2) for w in (many.weight, fresh))
        wanted_std, found_std = (each.std().item() for each in lengths)
        assert found_std == pytest.approx(wanted_std, rel=0.05, abs=1e-5)


@pytest.mark.parametrize("layer_norm", [False, True])
def test_redo_finds_the_dead_and_restarts_them_alone(layer_norm: bool) -> None:
    net = make(hidden=(100, 100), layer_norm=layer_norm)
    redo = ReDo(net, tau=0.025)
    step = AdamConfig(lr=1e-3).build(net, 100)
    x = torch.randn(256, 5)
    for _ in range(3):
        step((net(x) - 1.0).square().mean())
    before_any = torch.stack(redo.dormant(redo.activity(x))).float().mean().item()
    killed = torch.arange(100) < 30
    with torch.no_grad():
        for module in net.body:
            if isinstance(module, LayerNorm if layer_norm else Linear):
                module.bias[..., killed] = -100.0  # type: ignore[index]
    old = [p.detach().clone() for p in net.parameters()]
    dormant = redo.dormant(redo.activity(x))
    share = torch.stack(dormant).float().mean().item()
    assert share == pytest.approx(0.30, abs=0.02)
    assert all(each[:, :30].all() for each in dormant)
    noise = [torch.randn(shape) for shape in redo.shapes()]
    redo.restart_(dormant, noise, step.optimizer)
    after = torch.stack(redo.dormant(redo.activity(x))).float().mean().item()
    assert after <= max(before_any, 0.02)
    first, second, head = (m for m in net.modules() if isinstance(m, Linear))
    asleep = dormant[0]
    new = list(net.parameters())
    for was, now in zip(old, new, strict=True):
        assert not torch.equal(was, now) or now is head.bias
    for e in range(2):
        assert not first.weight[e][:, ~asleep[e]].ne(old[0][e][:, ~asleep[e]]).any()
        assert not second.weight[e][asleep[e]].any()
        assert not head.weight[e][dormant[1][e]].any()
        for moment in ("exp_avg", "exp_avg_sq"):
            kept = step.optimizer.state[first.weight][moment][e]
            assert not kept[:, asleep[e]].any()
            assert kept[:, ~asleep[e]].any()
            assert not step.optimizer.state[second.weight][moment][e][asleep[e]].any()


def test_redo_refuses_networks_it_does_not_know() -> None:
    for net in (make(activation=("crelu",)), make(start="torch")):
        with pytest.raises(UserError, match="ReDo needs"):
            ReDo(net, 0.025)
