"""From the laws of a fitted study to the options of a recipe for a budget."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fleetfoot import recipes
from fleetfoot.compare.runs import Floats, task_of
from fleetfoot.config import to_json
from fleetfoot.errors import UserError, one_line
from fleetfoot.recipe import Recipe
from fleetfoot.run.folder import differences, look_up
from fleetfoot.run.stored import read_stored
from fleetfoot.scale.frontier import CostModel
from fleetfoot.scale.grid import lr_options, rounded_batch
from fleetfoot.scale.laws import DataLaw, PowerLaw
from fleetfoot.study.folder import is_study, read_study

# What a suggestion states itself, or what does not change what is learned.
STATED = ("pace.updates_per_vec_step", "batch_size", "total_vec_steps", "seed", "name")
BESIDE = ("log", "checkpoint", "evaluation", "threads", "device")
GRID = 400
CONSTANT = 1e-9  # a slope that is only rounding: all runs had the same batch size


@dataclass(frozen=True)
class Suggestion:
    """What to use, and what to expect of it."""

    sigma: float
    score: float  # the highest threshold that the budget is enough for
    env_steps: float  # in the study's unit; a task's own differs by its factor
    flops: float
    seconds: float


@contextmanager
def finite() -> Iterator[None]:
    """Around what computes with laws or budgets that somebody wrote: a number that is too large becomes one line."""
    try:
        with np.errstate(over="raise", divide="raise", invalid="raise"):
            yield
    except ArithmeticError as error:
        raise UserError(f"the laws give no number for this: {one_line(error)}.") from error


class Laws:
    """A fit.json, read back."""

    def __init__(self, tree: dict[str, Any], place: Path):
        self.place = place
        self.ratios = sorted({number(ratio, above=0.0) for ratio, _ in tree["ratios"]})
        self.laws = [(number(one["threshold"]), _data_law(one["law"])) for one in tree["laws"]]
        self.batch, self.lr = _power_law(tree["batch"]), _or_none(_power_law, tree["lr"])
        self.ratio_law = _or_none(lambda law: _power_law(law["law"]), tree["budget_law"])
        self.params, self.delta = number(tree["params"], above=0.0), number(tree["delta"])
        self.costs = CostModel(self.batch, self.params, self.delta)
        self.seconds = [number(value) for value in tree["seconds"]]
        self.units = {task: number(unit, above=0.0) for task, unit in tree["units"].items()}
        self.recipes = {task: str(tree["recipes"][task]) for task in self.units}
        self._try()

    def _try(self) -> None:
        """ValueError where the laws give no numbers: a file may be whole and absurd."""
        sigma = self.grid()
        data = [law(sigma, self.params) for _, law in self.laws]
        costs = [self.costs.budget(sigma, steps) for steps in data]
        rates = [self.seconds_per_env_step(sigma)]
        rates += [np.array(self.batch(task, 1.0, self.params)) for task in self.units]
        if not all((row > 0.0).all() and np.isfinite(row).all() for row in data + costs + rates):
            raise ValueError("its laws give costs that are no positive numbers")
        if self.ratio_law is not None and "" not in self.ratio_law.log10_at_one:
            raise ValueError("the law of the best ratio has no value at 1")

    @staticmethod
    def read(folder: Path) -> Laws:
        path = next(
            (p for p in (folder / "fit" / "fit.json", folder / "fit.json") if p.is_file()), None
        )
        if path is None:
            raise UserError(f"{folder} has not been fitted yet: fleetfoot scale fit {folder}.")
        tree = read_stored(path, "fit")
        try:
            with finite():
                return Laws(tree, path.parent)
        except Exception as error:  # it may hold anything
            raise UserError(f"{path} cannot be read: {one_line(error)}.") from error

    @finite()
    def setting(self, recipe: Recipe, sigma: float) -> tuple[int, float | None]:
        """Batch size and learning rate for a task at a ratio."""
        task = task_of(to_json(recipe.env))
        batch = self._at(self.batch, task, sigma)
        lr = None if self.lr is None else float(f"{self._at(self.lr, task, sigma):.4g}")
        constant = abs(self.batch.slope) < CONSTANT
        return round(batch) if constant else rounded_batch(batch), lr

    def _at(self, law: PowerLaw, task: str, sigma: float) -> float:
        if task not in law.log10_at_one:
            raise UserError(
                f"{self.place} has no laws for {task}: its tasks are {', '.join(law.log10_at_one)}."
            )
        return law(task, sigma, self.params)

    def seconds_per_env_step(self, sigma: Floats) -> Floats:
        fixed, per_update = self.seconds
        return np.asarray(fixed + per_update * sigma)

    @finite()
    def for_budget(self, budget: float) -> Suggestion:
        """The best ratio by its law; `budget` in FLOPs, env steps included at delta each."""
        sigma = self.grid()
        _, score, best = self._affordable(
            lambda law: self.costs.budget(sigma, law(sigma, self.params)), budget, "FLOPs"
        )
        chosen = float(sigma[best])
        if self.ratio_law is not None:
            chosen = float(np.clip(self.ratio_law("", budget), self.ratios[0], self.ratios[-1]))
        per_step = float(self.costs.budget(np.array(chosen), np.array(1.0)))
        return self._suggestion(chosen, score, budget / per_step)

    @finite()
    def for_seconds(self, seconds: float) -> Suggestion:
        """The ratio that reaches the highest score in that time."""
        sigma = self.grid()
        rate = self.seconds_per_env_step(sigma)
        _, score, best = self._affordable(
            lambda law: rate * law(sigma, self.params), seconds, "seconds"
        )
        return self._suggestion(float(sigma[best]), score, seconds / float(rate[best]))

    @finite()
    def for_env_steps(self, env_steps: float) -> Suggestion:
        """The smallest ratio, which computes least, that reaches the highest score within so much data."""
        sigma = self.grid()
        data, score, _ = self._affordable(
            lambda law: law(sigma, self.params), env_steps, "env steps"
        )
        cheapest = int(np.flatnonzero(data <= env_steps)[0])
        return self._suggestion(float(sigma[cheapest]), score, env_steps)

    def grid(self) -> Floats:
        """The ratios that were measured: laws are not trusted beyond."""
        return np.geomspace(self.ratios[0], self.ratios[-1], GRID)

    def _affordable(
        self, cost: Callable[[DataLaw], Floats], budget: float, unit: str
    ) -> tuple[Floats, float, int]:
        """For the highest threshold that costs no more than the budget: the costs, the threshold, the best ratio."""
        priced = [(cost(law), threshold) for threshold, law in self.laws]
        fits = [(costs, threshold) for costs, threshold in priced if costs.min() <= budget]
        if not fits:
            least, lowest = min((float(costs.min()), threshold) for costs, threshold in priced)
            raise UserError(
                f"{budget:,.4g} {unit} are too few: the lowest score of this study, {lowest:.0f}, needs {least:,.4g}."
            )
        costs, threshold = max(fits, key=lambda one: one[1])
        return costs, threshold, int(costs.argmin())

    def _suggestion(self, sigma: float, score: float, env_steps: float) -> Suggestion:
        at, steps = np.array(sigma), np.array(env_steps)
        return Suggestion(
            sigma=sigma,
            score=score,
            env_steps=env_steps,
            flops=float(self.costs.compute(at, steps)),
            seconds=float(self.seconds_per_env_step(at) * steps),
        )

    @finite()
    def options(self, suggestion: Suggestion, task: str) -> tuple[str, list[str]]:
        """The name of a task's recipe, and its options."""
        recipe, named = self.recipe(task)
        batch, lr = self.setting(recipe, suggestion.sigma)
        steps = suggestion.env_steps * self.units[task]
        words: list[tuple[str, Any]] = [] if named is None else list(changes(named, recipe))
        words.append(("pace.updates_per_vec_step", f"{suggestion.sigma * recipe.num_envs:.4g}"))
        words.append(("batch_size", batch))
        if lr is not None:
            words += [(path, f"{value:.4g}") for path, value in lr_options(recipe, lr)]
        words.append(("total_vec_steps", math.ceil(steps / recipe.num_envs)))
        flags = [(f"--{path.replace('_', '-')}", str(value)) for path, value in words]
        return recipe.name, [word for pair in flags for word in pair]

    def recipe(self, task: str) -> tuple[Recipe, Recipe | None]:
        """As the study trained it, and as its name alone gives it; None: of a module of the user's."""
        name = self.recipes[task]
        try:
            named = recipes.get(name)
        except UserError:
            named = None
        for folder in (self.place.parent, self.place):
            if is_study(folder):
                points = read_study(folder).points.values()
                return next(recipe for recipe in points if recipe.name == name), named
        if named is None:
            raise UserError(f"the recipe {name} is not known here; give the folder of its study.")
        return named, named


