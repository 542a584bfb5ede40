"""Compute against data: the frontier, the best ratio for a budget, and the law of that ratio."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from fleetfoot.compare.runs import Floats
from fleetfoot.scale.laws import DataLaw, PowerLaw, fit_power_law

Number: TypeAlias = Floats | float

FLOPS_PER_PARAMETER = (
    10  # forward and backward through critic, target and policy, per row and update
)
RATIOS = 20_001  # of the fine grid
HELD_OUT = 2  # the highest thresholds, which test the law of the best ratio
POOR_FIT = (
    0.8  # R^2 of data laws below which their optima do not count for the law of the best ratio
)
REACH = 2.0  # the grid goes so far beyond the ratios that were measured, on both sides


def flops(sigma: Number, data: Number, batch: Number, params: Number) -> Floats:
    """(4)"""
    return np.asarray(FLOPS_PER_PARAMETER * sigma * data * batch * params)


@dataclass(frozen=True)
class CostModel:
    """What an env step costs at a ratio: FLOPs of the updates, and the data itself."""

    batch: PowerLaw
    params: float  # N
    delta: float  # FLOPs that one env step is worth

    def compute(self, sigma: Floats, data: Floats, params: float | None = None) -> Floats:
        size = self.params if params is None else params
        return flops(sigma, data, self.batch.mean(sigma, size), size)

    def budget(self, sigma: Floats, data: Floats, params: float | None = None) -> Floats:
        return self.compute(sigma, data, params) + self.delta * data


@dataclass(frozen=True)
class Optimum:
    """The cheapest way to one threshold."""

    threshold: float
    sigma: float
    data: float  # env steps
    compute: float  # FLOPs
    budget: float  # compute + delta * data
    at_edge: bool  # the true one lies outside of the grid
    params: float
    trusted: bool = True  # its data law fits


def ratio_grid(ratios: Sequence[float]) -> Floats:
    return np.geomspace(min(ratios) / REACH, max(ratios) * REACH, RATIOS)


def optimum(
    law: DataLaw, threshold: float, costs: CostModel, sigma: Floats, sizes: Sequence[float] = ()
) -> Optimum:
    """(5), and over sizes too where there are several."""
    sizes = sizes or [costs.params]
    best: Optimum | None = None
    for size in sizes:
        data = law(sigma, size)
        budgets = costs.budget(sigma, data, size)
        place = int(budgets.argmin())
        if best is None or budgets[place] < best.budget:
            best = Optimum(
                threshold=threshold,
                sigma=float(sigma[place]),
                data=float(data[place]),
                compute=float(costs.compute(sigma, data, size)[place]),
                budget=float(budgets[place]),
                at_edge=place in (0, len(sigma) - 1),
                params=float(size),
                trusted=law.r2 >= POOR_FIT,
            )
    assert best is not None
    return best


@dataclass(frozen=True)
class BudgetLaw:
    """(6), with its error on the thresholds that it has not seen."""

    law: PowerLaw
    held_out_error: float  # mean relative error of the ratio

    def sigma(self, budget: float) -> float:
        return self.law("", budget)


def fit_budget_law(optima: Sequence[Optimum]) -> BudgetLaw | None:
    """None where too few optima are inside the grid, with a data law that fits."""
    inside = [one for one in optima if one.trusted and not one.at_edge]
    seen, unseen = inside[:-HELD_OUT], inside[-HELD_OUT:]
    if len(seen) < 2 or len({one.budget for one in seen}) < 2:
        return None
    names = [""] * len(seen)
    law = fit_power_law(names, [o.budget for o in seen], [o.sigma for o in seen])
    errors = [abs(law("", one.budget) / one.sigma - 1.0) for one in unseen]
    return BudgetLaw(
        law=law,
        held_out_error=float(np.mean(errors)),
    )
