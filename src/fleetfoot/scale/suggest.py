"""From the laws of a fitted study to the options of a recipe for a budget."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fleetfoot import recipes
from fleetfoot.compare.runs import Floats, task_of
from fleetfoot.config import to_json
from fleetfoot.errors import UserError, one_line
from fleetfoot.files import read_json
from fleetfoot.recipe import Recipe
from fleetfoot.run.folder import differences, look_up
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


class Laws:
    """A fit.json, read back."""

    def __init__(self, tree: dict[str, Any], place: Path):
        self.tree, self.place = tree, place
        self.ratios = sorted({float(ratio) for ratio, _ in tree["ratios"]})
        self.laws = [(float(one["threshold"]), DataLaw(**one["law"])) for one in tree["laws"]]
        self.batch, self.lr = PowerLaw(**tree["batch"]), _power_law(tree["lr"])
        budget = tree["budget_law"]
        self.ratio_law = None if budget is None else _power_law(budget["law"])
        self.params, self.delta = float(tree["params"]), float(tree["delta"])
        self.costs = CostModel(self.batch, self.params, self.delta)

    @staticmethod
    def read(folder: Path) -> Laws:
        path = next(
            (p for p in (folder / "fit" / "fit.json", folder / "fit.json") if p.is_file()), None
        )
        if path is None:
            raise UserError(f"{folder} has not been fitted yet: fleetfoot scale fit {folder}.")
        try:
            return Laws(read_json(path), path.parent)
        except UserError:
            raise
        except Exception as error:  # it may hold anything
            raise UserError(f"{path} cannot be read: {one_line(error)}.") from error

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
        fixed, per_update = self.tree["seconds"]
        return np.asarray(fixed + per_update * sigma)

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

    def for_seconds(self, seconds: float) -> Suggestion:
        """The ratio that reaches the highest score in that time."""
        sigma = self.grid()
        rate = self.seconds_per_env_step(sigma)
        _, score, best = self._affordable(
            lambda law: rate * law(sigma, self.params), seconds, "seconds"
        )
        return self._suggestion(float(sigma[best]), score, seconds / float(rate[best]))

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

    def options(self, suggestion: Suggestion, task: str) -> tuple[str, list[str]]:
        """The name of a task's recipe, and its options."""
        recipe, named = self.recipe(task)
        batch, lr = self.setting(recipe, suggestion.sigma)
        steps = suggestion.env_steps * self.tree["units"][task]
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
        name = self.tree["recipes"][task]
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


def _power_law(tree: dict[str, Any] | None) -> PowerLaw | None:
    return None if tree is None else PowerLaw(**tree)