def changes(named: Recipe, used: Recipe) -> Iterator[tuple[str, Any]]:
    """What the study changed in the recipe besides its axes."""
    for path in differences(named, used):
        if (
            path in STATED
            or path.split(".")[0] in BESIDE
            or path.endswith(("optim.lr", "optim.lr_end"))
        ):
            continue
        value = look_up(used, path)
        if isinstance(value, Sequence) and not isinstance(value, str):
            value = " ".join(map(str, value))
        yield path, value if isinstance(value, (int, float, str)) else type(value).__name__


def number(value: Any, above: float = -math.inf) -> float:
    """A finite number that a file holds. ValueError where it is something else."""
    if type(value) not in (int, float) or not (math.isfinite(value) and value > above):
        raise ValueError(f"{value!r:.40} stands where a number is expected")
    return float(value)


def _data_law(tree: dict[str, Any]) -> DataLaw:
    return DataLaw(**{name: number(value) for name, value in tree.items() if name != "r2"})


def _power_law(tree: dict[str, Any]) -> PowerLaw:
    at_one = {str(task): number(value) for task, value in tree["log10_at_one"].items()}
    rest = {
        name: number(value) for name, value in tree.items() if name not in ("log10_at_one", "r2")
    }
    return PowerLaw(log10_at_one=at_one, **rest)


def _or_none(make: Callable[[Any], PowerLaw], tree: Any) -> PowerLaw | None:
    return None if tree is None else make(tree)
