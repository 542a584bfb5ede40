from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fleetfoot.ops import categorical
from oracles import categorical as oracle

VALUES = st.floats(-5, 5, width=32)


@settings(max_examples=150, deadline=None)
@given(
    atoms=st.integers(2, 11),
    reward=st.one_of(VALUES, st.integers(-4, 4).map(float)),
    discount=st.sampled_from([0.0, 0.5, 0.97, 1.0]),
    seed=st.integers(0, 1000),
)
def test_equals_the_projection_atom_by_atom(
    atoms: int, reward: float, discount: float, seed: int
) -> None:
    z = categorical.support(-2.0, 2.0, atoms)
    random = torch.Generator().manual_seed(seed)
    probs = torch.rand(3, atoms, generator=random).softmax(-1)
    shifted = (reward + discount * z).clamp(-2.0, 2.0).expand(3, atoms)
    out = categorical.project(probs, shifted, z)
    for row in range(3):
        wanted = oracle.project(
            probs[row].tolist(),
            shifted[row].tolist(),
            [-2 + 4 * k / (atoms - 1) for k in range(atoms)],
        )
        torch.testing.assert_close(out[row], torch.tensor(wanted), atol=1e-5, rtol=0)
    torch.testing.assert_close(out.sum(-1), torch.ones(3), atol=1e-6, rtol=0)
    torch.testing.assert_close(
        categorical.mean(out, z), (probs * shifted).sum(-1), atol=1e-5, rtol=0
    )


def test_is_the_identity_without_reward_and_discount() -> None:
    z = categorical.support(-10.0, 10.0, 101)
    probs = torch.rand(50, 101, generator=torch.Generator().manual_seed(0)).softmax(-1)
    out = categorical.project(probs, z.expand_as(probs), z)
    torch.testing.assert_close(out, probs, atol=1e-6, rtol=0)


def test_what_is_not_a_number_shows_in_the_result() -> None:
    z = categorical.support(-1.0, 1.0, 3)
    shifted = torch.tensor([[0.0, float("nan"), 1.0], [0.0, 0.0, 0.0]])
    out = categorical.project(torch.full((2, 3), 1 / 3), shifted, z)
    assert bool(out[0].isnan().any())
    assert out[1].tolist() == pytest.approx([0.0, 1.0, 0.0])


def test_rows_beyond_two_to_the_24_elements_do_not_mix() -> None:
    """Row offsets must not be computed in float32, which cannot count so far."""
    rows, z = 400_000, categorical.support(0.0, 50.0, 51)
    probs = torch.zeros(rows, 51)
    probs[:, 7] = 1.0
    out = categorical.project(probs, (z + 1.0).clamp(max=50.0).expand_as(probs), z)
    assert rows * 51 > 2**24
    assert bool((out[:, 8] == 1.0).all())


