from __future__ import annotations

import importlib

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fleetfoot.ops.batch_norm import batch_norm, fixed_norm

EPS, MOMENTUM = 1e-5, 0.1


@pytest.fixture(autouse=True, params=["_in_one", "_in_parts"])
def _either_form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both, the one of CPUs and the one of GPUs."""
    module = importlib.import_module("fleetfoot.ops.batch_norm")
    monkeypatch.setattr(module, "_in_one", getattr(module, request.param))


def trained(
    x: Tensor, weight: Tensor, bias: Tensor, relu: bool = False, plus: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """With running statistics that were 0 and 1."""
    mean, variance = torch.zeros_like(weight), torch.ones_like(weight)
    return batch_norm(
        x, weight, bias, mean, variance, momentum=MOMENTUM, eps=EPS, relu=relu, plus=plus
    )


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def torchs_own(x: Tensor, weight: Tensor, bias: Tensor, relu: bool) -> Tensor:
    """Member by member."""
    if weight.dim() == 1:
        out = F.batch_norm(x, None, None, weight, bias, training=True, eps=EPS)
        return F.relu(out) if relu else out
    each = x if x.dim() == 3 else x.expand(len(weight), -1, -1)
    rows = zip(each, weight, bias, strict=True)
    return torch.stack([torchs_own(*row, relu) for row in rows])


@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("form", ["single", "ensemble_size", "shared"])
def test_values_statistics_and_gradients_are_those_of_torch(form: str, relu: bool) -> None:
    lead = () if form == "single" else (3,)
    x = 2 * normal(*(lead if form == "ensemble_size" else ()), 17, 5) + 3
    weight, bias = normal(*lead, 5, seed=1), normal(*lead, 5, seed=2)
    leaves = [t.requires_grad_() for t in (x, weight, bias)]
    out, mean, variance = trained(x, weight, bias, relu)
    wanted = torchs_own(x, weight, bias, relu)
    torch.testing.assert_close(out, wanted, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(mean, (0.1 * x.mean(-2)).expand_as(mean))
    torch.testing.assert_close(variance, (0.9 + 0.1 * x.var(-2)).expand_as(variance))
    assert not mean.requires_grad
    assert not variance.requires_grad
    above = normal(*out.shape, seed=3)
    found = torch.autograd.grad(out, leaves, above)
    for one, two in zip(found, torch.autograd.grad(wanted, leaves, above), strict=True):
        torch.testing.assert_close(one, two, atol=1e-4, rtol=1e-4)


def test_a_mean_far_from_zero_loses_no_precision() -> None:
    """An observation that is nearly constant, such as a height in metres."""
    x = (100.0 + 0.01 * normal(512, 3)).requires_grad_()
    weight, bias, above = torch.ones(3), torch.zeros(3), normal(512, 3, seed=1)
    out, _, _ = trained(x, weight, bias)
    (found,) = torch.autograd.grad(out, x, above)
    exact = x.detach().double().requires_grad_()
    wanted = F.batch_norm(exact, None, None, training=True, eps=EPS)
    (slope,) = torch.autograd.grad(wanted, exact, above.double())
    torch.testing.assert_close(out.double(), wanted, atol=2e-3, rtol=0)
    torch.testing.assert_close(found.double(), slope, atol=0.01, rtol=0.002)


def test_gradients_under_vmap_are_those_of_each() -> None:
    x, weight, bias = normal(2, 9, 4), normal(2, 4, seed=1), normal(2, 4, seed=2)
    leaves = [t.requires_grad_() for t in (x, weight, bias)]

    def alone(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return trained(x, weight, bias, relu=True)

    together = torch.vmap(alone)(x, weight, bias)
    each = [alone(*row) for row in zip(x, weight, bias, strict=True)]
    for one, several in zip(together, zip(*each, strict=True), strict=True):
        torch.testing.assert_close(one, torch.stack(several))
    above = normal(2, 9, 4, seed=3)
    found = torch.autograd.grad(together[0], leaves, above)
    wanted = torch.autograd.grad(torch.stack([e[0] for e in each]), leaves, above)
    for one, two in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, two, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("relu", [True, False])
def test_given_statistics(relu: bool) -> None:
    x, weight, bias = normal(2, 7, 4), normal(2, 4, seed=1), normal(2, 4, seed=2)
    mean, variance = normal(2, 4, seed=3), normal(2, 4, seed=4).abs() + 0.1
    found = fixed_norm(x, weight, bias, mean, variance, eps=EPS, relu=relu)
    for member in range(2):
        own = (mean[member], variance[member], weight[member], bias[member])
        wanted = F.batch_norm(x[member], *own, training=False, eps=EPS)
        torch.testing.assert_close(
            found[member], F.relu(wanted) if relu else wanted, atol=1e-5, rtol=1e-5
        )


def test_half_precision_features_have_statistics_in_full() -> None:
    x = (normal(64, 4) + 2).bfloat16()
    out, mean, variance = trained(x, torch.ones(4), torch.zeros(4))
    assert (out.dtype, mean.dtype, variance.dtype) == (torch.bfloat16, torch.float32, torch.float32)
    torch.testing.assert_close(mean, 0.1 * x.float().mean(0))
    mean, variance = x.float().mean(0), x.float().var(0)
    fixed = fixed_norm(x, torch.ones(4), torch.zeros(4), mean, variance, eps=EPS)
    torch.testing.assert_close(fixed, out, atol=0.02, rtol=0.02)


def test_a_sum_behind_it() -> None:
    x, plus = normal(2, 9, 4), normal(2, 9, 4, seed=5).requires_grad_()
    weight, bias = normal(2, 4, seed=1), normal(2, 4, seed=2)
    out, _, _ = trained(x, weight, bias, relu=True, plus=plus)
    torch.testing.assert_close(out, plus + trained(x, weight, bias, relu=True)[0])
    above = normal(2, 9, 4, seed=3)
    assert torch.equal(torch.autograd.grad(out, plus, above)[0], above)
    given = (x, weight, bias, weight, weight.square())
    fixed = fixed_norm(*given, eps=EPS, relu=True, plus=plus)
    torch.testing.assert_close(fixed, plus + fixed_norm(*given, eps=EPS, relu=True))
