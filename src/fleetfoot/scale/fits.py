"""The data law of each threshold, its spread over bootstrap samples, and its prediction of the largest ratio."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fleetfoot.compare.runs import Floats
from fleetfoot.scale.laws import DataLaw, fit_data_law, fit_joint_law
from fleetfoot.scale.results import Fitted, HeldOut

LEAST_RATIOS = 3  # a data law has three numbers; also sizes, before they get a term of their own
SPREAD = (0.05, 0.95)


@dataclass(frozen=True)
class DataTable:
    """Env steps until each of K thresholds, at R ratios (with sizes) of each task."""

    ratios: list[tuple[float, int]]
    thresholds: Floats  # [K]
    measured: Floats  # [tasks, R, K]
    samples: Floats  # [tasks, R, reps, K], NaN where a bootstrap sample did not reach a threshold

    @property
    def sigma(self) -> Floats:
        return np.array([sigma for sigma, _ in self.ratios])

    @property
    def sizes(self) -> Floats:
        return np.array([float(size) for _, size in self.ratios])

    @property
    def units(self) -> Floats:
        """Env steps of each task for one env step of the laws."""
        medians = _medians(self.measured)
        return np.asarray(medians / np.median(medians))


def normalised(data: Floats) -> tuple[Floats, float]:
    """From D [tasks, R, K] to the mean over tasks, each in units of its median, and the median of those medians (M),
    which brings it back to env steps."""
    medians = _medians(data)
    return (data / medians[:, None, None]).mean(axis=0), float(np.median(medians))


def fit_all(table: DataTable) -> list[Fitted]:
    whole, unit = normalised(table.measured)
    samples = [table.samples[:, :, rep] for rep in range(table.samples.shape[2])]
    drawn = [normalised(one)[0] for one in samples if not np.isnan(one).any()]
    fitted = []
    for place, threshold in enumerate(table.thresholds):
        law = _law(table.sigma, table.sizes, whole[:, place], unit)
        others = [_law(table.sigma, table.sizes, one[:, place], unit) for one in drawn]
        spread = {
            name: np.quantile([getattr(one, name) for one in others], SPREAD).tolist()
            for name in ("a", "b", "c")
            if others
        }
        fitted.append(Fitted(float(threshold), law, (unit * whole[:, place]).tolist(), spread))
    return fitted


def hold_out(table: DataTable, laws: Sequence[Fitted]) -> list[HeldOut]:
    """Each threshold at the largest ratio, by a law of the smaller ones; none where those are too few."""
    sigma, sizes = table.sigma, table.sizes
    seen = sigma < sigma.max()
    if len(set(sigma[seen].tolist())) < LEAST_RATIOS:
        return []
    found = []
    for fitted in laws:
        data = np.array(fitted.data)
        predicted = _law(sigma[seen], sizes[seen], data[seen], 1.0)(sigma[~seen], sizes[~seen])
        found += [
            HeldOut(float(sigma.max()), fitted.threshold, float(was), float(said))
            for was, said in zip(data[~seen], predicted, strict=True)
        ]
    return found


def _medians(data: Floats) -> Floats:
    return np.asarray(np.median(data, axis=(1, 2)))


def _law(sigma: Floats, sizes: Floats, data: Floats, unit: float) -> DataLaw:
    if len(set(sizes.tolist())) < LEAST_RATIOS:
        return fit_data_law(sigma, data, unit)
    return fit_joint_law(sigma, sizes, data, unit)
