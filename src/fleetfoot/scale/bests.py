"""The best batch size and learning rate at each ratio, before laws are fitted to them.

The single best setting of a grid is noisy, and laws through it are stairs. So for each batch size the best learning
rate is found in each bootstrap sample, and the mean is taken over samples and batch sizes; likewise the other way
round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from fleetfoot.compare.runs import Floats
from fleetfoot.scale.table import Key


@dataclass(frozen=True)
class Best:
    """The bootstrap mean of the best value of one setting."""

    task: str
    utd: float
    params: int
    value: float


def best_values(
    reached: Mapping[Key, Floats], value: Callable[[Key], float], other: Callable[[Key], float]
) -> list[Best]:
    """For each task, ratio and size with several values of a setting: which of them needs the least data.

    `reached`: D_J [reps] of each configuration at one threshold; NaN counts as never.
    """
    cells: dict[tuple[str, float, int], dict[float, list[Key]]] = {}
    for key in reached:
        lines = cells.setdefault((key.task, key.utd, key.params), {})
        lines.setdefault(other(key), []).append(key)
    bests = []
    for (task, utd, params), lines in cells.items():
        chosen = [_winners(reached, keys, value) for keys in lines.values() if len(keys) > 1]
        winners = np.concatenate(chosen) if chosen else np.array([])
        if len(winners):
            bests.append(Best(task, utd, params, float(winners.mean())))
    return bests


def _winners(
    reached: Mapping[Key, Floats], keys: list[Key], value: Callable[[Key], float]
) -> Floats:
    """The value that reached the threshold first, of each sample in which any did."""
    data = np.stack([reached[key] for key in keys])  # [settings, reps]
    data = np.where(np.isnan(data), np.inf, data)
    values = np.array([value(key) for key in keys])
    return np.asarray(values[data.argmin(axis=0)][np.isfinite(data).any(axis=0)])
