from __future__ import annotations

from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetfoot.replay import sum_tree
from fleetfoot.replay.sum_tree import FAN, TOP, MinTree, SumTree, first_of_each, tree_bytes
from oracles.sum_tree import OracleSumTree

CPU = torch.device("cpu")

# Small whole numbers, whose sums are exact: oracle and tree must then agree at every boundary.
WRITES = st.lists(st.tuples(st.integers(0, 299), st.integers(0, 9)), min_size=1, max_size=40)


SHAPES = st.sampled_from(
    [(2, 1), (2, 4), (3, 5), (32, 4096)]
)  # FAN and TOP: deep trees and flat ones


@settings(max_examples=200, deadline=None)
@given(
    shape=SHAPES,
    leaves=st.integers(1, 300),
    calls=st.lists(WRITES, min_size=1, max_size=4),
    places=st.lists(st.floats(0, 1), min_size=1, max_size=20),
)
def test_set_and_find_equal_the_oracle(
    shape: tuple[int, int],
    leaves: int,
    calls: list[list[tuple[int, int]]],
    places: list[float],
) -> None:
    """Duplicate leaves (the last counts), zeros, trees of any shape, masses on the boundaries."""
    with mock.patch.multiple(sum_tree, FAN=shape[0], TOP=shape[1]):
        check_against_the_oracle(leaves, calls, places)


def check_against_the_oracle(
    leaves: int, calls: list[list[tuple[int, int]]], places: list[float]
) -> None:
    tree, smallest, oracle = SumTree(leaves, CPU), MinTree(leaves, CPU), OracleSumTree()
    for writes in calls:
        leaf = torch.tensor([at % leaves for at, _ in writes])
        value = torch.tensor([float(v) for _, v in writes])
        tree.set(leaf, value)
        smallest.set(leaf, torch.where(value > 0, value, torch.inf))
        oracle.set(leaf.tolist(), value.tolist())
    assert float(tree.total()) == oracle.total()
    assert tree.get(torch.arange(leaves)).tolist() == [
        oracle.values.get(i, 0) for i in range(leaves)
    ]
    positive = [v for v in oracle.values.values() if v > 0]
    assert float(smallest.total()) == min(positive, default=float("inf"))
    if not positive:
        return
    bounds = [float(k) for k in range(int(oracle.total()))]
    masses = bounds + [place * oracle.total() for place in places]
    found = tree.find(torch.tensor(masses, dtype=torch.float64))
    assert found.leaf.tolist() == [oracle.find(mass) for mass in masses]
    assert found.value.tolist() == [oracle.values[leaf] for leaf in found.leaf.tolist()]


@settings(max_examples=150, deadline=None)
@given(
    shape=SHAPES,
    values=st.lists(
        st.one_of(st.just(0.0), st.floats(1e-12, 1e12, allow_nan=False)), min_size=1, max_size=100
    ),
    places=st.lists(st.floats(0, 1), min_size=1, max_size=30),
)
def test_leaves_of_zero_are_never_found_however_sums_round(
    shape: tuple[int, int], values: list[float], places: list[float]
) -> None:
    if max(values) == 0:
        return
    with mock.patch.multiple(sum_tree, FAN=shape[0], TOP=shape[1]):
        tree = SumTree(len(values), CPU)
        tree.set(torch.arange(len(values)), torch.tensor(values, dtype=torch.float64))
        edges = torch.tensor(values, dtype=torch.float64).cumsum(0)
        mass = torch.cat([torch.tensor(places, dtype=torch.float64) * tree.total(), edges])
        found = tree.find(mass)
    assert bool((found.value > 0).all())
    assert torch.equal(found.value, tree.get(found.leaf))


