"""From curves to crossings."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fleetfoot.scale.curves import (
    Resets,
    bootstrap,
    crossings,
    isotonic,
    reach,
    score_levels,
    seed_curves,
    without_dips,
)
from fleetfoot.scale.table import Key
from support.extras import needs
from support.planted_study import Planted, on_law

needs("scipy")

STEPS = np.array([10.0, 20.0, 30.0, 40.0])


def test_isotonic_pools_what_falls() -> None:
    assert isotonic(np.array([1.0, 4.0, 2.0, 5.0])).tolist() == [1.0, 3.0, 3.0, 5.0]


def test_crossings_by_hand() -> None:
    """Reached at once; between two evaluations; exactly at one; on a plateau its first step; never."""
    monotone = np.array([1.0, 3.0, 3.0, 5.0])
    found = crossings(STEPS, monotone, np.array([0.5, 1.5, 3.0, 4.0, 5.1]))
    assert found[:4].tolist() == [10.0, 12.5, 20.0, 35.0]
    assert math.isnan(found[4])


def test_levels_are_spaced_by_what_is_missing() -> None:
    levels = score_levels(10, 200, 800)
    assert (levels[0], levels[-1]) == pytest.approx((200, 800))
    missing = 1000 - levels
    assert missing[1:] / missing[:-1] == pytest.approx(np.full(9, 0.25 ** (1 / 9)))


def test_the_mean_curve_is_crossed_and_not_the_mean_of_crossings_taken() -> None:
    key = Key("x", 1.0, 256, 1e-3, 9)
    (first, second), resets = Planted().table([key], seeds=2).runs, Resets()
    second.columns["return"] = first.returns / 2
    both = seed_curves(key, [first, second])
    threshold = np.array([600.0])
    expected = crossings(both.env_steps, 0.75 * first.returns, threshold)
    assert reach(both, threshold, resets) == pytest.approx(expected)
    assert np.isnan(reach(both, threshold, resets, [1, 1])[0])  # the second alone never gets there


def test_seeds_are_compared_where_all_were_evaluated() -> None:
    key = Key("x", 1.0, 256, 1e-3, 9)
    first, second = Planted().table([key], seeds=2, evaluations=40).runs
    short = {name: column[:30] for name, column in second.columns.items()}
    second.columns.update(short)
    both = seed_curves(key, [first, second])
    assert both.returns.shape == (2, 30)
    assert both.env_steps.tolist() == first.env_steps[:30].tolist()


def test_the_bootstrap_has_the_spread_of_the_seeds_and_repeats_itself() -> None:
    planted = Planted(noise=0.2)
    (key,) = on_law(planted, [1.0])
    runs = planted.table([key], seeds=16).runs
    curves, thresholds = seed_curves(key, runs), np.array([500.0])
    draws = [
        bootstrap(curves, thresholds, Resets(), 200, np.random.default_rng(0)) for _ in range(2)
    ]
    assert np.array_equal(draws[0], draws[1])
    alone = [reach(curves, thresholds, Resets(), [seed])[0] for seed in range(16)]
    assert draws[0].std() == pytest.approx(np.std(alone) / 4, rel=0.25)


def test_dips_after_a_reset_are_left_out_until_the_curve_is_back() -> None:
    steps = np.arange(8.0)
    values = np.array([1.0, 2.0, 3.0, 0.0, 1.0, 3.0, 0.5, 0.6])
    assert without_dips(steps, values, [3.0]).tolist() == [True] * 3 + [False] * 2 + [True] * 3
    assert without_dips(steps, values, [3.0, 6.0]).tolist() == [True] * 3 + [False] * 2 + [
        True,
        False,
        False,
    ]
    assert without_dips(steps, values, []).all()
    key = Key("x", 2.0, 256, 1e-3, 9)
    assert Resets(every_updates=100).of(key, 160.0) == [50.0, 100.0, 150.0]
    assert Resets(env_steps=(30, 500)).of(key, 160.0) == [30.0]
