"""The laws: straight lines in logarithms with a shared slope, and data over ratio (and size) with an asymptote."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fleetfoot.compare.runs import Floats

EXPONENTS = (0.05, 4.0)  # bounds of a and d: outside, a law is a constant or a step
GRID = 25  # exponents tried, before the search around the best of them


@dataclass(frozen=True)
class PowerLaw:
    """y = y_1 x^slope (times size^size_slope), with a y_1 for each task, stored as log10."""

    slope: float
    log10_at_one: dict[str, float]
    size_slope: float = 0.0
    r2: float = 1.0

    def __call__(self, task: str, x: float, size: float = 1.0) -> float:
        return float(10 ** self.log10_at_one[task] * x**self.slope * size**self.size_slope)

    def mean(self, x: Floats | float, size: float = 1.0) -> Floats:
        """Mean over tasks. `size` counts only where the law depends on it."""
        at_one = np.mean([10**value for value in self.log10_at_one.values()])
        return np.asarray(at_one * np.asarray(x) ** self.slope * size**self.size_slope)


def fit_power_law(
    tasks: Sequence[str], x: Sequence[float], y: Sequence[float], sizes: Sequence[float] = ()
) -> PowerLaw:
    """One slope for all tasks, an intercept for each: linear regression with dummy variables."""
    names = list(dict.fromkeys(tasks))
    dummies = np.array([[float(task == name) for name in names] for task in tasks])
    features = [np.log10(np.asarray(x))[:, None]]
    if len(set(sizes)) > 1:
        features.append(np.log10(np.asarray(sizes))[:, None])
    table, wanted = np.hstack([*features, dummies]), np.log10(np.asarray(y))
    found, *_ = np.linalg.lstsq(table, wanted, rcond=None)
    slopes, intercepts = found[: len(features)], found[len(features) :]
    return PowerLaw(
        slope=float(slopes[0]),
        log10_at_one=dict(zip(names, map(float, intercepts), strict=True)),
        size_slope=float(slopes[1]) if len(slopes) > 1 else 0.0,
        r2=r_squared(wanted, table @ found),
    )


def separate_slopes(
    tasks: Sequence[str], x: Sequence[float], y: Sequence[float]
) -> Mapping[str, float]:
    """The slope of each task on its own, to see whether sharing one is fair."""
    slopes = {}
    for task in dict.fromkeys(tasks):
        mine = [place for place, name in enumerate(tasks) if name == task]
        if len({x[place] for place in mine}) > 1:
            law = fit_power_law([task] * len(mine), [x[i] for i in mine], [y[i] for i in mine])
            slopes[task] = law.slope
    return slopes


@dataclass(frozen=True)
class DataLaw:
    """D(sigma) = scale (c + (sigma / b)^-a), and with sizes scale (c + (sigma / b)^-a + (N / n)^-d)."""

    a: float
    b: float
    c: float
    scale: float = 1.0
    n: float = 0.0  # 0: no term for the size
    d: float = 1.0
    r2: float = 1.0

    def __call__(self, sigma: Floats | float, size: Floats | float = 1.0) -> Floats:
        # b may be tiny, when data hardly depends on sigma.
        terms = self.c + (np.asarray(sigma) / max(self.b, 1e-12)) ** -self.a
        if self.n > 0:
            terms = terms + (np.asarray(size) / self.n) ** -self.d
        return np.asarray(self.scale * terms)

    @property
    def least(self) -> float:
        """Env steps that no ratio (and size) gets below."""
        return self.scale * self.c

    @property
    def beta(self) -> float:
        """b of the equivalent form scale c (1 + (sigma / beta)^-a)."""
        return float(self.b * self.c ** (-1 / self.a)) if self.c > 0 else float("inf")


def fit_data_law(sigma: Floats, data: Floats, scale: float = 1.0) -> DataLaw:
    """Least squares. For a given exponent the rest is linear and not negative, so only that is searched for."""

    def solve(exponents: Sequence[float]) -> tuple[Floats, float]:
        return _solve([sigma], exponents, data)

    (a,) = _search(solve, 1)
    (c, k), _ = solve([a])
    law = DataLaw(a=a, b=_root(k, a), c=float(c), scale=scale)
    return _with_r2(law, data, sigma)


def fit_joint_law(sigma: Floats, size: Floats, data: Floats, scale: float = 1.0) -> DataLaw:
    """The same with a second power law, in the size of the critic."""
    unit = float(np.exp(np.log(size).mean()))  # keeps the columns of similar length

    def solve(exponents: Sequence[float]) -> tuple[Floats, float]:
        return _solve([sigma, size / unit], exponents, data)

    a, d = _search(solve, 2)
    (c, k, m), _ = solve([a, d])
    n = unit * _root(m, d)
    law = DataLaw(a=a, b=_root(k, a), c=float(c), scale=scale, n=n, d=d)
    return _with_r2(law, data, sigma, size)


def r_squared(measured: Floats, predicted: Floats) -> float:
    spread = float(np.square(measured - measured.mean()).sum())
    missed = float(np.square(measured - predicted).sum())
    return 1.0 - missed / spread if spread > 0 else 1.0


def _solve(
    axes: Sequence[Floats], exponents: Sequence[float], data: Floats
) -> tuple[Floats, float]:
    """Coefficients of a constant and of x^-exponent for each axis, none negative, and the error that is left."""
    from scipy.optimize import nnls

    powers = [x**-exponent for x, exponent in zip(axes, exponents, strict=True)]
    coefficients, error = nnls(np.stack([np.ones(len(data)), *powers], 1), data)
    return coefficients, float(error)


def _search(solve: Callable[[Sequence[float]], tuple[Floats, float]], count: int) -> list[float]:
    """The exponents with the least error: the best of a grid, and from there the lowest point around it."""
    from scipy import optimize

    def error(log_exponents: Floats) -> float:
        return solve(np.exp(np.atleast_1d(log_exponents)).tolist())[1]

    low, high = np.log(EXPONENTS)
    start = np.atleast_1d(optimize.brute(error, [(low, high)] * count, Ns=GRID, finish=None))
    step = (high - low) / (GRID - 1)
    bounds = [(max(low, x - step), min(high, x + step)) for x in start]
    if count == 1:
        found = optimize.minimize_scalar(error, bounds=bounds[0], method="bounded")
    else:
        found = optimize.minimize(error, start, method="Nelder-Mead", bounds=bounds)
    return [float(value) for value in np.exp(np.atleast_1d(found.x))]


def _root(coefficient: float, exponent: float) -> float:
    """b of (x / b)^-exponent = coefficient x^-exponent."""
    return float(max(coefficient, 0.0) ** (1 / exponent))


def _with_r2(law: DataLaw, data: Floats, *axes: Floats) -> DataLaw:
    fields = {**vars(law), "r2": r_squared(data, law(*axes) / law.scale)}
    return DataLaw(**fields)
