"""From learning curves to D_J: the env steps after which a score is first reached.

The curve of a configuration is the mean over its seeds, made monotone by isotonic regression. D_J is where that curve
crosses J: not the mean of the crossings of single seeds, some of which may never come. The spread over seeds comes from
a bootstrap: draw as many seeds with replacement, and do the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fleetfoot.compare.runs import Floats
from fleetfoot.errors import UserError
from fleetfoot.scale.table import Key, RunRow

SCALE = 1000.0  # scores run from 0 to this


@dataclass(frozen=True)
class SeedCurves:
    """The evaluations of all seeds of one configuration, at the same env steps."""

    key: Key
    env_steps: Floats  # [T]
    returns: Floats  # [S, T]
    seconds: Floats  # [T] of training, mean over seeds
    overfitting: (
        float  # of the critic, median over evaluations and mean over seeds; NaN: not measured
    )
    parameter_norm: float  # at the end, mean over seeds; NaN: not measured

    @property
    def mean(self) -> Floats:
        return np.asarray(self.returns.mean(axis=0))


@dataclass(frozen=True)
class Resets:
    """When the networks of a recipe begin anew: dips that follow are no loss of data efficiency."""

    env_steps: tuple[int, ...] = ()
    every_updates: int = 0

    def of(self, key: Key, last: float) -> list[float]:
        """Env steps of all resets of a configuration until `last`."""
        found = [float(step) for step in self.env_steps]
        if self.every_updates:
            found += np.arange(
                self.every_updates / key.utd, last, self.every_updates / key.utd
            ).tolist()
        return sorted(step for step in found if step < last)


def seed_curves(key: Key, runs: Sequence[RunRow]) -> SeedCurves:
    """As far as all seeds have come."""
    steps = runs[0].env_steps
    for run in runs[1:]:
        steps = np.intersect1d(steps, run.env_steps)
    if len(steps) < 2:
        raise UserError(f"the seeds share fewer than 2 evaluations: {key}.")

    def column(name: str) -> Floats:
        return np.stack([run.columns[name][np.isin(run.env_steps, steps)] for run in runs])

    overfitting, norm = column("overfitting"), column("parameter_norm")
    return SeedCurves(
        key=key,
        env_steps=steps,
        returns=column("return"),
        seconds=column("train_seconds").mean(axis=0),
        overfitting=float(np.median(overfitting, axis=1).mean()),  # early losses are huge
        parameter_norm=float(norm[:, -1].mean()),
    )


def isotonic(values: Floats) -> Floats:
    """The nearest curve, by squared error, that never falls."""
    from scipy.optimize import isotonic_regression

    return np.asarray(isotonic_regression(values).x)


def crossings(env_steps: Floats, monotone: Floats, thresholds: Floats) -> Floats:
    """D_J for each threshold [K]: where the curve first reaches it, NaN where it never does."""
    found = np.full(len(thresholds), np.nan)
    for place, threshold in enumerate(thresholds):
        reached = np.flatnonzero(monotone >= threshold)
        if len(reached) == 0:
            continue
        after = reached[0]
        if after == 0:
            found[place] = env_steps[0]
            continue
        low, high = monotone[after - 1], monotone[after]
        share = (threshold - low) / (high - low)
        found[place] = env_steps[after - 1] + share * (env_steps[after] - env_steps[after - 1])
    return found


def without_dips(env_steps: Floats, values: Floats, resets: Sequence[float]) -> Floats:
    """Which evaluations to keep [T] bool: after each reset, only those from where the curve is as high as before."""
    keep = np.ones(len(values), dtype=bool)
    for reset in resets:
        before = np.flatnonzero((env_steps < reset) & keep)
        if len(before) == 0:
            continue
        after = np.flatnonzero(env_steps >= reset)
        recovered = after[values[after] >= values[before[-1]]]
        keep[after[0] if len(after) else len(keep) : recovered[0] if len(recovered) else None] = (
            False
        )
    return keep


def reach(
    curves: SeedCurves, thresholds: Floats, resets: Resets, seeds: Sequence[int] | None = None
) -> Floats:
    """D_J [K] of the mean over some seeds, by default all."""
    returns = curves.returns if seeds is None else curves.returns[np.asarray(seeds)]
    steps, mean = curves.env_steps, returns.mean(axis=0)
    keep = without_dips(steps, mean, resets.of(curves.key, float(steps[-1])))
    return crossings(steps[keep], isotonic(mean[keep]), thresholds)


def bootstrap(
    curves: SeedCurves, thresholds: Floats, resets: Resets, reps: int, source: np.random.Generator
) -> Floats:
    """D_J [reps, K], each of as many seeds, drawn with replacement."""
    seeds = len(curves.returns)
    draws = source.integers(0, seeds, (reps, seeds))
    return np.stack([reach(curves, thresholds, resets, drawn.tolist()) for drawn in draws])


def score_levels(count: int, low: float, high: float) -> Floats:
    """Thresholds, spaced so that what is missing to the full score falls by equal factors."""
    return SCALE - np.geomspace(SCALE - low, SCALE - high, count)
