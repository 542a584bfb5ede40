"""The whole analysis of a study, from its table of runs to the laws and the best ratio for each budget."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from fleetfoot.compare.ranges import Range, known_range
from fleetfoot.compare.runs import Floats
from fleetfoot.errors import UserError
from fleetfoot.scale import bests, curves, fits, frontier
from fleetfoot.scale.curves import SCALE, Resets, SeedCurves
from fleetfoot.scale.fits import LEAST_RATIOS, DataTable
from fleetfoot.scale.frontier import CostModel, Optimum
from fleetfoot.scale.laws import PowerLaw, fit_power_law, separate_slopes
from fleetfoot.scale.results import Analysis, Crossings, Fitted
from fleetfoot.scale.table import Key, RunTable

LEVELS = (10, 200.0, 800.0)  # number of default thresholds, lowest, highest
FEW_SEEDS = 8  # fewer make the best batch size and learning rate mostly noise

Cell: TypeAlias = tuple[str, float, int]  # task, ratio, critic parameters


@dataclass(frozen=True)
class Ask:
    """How to analyse a study: the options of `fleetfoot scale fit`."""

    thresholds: tuple[float, ...] = ()  # scores, 0 to 1,000; empty: ten from 200 to 800
    ranges: Mapping[str, Range] = field(default_factory=dict[str, Range])
    everywhere: Range | None = None  # for tasks that `ranges` does not name
    delta: float | None = (
        None  # FLOPs that an env step is worth; None: as much as its updates, at the middle ratio
    )
    resets: Resets = field(default_factory=Resets)
    reps: int = 100
    seed: int = 0


def analyse(table: RunTable, ask: Ask) -> Analysis:
    return _Work(table, ask).done()


class _Work:
    """The steps of the analysis, in their order. Each reads what those before it left."""

    def __init__(self, table: RunTable, ask: Ask):
        self.table, self.ask, self.notes = table, ask, list(table.notes)
        if ask.reps < 1:
            raise UserError(f"--reps must be at least 1, not {ask.reps}.")

    def done(self) -> Analysis:
        self.read_curves()
        self.find_crossings()
        batch_law, lr_law, found, slopes = self.setting_laws()
        chosen = self.choose(batch_law, lr_law)
        data = self.data_table(chosen)
        ratios, laws = data.ratios, fits.fit_all(data)
        # Without a law of the best, one through what was used, which may be the same everywhere.
        batch = batch_law or self.used_law([key.batch for key in chosen.values()], chosen)
        lr = lr_law or self.used_law([key.lr for key in chosen.values()], chosen)
        assert batch is not None
        costs = self.cost_model(batch, ratios)
        grid = frontier.ratio_grid([sigma for sigma, _ in ratios])
        sizes = sorted({float(size) for _, size in ratios})
        optima = [frontier.optimum(f.law, f.threshold, costs, grid, sizes) for f in laws]
        self.note_optima(optima, grid)
        seconds = self.seconds_per_step(chosen)
        return Analysis(
            tasks=self.ranges,
            recipes={run.key.task: run.recipe for run in self.table.runs},
            num_envs={run.key.task: run.num_envs for run in self.table.runs},
            units=dict(zip(self.table.tasks, data.units.tolist(), strict=True)),
            seeds=min(len(one.returns) for one in self.curves.values()),
            ratios=ratios,
            crossings=[self.row(key, key in chosen.values()) for key in self.curves],
            thresholds=self.thresholds.tolist(),
            laws=laws,
            held_out=fits.hold_out(data, laws),
            batch_law=batch_law,
            lr_law=lr_law,
            bests=found,
            own_slopes=slopes,
            batch=batch,
            lr=lr,
            params=costs.params,
            delta=costs.delta,
            optima=optima,
            budget_law=frontier.fit_budget_law(optima),
            seconds=seconds,
            fastest=[_fastest(f, seconds, grid, costs.params) for f in laws],
            notes=self.notes,
        )

    def note_optima(self, optima: Sequence[Optimum], grid: Floats) -> None:
        if edge := [one for one in optima if one.at_edge]:
            self.notes.append(
                f"the best ratio for {len(edge)} thresholds lies outside of {grid[0]:.3g} to {grid[-1]:.3g}; "
                "another --delta moves it."
            )
        if poor := [f"{one.threshold:.0f}" for one in optima if not one.trusted]:
            self.notes.append(
                f"the data law for a score of {', '.join(poor)} has an R^2 below {frontier.POOR_FIT}; its best ratio "
                "is no part of the law of best ratios."
            )

    def read_curves(self) -> None:
        """Curves as scores."""
        groups = self.table.groups()
        raw = {key: curves.seed_curves(key, runs) for key, runs in groups.items()}
        self.ranges = {task: self.range_of(task, raw) for task in self.table.tasks}
        self.curves: dict[Key, SeedCurves] = {}
        for key, one in raw.items():
            low, high = self.ranges[key.task]
            scores = SCALE * (one.returns - low) / (high - low)
            self.curves[key] = SeedCurves(**{**vars(one), "returns": scores})
        fewest = min(len(one.returns) for one in raw.values())
        if fewest < FEW_SEEDS:
            self.notes.append(
                f"only {fewest} seeds: the best batch sizes and learning rates, if fitted, are mostly noise."
            )

    def range_of(self, task: str, raw: Mapping[Key, SeedCurves]) -> Range:
        stated = self.ask.ranges.get(task) or self.ask.everywhere or known_range(task)
        if stated is not None:
            return stated
        mine = [one for key, one in raw.items() if key.task == task]
        monotone = [curves.isotonic(one.mean) for one in mine]
        low, high = min(float(y[0]) for y in monotone), max(float(y[-1]) for y in monotone)
        if not low < high:
            raise UserError(f"nothing was learned on {task}: all mean returns are {low:,.1f}.")
        self.notes.append(
            f"{task}: a score of 0 is a return of {low:,.1f} and 1,000 is {high:,.1f}, the lowest and the highest "
            "mean here (--low and --high set them)."
        )
        return low, high

    def find_crossings(self) -> None:
        asked = self.ask.thresholds or curves.score_levels(*LEVELS)
        self.thresholds = np.array(sorted(set(asked)))
        resets, source = self.ask.resets, np.random.default_rng(self.ask.seed)
        self.reached = {
            key: curves.reach(one, self.thresholds, resets) for key, one in self.curves.items()
        }
        if all(np.isnan(data).all() for data in self.reached.values()):
            top = max(float(curves.isotonic(one.mean)[-1]) for one in self.curves.values())
            raise UserError(
                f"no configuration reached a threshold: the lowest is a score of {self.thresholds[0]:,.0f}, the "
                f"highest score that was reached is {top:,.0f}; give lower --thresholds, or train longer."
            )
        self.samples = {
            key: curves.bootstrap(one, self.thresholds, resets, self.ask.reps, source)
            for key, one in self.curves.items()
        }

    def setting_laws(
        self,
    ) -> tuple[
        PowerLaw | None, PowerLaw | None, dict[str, list[bests.Best]], dict[str, dict[str, float]]
    ]:
        """(1), where a study has several batch sizes or learning rates at two ratios or more."""
        place = self.highest_common()
        reached = {key: samples[:, place] for key, samples in self.samples.items()}
        found = {
            "batch": bests.best_values(reached, lambda key: key.batch, lambda key: key.lr),
            "lr": bests.best_values(reached, lambda key: key.lr, lambda key: key.batch),
        }
        laws: dict[str, PowerLaw | None] = {}
        slopes: dict[str, dict[str, float]] = {}
        for name, values in found.items():
            laws[name] = None
            if len({best.utd for best in values}) > 1:
                tasks, utd = [best.task for best in values], [best.utd for best in values]
                best_of = [best.value for best in values]
                laws[name] = fit_power_law(tasks, utd, best_of, [b.params for b in values])
                slopes[name] = dict(separate_slopes(tasks, utd, best_of))
        return laws["batch"], laws["lr"], found, slopes

    def highest_common(self) -> int:
        """The highest threshold that some configuration of every task and ratio reached, or the lowest of all."""
        cells: dict[tuple[str, float], list[Floats]] = {}
        for key, data in self.reached.items():
            cells.setdefault((key.task, key.utd), []).append(data)
        common = np.logical_and.reduce([~np.isnan(data).all(axis=0) for data in cells.values()])
        return int(np.flatnonzero(common)[-1]) if common.any() else 0

    def choose(self, batch_law: PowerLaw | None, lr_law: PowerLaw | None) -> dict[Cell, Key]:
        """The configuration that stands for each task, ratio and size: the nearest to the laws."""

        def distance(key: Key) -> float:
            away = 0.0
            for law, value in ((batch_law, key.batch), (lr_law, key.lr)):
                if law is not None and key.task in law.log10_at_one:
                    away += math.log(value / law(key.task, key.utd, key.params)) ** 2
            return away

        chosen: dict[Cell, Key] = {}
        for key in self.curves:
            cell = key.task, key.utd, key.params
            if cell not in chosen or distance(key) < distance(chosen[cell]):
                chosen[cell] = key
        return chosen

    def data_table(self, chosen: Mapping[Cell, Key]) -> DataTable:
        """D_J of all tasks at the ratios that every task has, for the thresholds that all of them reached."""
        tasks = self.table.tasks
        cells = sorted({(utd, params) for _, utd, params in chosen})
        ratios = [cell for cell in cells if all((task, *cell) in chosen for task in tasks)]
        count = len({utd for utd, _ in ratios})
        if count < LEAST_RATIOS:
            raise UserError(
                f"a data law needs at least {LEAST_RATIOS} update-to-data ratios that every task has; there are "
                f"{count}. fleetfoot scale run with more --utd adds some."
            )
        keys = [[chosen[task, *cell] for cell in ratios] for task in tasks]
        measured = np.array([[self.reached[key] for key in row] for row in keys])
        common = ~np.isnan(measured).any(axis=(0, 1))
        if not common.any():
            worst = min(
                float(curves.isotonic(self.curves[key].mean)[-1]) for key in chosen.values()
            )
            raise UserError(
                f"no threshold was reached at every ratio: the lowest is a score of {self.thresholds[0]:,.0f}, and one "
                f"ratio ended at {worst:,.0f}; give lower --thresholds, or train longer."
            )
        if not common.all():
            self.notes.append(
                f"{int((~common).sum())} of {len(common)} thresholds were not reached at every ratio and have no law."
            )
        samples = np.array([[self.samples[key] for key in row] for row in keys])
        return DataTable(
            ratios, self.thresholds[common], measured[..., common], samples[..., common]
        )

    def used_law(self, values: Sequence[float], chosen: Mapping[Cell, Key]) -> PowerLaw | None:
        """None where the agent names no learning rate."""
        keys = list(chosen.values())
        if min(values) <= 0:
            return None
        return fit_power_law([key.task for key in keys], [key.utd for key in keys], values)

    def cost_model(self, batch: PowerLaw, ratios: Sequence[tuple[float, int]]) -> CostModel:
        params = float(np.exp(np.mean([math.log(size) for _, size in ratios])))
        delta = self.ask.delta
        if delta is None:
            middle = math.sqrt(ratios[0][0] * ratios[-1][0])
            delta = float(frontier.flops(middle, 1.0, batch.mean(middle, params), params))
        return CostModel(batch, params, delta)

    def seconds_per_step(self, chosen: Mapping[Cell, Key]) -> tuple[float, float]:
        """What an env step and an update per env step cost in time, by a line through all ratios."""
        from scipy.optimize import nnls

        keys = list(chosen.values())
        cost = [_seconds_per_env_step(self.curves[key]) for key in keys]
        table = np.stack([np.ones(len(keys)), [key.utd for key in keys]], 1)
        (fixed, per_update), _ = nnls(table, np.array(cost))
        return float(fixed), float(per_update)

    def row(self, key: Key, on_law: bool) -> Crossings:
        one = self.curves[key]
        with np.errstate(invalid="ignore"):
            spread = self.samples[key].std(axis=0)
        return Crossings(
            key=key,
            seeds=len(one.returns),
            data=self.reached[key].tolist(),
            spread=spread.tolist(),
            seconds_per_env_step=_seconds_per_env_step(one),
            overfitting=one.overfitting,
            parameter_norm=one.parameter_norm,
            on_law=on_law,
        )


def _fastest(fitted: Fitted, seconds: tuple[float, float], grid: Floats, params: float) -> Optimum:
    data = fitted.law(grid, params)
    time = data * (seconds[0] + seconds[1] * grid)
    place = int(time.argmin())
    edge = place in (0, len(grid) - 1)
    sigma, steps = float(grid[place]), float(data[place])
    return Optimum(fitted.threshold, sigma, steps, math.nan, float(time[place]), edge, params)


def _seconds_per_env_step(one: SeedCurves) -> float:
    steps = one.env_steps[-1] - one.env_steps[0]
    return float((one.seconds[-1] - one.seconds[0]) / steps)
