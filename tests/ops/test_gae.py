from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fleetfoot.ops.gae import discounted_sums, gae

Array = NDArray[np.float64]


def advantages_by_definition(
    reward: Array,
    discount: Array,
    ended: NDArray[np.bool_],
    value: Array,
    next_value: Array,
    lam: float,
) -> Array:
    """For each row, the sum over all later rows of its episode, written out."""
    steps, envs = reward.shape
    result = np.zeros((steps, envs))
    for t in range(steps):
        for n in range(envs):
            weight = 1.0
            for k in range(t, steps):
                delta = reward[k, n] + discount[k, n] * next_value[k, n] - value[k, n]
                result[t, n] += weight * delta
                if ended[k, n]:
                    break
                weight *= lam * discount[k, n]
    return result


@settings(max_examples=60, deadline=None)
@given(
    steps=st.integers(1, 17),
    envs=st.integers(1, 3),
    lam=st.floats(0.0, 1.0),
    gamma=st.floats(0.0, 1.0),
    seed=st.integers(0, 2**31),
    ends=st.floats(0.0, 0.6),
)
def test_advantages_are_the_sums_of_their_definition(
    steps: int, envs: int, lam: float, gamma: float, seed: int, ends: float
) -> None:
    random = np.random.default_rng(seed)
    reward, value, next_value = random.normal(size=(3, steps, envs))
    ended = random.random((steps, envs)) < ends
    terminated = ended & (random.random((steps, envs)) < 0.5)
    discount = np.where(terminated, 0.0, gamma)
    wanted = advantages_by_definition(reward, discount, ended, value, next_value, lam)
    r, d, e, v, w = (torch.from_numpy(x) for x in (reward, discount, ended, value, next_value))
    torch.testing.assert_close(gae(r, d, e, v, w, lam), torch.from_numpy(wanted))


def test_a_truncation_bootstraps_and_a_termination_does_not() -> None:
    reward, value = torch.zeros(2, 2), torch.zeros(2, 2)
    next_value = torch.full((2, 2), 10.0)
    ended = torch.tensor([[True, True], [False, False]])
    discount = torch.tensor(
        [[0.0, 0.5], [0.5, 0.5]]
    )  # the first column terminates, the second is truncated
    advantage = gae(reward, discount, ended, value, next_value, 1.0)
    assert advantage.tolist() == [[0.0, 5.0], [5.0, 5.0]]


def test_sums_work_for_several_seeds_and_long_rollouts() -> None:
    x, carry = torch.randn(1000, 3, 2, dtype=torch.float64), torch.full((1000, 3, 2), 0.97)
    y, running = torch.zeros_like(x), torch.zeros(3, 2, dtype=torch.float64)
    for t in range(999, -1, -1):
        running = x[t] + carry[t] * running
        y[t] = running
    torch.testing.assert_close(discounted_sums(x, carry.double()), y)
    vmapped = torch.vmap(discounted_sums, in_dims=1, out_dims=1)(x, carry.double())
    torch.testing.assert_close(vmapped, y)
