"""Aggregates over runs and tasks with stratified bootstrap intervals (Agarwal et al. 2021, arXiv 2108.13264).

Scores are one array [runs] per task, and tasks may have different numbers of runs. Each bootstrap draws, for every
task, as many runs as it has, with replacement.
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

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A statistic and its 95 % interval."""

    value: float
    interval: tuple[float, float] | None  # None: with one run per task nothing can be said


@dataclass(frozen=True)
class Bootstrap:
    """How intervals are estimated: resamples, and the seed they are drawn with."""

    reps: int = 5_000
    seed: int = 0

    def __post_init__(self) -> None:
        if self.reps < 100:
            raise UserError(f"--reps must be at least 100, not {self.reps}.")
        if not 0 <= self.seed < 2**32:
            raise UserError(f"--seed must be 0 or more, and below 2^32, not {self.seed}.")

    def __call__(
        self, aggregate: Callable[..., Floats], *samples: Floats
    ) -> tuple[Floats, Floats | None]:
        """The aggregate [M] of samples (each [runs, ...]) and its interval [2, M]."""
        library = rliable()
        if max(len(sample) for sample in samples) < 2:
            return aggregate(*samples), None
        # Each sample gets an axis of tasks, of length one; rliable then draws from each apart.
        columns = [sample[:, None] for sample in samples]

        def flat(*drawn: Floats) -> Floats:
            return aggregate(*(column[:, 0] for column in drawn))

        with seeded(self.seed):
            value, interval = library.get_interval_estimates(
                {"": columns}, flat, reps=self.reps, confidence_interval_size=CONFIDENCE
            )
        return value[""], interval[""]


def interquartile_mean(*tasks: Floats) -> Floats:
    """The mean of all runs but the lowest and the highest quarter, [1], or [P] of samples [runs, P]."""
    ordered = np.sort(np.concatenate(tasks), axis=0)
    cut = len(ordered) // 4  # of 4k + 1 to 4k + 3 runs, k at either end, as rliable does
    return np.atleast_1d(ordered[cut : len(ordered) - cut].mean(axis=0))


def optimality_gap(*tasks: Floats) -> Floats:
    """How far the runs stay below a score of 1, on average; what is above 1 counts as 1."""
    return np.atleast_1d(1.0 - np.minimum(np.concatenate(tasks), 1.0).mean())


def improvement(ours: Sequence[Floats], theirs: Sequence[Floats]) -> Floats:
    """The probability that a run of ours scores higher than one of theirs, mean over tasks; a tie counts half."""
    won = []
    for x, y in zip(ours, theirs, strict=True):
        ahead = x[:, None] - y[None, :]
        won.append(np.mean((ahead > 0) + 0.5 * (ahead == 0)))
    return np.atleast_1d(np.mean(won))


def estimate(
    boot: Bootstrap, aggregate: Callable[..., Floats], samples: Sequence[Floats]
) -> Estimate:
    """Of an aggregate that is one number."""
    value, interval = boot(aggregate, *samples)
    ends = None if interval is None else (float(interval[0, 0]), float(interval[1, 0]))
    return Estimate(float(value[0]), ends)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """rliable draws from numpy's global generator, whatever it is given as `random_state`."""
    before = np.random.get_state()
    np.random.seed(seed)
    try:
        yield
    finally:
        np.random.set_state(before)


def rliable() -> Any:
    """The library, or one line on how to get it."""
    try:
        return importlib.import_module("rliable.library")
    except (
        ImportError,
        TypeError,
    ) as error:  # the latter with pandas 3, which arch 7 cannot import
        raise UserError("comparing runs needs rliable: pip install 'fleetfoot[compare]'") from error
