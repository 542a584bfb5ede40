"""The whole analysis on tables whose laws are known."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fleetfoot.errors import UserError
from fleetfoot.scale import report
from fleetfoot.scale.analysis import Ask, analyse
from fleetfoot.scale.fits import normalised
from fleetfoot.scale.table import Key, RunTable, read_table
from support.extras import needs
from support.planted_study import Planted, on_law

needs("scipy")

RESULTS = Path(__file__).parents[2] / "benchmarks/results"
RANGE: dict[str, Any] = {"everywhere": (0.0, 1000.0)}
RATIOS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)


def test_the_planted_law_comes_out() -> None:
    planted = Planted(noise=0.02)
    made = analyse(planted.table(on_law(planted, RATIOS)), Ask(**RANGE, reps=20))
    assert len(made.laws) == 10
    assert made.r2 > 0.99
    top = made.laws[-1]
    unit = planted.unit * np.log(5)  # -log(1 - 0.8)
    assert top.law.least == pytest.approx(planted.c * unit, rel=0.05)
    assert top.law.a == pytest.approx(planted.a, rel=0.15)
    assert max(one.error for one in made.held_out) < 0.05
    assert top.spread["a"][0] < top.law.a < top.spread["a"][1]
    assert made.seconds == pytest.approx((1e-3, 2e-4), rel=1e-3)
    assert all(one.sigma < 8 * 4 for one in made.optima)


def test_planted_slopes_come_out_of_a_grid_with_two_tasks() -> None:
    """-0.5 for the batch size and -0.3 for the learning rate, one slope for both tasks."""
    planted = Planted(noise=0.1)
    grid = product(
        ("pendulum", "dog"),
        (1.0, 2.0, 4.0, 8.0),
        (32, 64, 128, 256, 512),
        (2.5e-4, 5e-4, 1e-3, 2e-3),
    )
    keys = [Key(task, utd, batch, lr, 9_000) for task, utd, batch, lr in grid]
    table = planted.table(keys, factors={"dog": 3.0}, length=800_000, evaluations=100)
    made = analyse(table, Ask(**RANGE, thresholds=(300, 600), reps=20))
    assert made.batch_law is not None
    assert made.lr_law is not None
    assert made.batch_law.slope == pytest.approx(-0.5, abs=0.1)
    assert made.lr_law.slope == pytest.approx(-0.3, abs=0.1)
    assert made.batch_law("dog", 1.0) == pytest.approx(256, rel=0.2)
    assert made.units["dog"] / made.units["pendulum"] == pytest.approx(3.0, rel=0.1)
    for row in made.crossings:  # what stands for a ratio is near the law
        if row.on_law:
            assert row.key.batch / (256 * row.key.utd**-0.5) == pytest.approx(1.0, abs=0.5)
    text = report.page(made)
    assert "Best batch size: ratio^-0." in text
    assert "slope of this task alone" in text


def test_sizes_get_a_term_of_their_own() -> None:
    planted = Planted(n=30_000.0)
    sizes = (5_000, 20_000, 80_000)
    keys = [
        Key(one.task, one.utd, one.batch, one.lr, size)
        for size in sizes
        for one in on_law(planted, (0.5, 1.0, 2.0, 4.0))
    ]
    made = analyse(planted.table(keys), Ask(**RANGE, reps=2))
    law = made.laws[-1].law
    assert law.d == pytest.approx(planted.d, rel=0.1)
    assert law.a == pytest.approx(planted.a, rel=0.1)
    planted_term = planted.unit * np.log(5) * planted.n**planted.d  # of the highest score, 800
    assert law.scale * law.n**law.d == pytest.approx(
        planted_term, rel=0.5
    )  # n to the power of d: steep in d
    assert {one.params for one in made.optima} <= set(map(float, sizes))
    assert "Best size of the critic" in report.page(made)


def test_normalised_by_hand() -> None:
    """Medians 4 and 40, so both tasks look the same, and the unit is between them."""
    one = np.array([[2.0, 4.0], [4.0, 8.0]])
    whole, unit = normalised(np.stack([one, 10 * one]))
    assert whole.tolist() == [[0.5, 1.0], [1.0, 2.0]]
    assert unit == 22.0


def test_thresholds_that_some_ratio_missed_have_no_law() -> None:
    planted = Planted()
    made = analyse(planted.table(on_law(planted, RATIOS), length=60_000), Ask(**RANGE, reps=2))
    assert 0 < len(made.laws) < 10
    assert any("were not reached at every ratio" in note for note in made.notes)


def test_scores_are_made_from_the_returns_where_no_range_is_known() -> None:
    planted = Planted()
    made = analyse(planted.table(on_law(planted, RATIOS)), Ask(reps=2))
    low, high = made.tasks["pendulum"]
    assert 0 < low < 100
    assert high == pytest.approx(1000, abs=1)
    assert any("--low and --high" in note for note in made.notes)


@pytest.mark.parametrize(
    ("ratios", "options", "says"),
    [
        (RATIOS, {"thresholds": (2000.0,)}, "no configuration reached a threshold"),
        (RATIOS, {"thresholds": (990.0,)}, "no threshold was reached at every ratio"),
        ((1.0, 2.0), {}, "at least 3 update-to-data ratios"),
        (RATIOS, {"reps": 0}, "--reps must be at least 1"),
    ],
)
def test_what_cannot_be_fitted(
    ratios: tuple[float, ...], options: dict[str, Any], says: str
) -> None:
    planted = Planted()
    table = planted.table(on_law(planted, ratios), length=150_000)
    with pytest.raises(UserError, match=says):
        analyse(table, Ask(**(RANGE | {"reps": 2} | options)))


def test_nothing_learned_is_said() -> None:
    planted = Planted()
    table = planted.table(on_law(planted, RATIOS))
    for run in table.runs:
        run.columns["return"][:] = 7.0
    with pytest.raises(
        UserError, match=r"nothing was learned on pendulum: all mean returns are 7\.0"
    ):
        analyse(table, Ask(reps=2))


def test_few_seeds_are_noted_and_missing_diagnostics_leave_no_hole() -> None:
    planted = Planted()
    table = planted.table(on_law(planted, RATIOS), seeds=3)
    for run in table.runs:
        run.columns["overfitting"][:] = run.columns["parameter_norm"][:] = np.nan
    made = analyse(RunTable(table.runs), Ask(**RANGE, reps=2))
    assert any("only 3 seeds" in note for note in made.notes)
    assert "not diagnosed" in report.page(made)


def test_the_stored_study_on_the_pendulum() -> None:
    """What the page says about it: 8 seeds, ratios 0.5 to 4."""
    made = analyse(read_table(RESULTS / "scale-sac-pendulum.csv"), Ask(reps=2))
    assert made.seeds == 8
    assert [ratio for ratio, _ in made.ratios] == [0.5, 1.0, 2.0, 4.0]
    noisy, *laws = made.laws  # at the lowest score the seeds do not swing up yet
    assert noisy.law.r2 == pytest.approx(0.73, abs=0.01)
    for fitted in laws:
        assert fitted.law.r2 >= 0.99
        assert fitted.data == sorted(fitted.data, reverse=True)  # data falls with the ratio
    assert max(one.error for one in made.held_out) < 0.25
    stored = json.loads((RESULTS / "scale-sac-pendulum.json").read_text())["result"]
    for fitted, was in zip(made.laws, stored["laws"], strict=True):
        assert fitted.law.a == pytest.approx(was["law"]["a"], rel=1e-3)