def test_frequencies_match_p_to_the_alpha_within_one_percent() -> None:
    priority = torch.tensor([0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 0.0, 16.0, 32.0, 64.0])
    leaf = torch.arange(10) * 20_000  # far apart, so that every level takes part
    tree = SumTree(200_000, CPU)
    tree.set(leaf, priority.pow(0.6))
    u = torch.rand(1_000_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    drawn = tree.find(u * tree.total()).leaf
    share = torch.bincount(drawn, minlength=200_000)[leaf] / 1e6
    wanted = priority.pow(0.6) / priority.pow(0.6).sum()
    assert float((share - wanted).abs().max()) < 0.01 * float(wanted.max())
    assert int(torch.bincount(drawn, minlength=200_000).sum() - (share * 1e6).sum()) == 0
    # Stratified draws leave hardly any noise: each share is right to one part in a thousand of itself.
    even = (torch.arange(1_000_000) + u) / 1_000_000
    share = torch.bincount(tree.find(even * tree.total()).leaf, minlength=200_000)[leaf] / 1e6
    torch.testing.assert_close(share, wanted, rtol=1e-3, atol=0)


def test_sums_do_not_drift() -> None:
    """Every node is computed from its children: after a million changes the root is what the leaves come to."""
    tree = SumTree(5000, CPU)
    random = torch.Generator().manual_seed(0)
    for _ in range(250):
        leaf = torch.randint(5000, (4000,), generator=random)
        scale = 10.0 ** torch.randint(-6, 7, (4000,), generator=random)
        tree.set(leaf, torch.rand(4000, generator=random, dtype=torch.float64) * scale)
    tree.set(torch.arange(5000), torch.full((5000,), 1e-6))
    assert float(tree.total()) == pytest.approx(5e-3, rel=1e-6)
    leaves = tree.levels[0].flatten().sum()
    assert float(tree.total()) == pytest.approx(float(leaves), rel=1e-12)


def test_few_and_many_changes_at_once_give_the_same_tree() -> None:
    with mock.patch.multiple(sum_tree, FAN=4, TOP=8):
        one, two = SumTree(3000, CPU), SumTree(3000, CPU)
        value = torch.rand(3000, generator=torch.Generator().manual_seed(0))
        one.set(torch.arange(3000), value, distinct=True)
        for start in range(0, 3000, 3):
            two.set(torch.arange(start, start + 3), value[start : start + 3])
    for name, level in one.state_dict().items():
        torch.testing.assert_close(level, two.state_dict()[name], rtol=1e-14, atol=0)


def test_of_very_many_equal_leaves_the_last_counts() -> None:
    """On two threads, should ever a long batch be shared out among them."""
    leaf = torch.randint(3000, (200_000,), generator=torch.Generator().manual_seed(0))
    value = torch.arange(200_000, dtype=torch.float64) + 1
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        tree = SumTree(3000, CPU)
        tree.set(leaf, value)
    finally:
        torch.set_num_threads(threads)
    last = dict(zip(leaf.tolist(), value.tolist(), strict=True))
    assert tree.get(torch.arange(3000)).tolist() == [last.get(i, 0.0) for i in range(3000)]
    assert float(tree.total()) == sum(last.values())


def test_what_a_tree_reads_and_writes_stays_where_it_is() -> None:
    """So that draws and changes that were recorded once can be repeated."""
    tree = SumTree(50_000, CPU)
    kept = {name: t.data_ptr() for name, t in vars(tree).items() if isinstance(t, torch.Tensor)}
    tree.set(torch.arange(50_000), torch.ones(50_000))
    u = torch.rand(100, dtype=torch.float64)
    tree.set(tree.draw(u).leaf, torch.zeros(100))
    assert bool((tree.draw(u).value == 1).all())
    tree.load_state_dict({name: level.clone() for name, level in tree.state_dict().items()})
    assert kept == {
        name: t.data_ptr() for name, t in vars(tree).items() if isinstance(t, torch.Tensor)
    }


def test_a_tree_has_logarithmic_depth_and_little_more_than_its_leaves() -> None:
    tree = SumTree(2_000_000, CPU)
    nodes = [level.shape[0] for level in tree.levels]
    assert nodes == [2_000_000 // FAN, -(-2_000_000 // FAN**2)]
    assert tree.top.numel() == nodes[-1] <= TOP
    assert tree.bytes() == tree_bytes(2_000_000) < 2_000_000 * 8 * 1.1


def test_first_of_each() -> None:
    leaf = torch.tensor([4, 1, 4, 4, 2, 1])
    assert first_of_each(leaf).tolist() == [True, True, False, False, True, False]