def rows(
    base: list[float], slope: list[float], atoms: int, ensemble_size: int, seed: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(ensemble_size, len(base), atoms, generator=random)
    return logits, torch.tensor(base), torch.tensor(slope)


def projected(
    logits: torch.Tensor, base: torch.Tensor, slope: torch.Tensor, z: list[float]
) -> torch.Tensor:
    """Each head's distribution moved and projected, atom by atom in float64."""
    out = []
    for head in logits.double().softmax(-1):
        for probs, b, s in zip(head.tolist(), base.tolist(), slope.tolist(), strict=True):
            places = [min(max(b + s * atom, z[0]), z[-1]) for atom in z]
            out.append(oracle.project(probs, places, z))
    return torch.tensor(out).view(logits.shape)


SLOPES = st.sampled_from([0.0, 1e-30, 1e-6, 0.01, 0.5, 0.97, 1.0])
BASES = st.one_of(VALUES, st.sampled_from([-1e6, -2.0, -0.0, 0.0, 2.0, 1e6]))


@settings(max_examples=120, deadline=None)
@given(
    moves=st.lists(st.tuples(BASES, SLOPES), min_size=1, max_size=4),
    atoms=st.integers(2, 11),
    ensemble_size=st.integers(1, 3),
    seed=st.integers(0, 1000),
)
def test_moved_distributions_are_projected_atom_by_atom(
    moves: list[tuple[float, float]], atoms: int, ensemble_size: int, seed: int
) -> None:
    z = categorical.support(-2.0, 2.0, atoms)
    logits, base, slope = rows(
        [b for b, _ in moves], [s for _, s in moves], atoms, ensemble_size, seed
    )
    exact = [-2 + 4 * k / (atoms - 1) for k in range(atoms)]
    wanted = projected(logits, base, slope, exact)
    each = categorical.project_shifted(logits, base, slope, z, lowest=False)
    torch.testing.assert_close(each, wanted, atol=1e-5, rtol=0)
    lowest = categorical.project_shifted(logits, base, slope, z, lowest=True)
    assert lowest.shape == wanted.shape[1:]
    means = (wanted * torch.tensor(exact)).sum(-1)
    for row in range(len(moves)):
        # Where heads are equal but for rounding, either will do.
        fits = [
            bool((lowest[row] - wanted[member, row]).abs().max() < 1e-5)
            for member in range(ensemble_size)
            if means[member, row] <= means[:, row].min() + 1e-5
        ]
        assert any(fits)


def test_the_lowest_head_is_that_after_the_move() -> None:
    """The head with the larger mean has the smaller one once the support has ended its reach."""
    z = categorical.support(0.0, 4.0, 5)
    wide, narrow = [0.45, 0.0, 0.0, 0.0, 0.55], [0.0, 0.0, 1.0, 0.0, 0.0]  # means 2.2 and 2
    logits = torch.tensor([[narrow], [wide]]).log()
    zero, one = torch.zeros(1), torch.ones(1)
    stays = categorical.project_shifted(logits, zero, one, z, lowest=True)
    assert stays[0].tolist() == pytest.approx(narrow)
    moved = categorical.project_shifted(logits, 2 * one, one, z, lowest=True)  # 3.1 and 4
    assert moved[0].tolist() == pytest.approx([0.0, 0.0, 0.45, 0.0, 0.55])


def test_equal_heads_keep_a_whole_distribution() -> None:
    z = categorical.support(-2.0, 2.0, 5)
    logits, base, slope = rows([0.3, 9.0], [0.9, 0.9], 5, 1, seed=0)
    twice = categorical.project_shifted(logits.expand(2, -1, -1), base, slope, z, lowest=True)
    assert torch.equal(twice, categorical.project_shifted(logits, base, slope, z, lowest=True))
    assert twice[1].tolist() == pytest.approx([0, 0, 0, 0, 1])  # all beyond the end


@pytest.mark.parametrize("lowest", [True, False])
@pytest.mark.parametrize("where", ["base", "slope", "logits"])
def test_what_is_not_a_number_shows_in_its_row_alone(where: str, lowest: bool) -> None:
    z = categorical.support(-2.0, 2.0, 5)
    logits, base, slope = rows([0.0, 0.5, 1.0], [0.9, 0.0, 0.9], 5, 2, seed=0)
    bad = {"base": base[1:2], "slope": slope[1:2], "logits": logits[1, 1, 2:3]}[where]
    bad.fill_(float("nan"))
    out = categorical.project_shifted(logits, base, slope, z, lowest=lowest)
    spoiled = out.isnan().any(-1)
    assert (spoiled if lowest else spoiled.any(0)).tolist() == [False, True, False]


@settings(max_examples=50, deadline=None)
@given(
    ensemble_size=st.integers(1, 3),
    batch=st.integers(1, 5),
    atoms=st.integers(2, 11),
    shared=st.booleans(),
    scale=st.sampled_from([1.0, 30.0]),
    seed=st.integers(0, 99),
)
def test_cross_entropy_and_its_gradient(
    ensemble_size: int, batch: int, atoms: int, shared: bool, scale: float, seed: int
) -> None:
    """- sum_k t_k log p_k, whose gradient is by (p sum_k t_k - t); targets need not sum to one."""
    random = torch.Generator().manual_seed(seed)
    z = categorical.support(-2.0, 2.0, atoms)
    logits = scale * torch.randn(ensemble_size, batch, atoms, generator=random)
    target = torch.rand(*(() if shared else (ensemble_size,)), batch, atoms, generator=random)
    by = torch.rand(ensemble_size, batch, generator=random)
    logits.requires_grad_()
    loss, q = categorical.cross_entropy(logits, target, z)
    assert not q.requires_grad
    (found,) = torch.autograd.grad(loss, logits, by)
    wide, t = logits.detach().double(), target.double()
    probs = wide.softmax(-1)
    near: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(loss.detach().double(), -(t * wide.log_softmax(-1)).sum(-1), **near)
    torch.testing.assert_close(q.double(), (probs * z.double()).sum(-1), **near)
    wanted = by.double().unsqueeze(-1) * (probs * t.sum(-1, keepdim=True) - t)
    torch.testing.assert_close(found.double(), wanted, **near)


def test_half_precision_logits_are_widened_first() -> None:
    z = categorical.support(-10.0, 10.0, 101)
    logits, base, slope = rows([0.1] * 8, [0.97] * 8, 101, 2, seed=0)
    half = logits.bfloat16()
    loss, q = categorical.cross_entropy(half, half.float().softmax(-1), z)
    out = categorical.project_shifted(half, base, slope, z, lowest=False)
    assert {loss.dtype, q.dtype, out.dtype} == {torch.float32}
    wanted = categorical.project_shifted(half.float(), base, slope, z, lowest=False)
    assert torch.equal(out, wanted)


def plain_kernels() -> None:
    """The kernels of a GPU, written plainly for a CPU, where nothing else calls them."""

    def cross_entropy(logits: Tensor, target: Tensor, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        loss, q = categorical.cross_entropy(logits, target, z)
        return loss, q, logits.logsumexp(-1)

    def backward(logits: Tensor, target: Tensor, lse: Tensor, by: Tensor) -> Tensor:
        return by.unsqueeze(-1) * ((logits - lse.unsqueeze(-1)).exp() - target)

    def project(logits: Tensor, base: Tensor, slope: Tensor, z: Tensor, lowest: bool) -> Tensor:
        return categorical.project_shifted(logits, base, slope, z, lowest=lowest)

    categorical._project_shifted.register_kernel("cpu", project)
    categorical._cross_entropy.register_kernel("cpu", cross_entropy)
    categorical._cross_entropy_backward.register_kernel("cpu", backward)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("lowest", [True, False])
@pytest.mark.parametrize("shared", [True, False], ids=["one discount", "each its own"])
def test_several_seeds_are_computed_as_more_rows(
    lowest: bool, shared: bool, compiled: bool
) -> None:
    """Under vmap, as several seeds learn: the values and gradients of one seed after the other, in one operation."""
    plain_kernels()
    random = torch.Generator().manual_seed(0)
    seeds, members, rows, atoms = 3, 2, 4, 7
    z = categorical.support(-2.0, 2.0, atoms)
    logits = torch.randn(seeds, members, rows, atoms, generator=random)
    base = torch.randn(seeds, rows, generator=random)
    slope = torch.rand(rows if shared else (seeds, rows), generator=random)
    dims = (0, 0, None if shared else 0)

    def of_one(logits: Tensor, base: Tensor, slope: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        target = categorical._project_shifted(logits.detach().flip(-1), base, slope, z, lowest)
        loss, q, _ = categorical._cross_entropy(logits, target, z)
        return loss, q, target

    def together(*args: Tensor) -> tuple[Tensor, ...]:
        return torch.vmap(of_one, in_dims=dims)(*args)

    def in_turn(logits: Tensor, base: Tensor, slope: Tensor) -> tuple[Tensor, ...]:
        each = [of_one(logits[s], base[s], slope if shared else slope[s]) for s in range(seeds)]
        return tuple(torch.stack(parts) for parts in zip(*each, strict=True))

    def run(function: Any) -> list[Tensor]:
        leaf = logits.clone().requires_grad_()
        loss, *rest = function(leaf, base, slope)
        (loss * torch.arange(1.0, 1 + loss.numel()).view_as(loss)).sum().backward()
        assert leaf.grad is not None
        return [loss.detach(), *rest, leaf.grad]

    compiled_ = torch.compile(together, backend="aot_eager", fullgraph=True)
    found = run(compiled_ if compiled else together)
    for one, two in zip(found, run(in_turn), strict=True):
        torch.testing.assert_close(one, two, atol=1e-5, rtol=1e-5)
    function = compiled_ if compiled else together
    function(logits, base, slope)  # without gradients it is compiled again
    with torch.profiler.profile() as profile:
        function(logits, base, slope)
    names = [event.name for event in profile.events()]
    for name in ("project_shifted", "cross_entropy"):
        # In turn, an operation appears twice: under vmap, and below it.
        assert names.count(f"fleetfoot::{name}") == (1 if compiled else 2)


def test_seeds_may_have_atoms_of_their_own() -> None:
    plain_kernels()
    z = torch.stack([categorical.support(-r, r, 5) for r in (1.0, 2.0)])
    logits, base = torch.randn(2, 1, 3, 5), torch.randn(2, 3)

    def of_one(logits: Tensor, base: Tensor, z: Tensor) -> tuple[Tensor, ...]:
        target = categorical._project_shifted(logits, base, base.abs(), z, True)
        return target, *categorical._cross_entropy(logits, target, z)

    together = torch.vmap(of_one)(logits, base, z)
    for seed in range(2):
        for one, two in zip(together, of_one(logits[seed], base[seed], z[seed]), strict=True):
            torch.testing.assert_close(one[seed], two)
