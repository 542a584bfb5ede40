"""The affine map of compiled code on a GPU against plain autograd. On a CPU it has the same parts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fleetfoot.ops import affine as module
from fleetfoot.ops.affine import affine, backward_in_graph, in_graph

Inputs = tuple[Tensor, Tensor, Tensor]

MEMBERS = st.integers(1, 3)
SIZE = st.integers(1, 9)


def inputs(
    ensemble_size: int, rows: int, size: int, outputs: int, shared: bool, seed: int = 0
) -> tuple[Inputs, Tensor]:
    """x, weight, bias, and a gradient from above; all in float64."""
    random = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=random, dtype=torch.float64)

    x = normal(rows, size) if shared else normal(ensemble_size, rows, size)
    weight, bias = normal(ensemble_size, size, outputs), normal(ensemble_size, outputs)
    return (x, weight, bias), normal(ensemble_size, rows, outputs)


def gradients(
    function: Any, given: Inputs, above: Tensor, needs: tuple[bool, bool, bool], relu: bool
) -> tuple[Tensor, list[Tensor | None]]:
    leaves = [t.clone().requires_grad_(need) for t, need in zip(given, needs, strict=True)]
    out = function(*leaves, relu)
    out.backward(above)
    return out.detach(), [leaf.grad for leaf in leaves]


@settings(max_examples=80, deadline=None)
@given(
    ensemble_size=MEMBERS,
    rows=SIZE,
    size=SIZE,
    outputs=SIZE,
    shared=st.booleans(),
    relu=st.booleans(),
    needs=st.tuples(st.booleans(), st.booleans(), st.booleans()).filter(any),
    seed=st.integers(0, 99),
)
def test_values_and_gradients_are_those_of_plain_autograd(
    ensemble_size: int,
    rows: int,
    size: int,
    outputs: int,
    shared: bool,
    relu: bool,
    needs: tuple[bool, bool, bool],
    seed: int,
) -> None:
    given, above = inputs(ensemble_size, rows, size, outputs, shared, seed)
    out, found = gradients(in_graph, given, above, needs, relu)
    wanted_out, wanted = gradients(affine, given, above, needs, relu)
    torch.testing.assert_close(out, wanted_out)
    for i, (one, two) in enumerate(zip(found, wanted, strict=True)):
        assert (one is None) == (two is None) == (not needs[i])
        if one is not None:
            # Of the bias it is summed up in float32.
            near = 1e-5 if i == 2 else None
            torch.testing.assert_close(one, two, atol=near, rtol=near)


@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("shared", [True, False])
def test_what_is_frozen_costs_no_product(shared: bool, relu: bool) -> None:
    (x, weight, _), above = inputs(2, 5, 4, 3, shared)
    out = in_graph(x, weight, torch.zeros(2, 3, dtype=x.dtype), relu)
    for needs in ([True, False, False], [False, True, True], [False, False, True]):
        found = backward_in_graph(above, x, weight, out, relu, needs)
        assert [g.numel() > 0 for g in found] == needs
    with torch.profiler.profile() as profile:
        backward_in_graph(above, x, weight, out, relu, [True, False, False])
    names = [event.name for event in profile.events()]
    assert sum(name in ("aten::mm", "aten::bmm") for name in names) == 1  # that of x


@pytest.mark.parametrize("ensemble_size", [1, 2, 3])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("relu", [True, False])
def test_is_a_well_formed_operation(ensemble_size: int, shared: bool, relu: bool) -> None:
    given, above = inputs(ensemble_size, 5, 4, 3, shared)
    leaves = [t.requires_grad_() for t in given]
    torch.library.opcheck(in_graph, (*leaves, relu))
    out = in_graph(*given, relu).detach()
    x, weight = (t.detach() for t in given[:2])
    checks = ("test_schema", "test_faketensor")
    for needs in ([True, True, True], [True, False, False], [False, True, True]):
        asked = (above, x, weight, out, relu, needs)
        torch.library.opcheck(backward_in_graph, asked, test_utils=checks)


def test_no_two_results_of_backward_share_memory() -> None:
    """Where only the bias learns, two results are empty, and they must not be one and the same."""
    (x, weight, _), above = inputs(2, 5, 4, 3, shared=False)
    asked = (above, x, weight, above, False, [False, False, True])
    torch.library.opcheck(backward_in_graph, asked, test_utils=("test_schema", "test_faketensor"))
    found = backward_in_graph(*asked)
    assert len({id(g) for g in found}) == 3


@settings(max_examples=60, deadline=None)
@given(
    ensemble_size=st.sampled_from([None, 1, 3]),
    size=st.sampled_from([1, 5, 8, 9, 16]),
    outputs=st.sampled_from([1, 3, 8, 13]),
    shared=st.booleans(),
    biased=st.booleans(),
    relu=st.booleans(),
)
def test_filling_up_with_zeros_changes_nothing(
    ensemble_size: int | None, size: int, outputs: int, shared: bool, biased: bool, relu: bool
) -> None:
    (x, weight, bias), above = inputs(ensemble_size or 1, 6, size, outputs, shared)
    if ensemble_size is None:
        x, weight, bias, above = x.view(6, size), weight[0], bias[0], above[0]

    def call(function: Any) -> list[Tensor]:
        leaves = [t.clone().requires_grad_() for t in (x, weight, bias)]
        out = function(leaves[0], leaves[1], leaves[2] if biased else None, relu)
        out.backward(above)
        return [out.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "ALIGNED", 8)
        patch.setattr(torch, "get_autocast_dtype", lambda device: torch.float64)
        found = call(module._aligned)
    wanted = call(affine)
    assert len(found) == len(wanted) == 3 + biased
    for one, two in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, two, atol=1e-5, rtol=1e-5)


def test_products_are_made_at_aligned_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[torch.Size, ...]] = []

    def watched(x: Tensor, weight: Tensor, bias: Tensor, relu: bool) -> Tensor:
        seen.append((x.shape, weight.shape, bias.shape))
        assert {t.dtype for t in (x, weight, bias)} == {torch.bfloat16}
        return module.fused_affine(x, weight, bias, relu)

    monkeypatch.setattr(module, "in_graph", watched)
    x, weight, bias = torch.randn(6, 70), torch.randn(2, 70, 101), torch.randn(2, 101)
    monkeypatch.setattr(torch, "get_autocast_dtype", lambda device: torch.bfloat16)
    out = module._aligned(x, weight, bias, relu=True)
    assert seen == [((6, 128), (2, 128, 128), (2, 128))]
    assert out.shape == (2, 6, 101)
    wanted = affine(x.bfloat16(), weight.bfloat16(), bias.bfloat16(), relu=True)
    torch.testing.assert_close(out, wanted, atol=0.1, rtol=0.02)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("shared_by", ["members", "seeds", "none"])
@pytest.mark.parametrize("biased", [True, False])
def test_several_seeds_are_computed_as_more_members(
    shared_by: str, biased: bool, compiled: bool
) -> None:
    """Under vmap, as several seeds learn: the values and gradients of one seed after the other, in one operation."""
    each = [inputs(2, 5, 4, 3, shared_by == "members", seed)[0] for seed in range(3)]
    x, weight, bias = (torch.stack(parts) for parts in zip(*each, strict=True))
    dims: tuple[int | None, ...] = (0, 0, 0)
    if shared_by == "seeds":
        x, dims = x[0], (None, 0, 0)

    def of_one(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        out: Tensor = in_graph(x, weight, bias if biased else None, True)
        return out

    def together(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return torch.vmap(of_one, in_dims=dims)(x, weight, bias)

    def in_turn(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return torch.stack(
            [of_one(x if dims[0] is None else x[s], weight[s], bias[s]) for s in range(3)]
        )

    def run(function: Any) -> list[Tensor]:
        leaves = [t.clone().requires_grad_() for t in (x, weight, bias)]
        out = function(*leaves)
        out.square().sum().backward()
        return [out.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]

    found = run(torch.compile(together, backend="aot_eager") if compiled else together)
    wanted = run(in_turn)
    assert len(found) == len(wanted) == 3 + biased
    for one, two in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, two, atol=1e-5, rtol=1e-5)
    with torch.profiler.profile() as profile:
        together(x, weight, bias)
    assert [event.name for event in profile.events()].count(
        "fleetfoot::affine"
    ) == 2  # under vmap, and once below it
