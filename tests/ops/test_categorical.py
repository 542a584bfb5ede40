from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

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
