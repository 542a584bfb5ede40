"""Aggregates over runs and tasks with stratified bootstrap intervals (Agarwal et al. 2021, arXiv 2108.13264).

Scores are one array [runs] per task, and tasks may have different numbers of runs. Each bootstrap sample draws the runs
of every task with replacement.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from fleetfoot.compare.runs import Floats
from fleetfoot.errors import UserError
from fleetfoot.extras import install_line

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A statistic and its 95 % interval."""

    value: float
    interval: tuple[float, float] | None  # None: there is only one run per task


@dataclass(frozen=True)
class Bootstrap:
    """How intervals are estimated: resamples, and the seed they are drawn with."""

    reps: int = 5_000
    seed: int = 0

    def __post_init__(self) -> None:
        if self.reps < 100:
            raise UserError(f"--reps must be at least 100, not {self.reps}.")
        if not 0 <= self.seed < 2**32:
            raise UserError(f"--seed must be at least 0 and below 2^32, not {self.seed}.")

    def __call__(
        self, aggregate: Callable[..., Floats], *samples: Floats
    ) -> tuple[Floats, Floats | None]:
        """The aggregate [M] of samples (each [runs, ...]) and its interval [2, M]."""
        library = rliable()
        if max(len(sample) for sample in samples) < 2:
            return aggregate(*samples), None
        # Each sample gets a task axis of length one, so that rliable draws from each independently.
        columns = [sample[:, None] for sample in samples]

        def flat(*drawn: Floats) -> Floats:
            return aggregate(*(column[:, 0] for column in drawn))

        with seeded(self.seed):
            value, interval = library.get_interval_estimates(
                {"": columns}, flat, reps=self.reps, confidence_interval_size=CONFIDENCE
            )
        return value[""], interval[""]


def interquartile_mean(*tasks: Floats) -> Floats:
    """The mean without the lowest and the highest quarter of all runs: [1], or [P] of samples [runs, P]."""
    ordered = np.sort(np.concatenate(tasks), axis=0)
    quarter = len(ordered) // 4  # rounded down, as in rliable
    return np.atleast_1d(ordered[quarter : len(ordered) - quarter].mean(axis=0))


def optimality_gap(*tasks: Floats) -> Floats:
    """The mean distance of the runs below a score of 1; scores above 1 count as 1."""
    return np.atleast_1d(1.0 - np.minimum(np.concatenate(tasks), 1.0).mean())


def improvement(ours: Sequence[Floats], theirs: Sequence[Floats]) -> Floats:
    """The probability that a run of ours scores higher than one of theirs, mean over tasks; a tie counts half."""
    probabilities = []
    for x, y in zip(ours, theirs, strict=True):
        difference = x[:, None] - y[None, :]
        probabilities.append(np.mean((difference > 0) + 0.5 * (difference == 0)))
    return np.atleast_1d(np.mean(probabilities))


def estimate(
    boot: Bootstrap, aggregate: Callable[..., Floats], samples: Sequence[Floats]
) -> Estimate:
    """The estimate of a scalar aggregate."""
    value, interval = boot(aggregate, *samples)
    ends = None if interval is None else (float(interval[0, 0]), float(interval[1, 0]))
    return Estimate(float(value[0]), ends)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the global generator of numpy for a while: rliable uses it, even with a `random_state`."""
    before = np.random.get_state()
    np.random.seed(seed)
    try:
        yield
    finally:
        np.random.set_state(before)


def rliable() -> Any:
    """The module `rliable.library`; UserError where it is not installed."""
    try:
        return importlib.import_module("rliable.library")
    except (ImportError, TypeError) as error:  # TypeError: arch 7 cannot import pandas 3
        raise UserError(f"comparing runs needs rliable: {install_line('compare')}") from error
