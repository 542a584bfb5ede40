"""Runs that end when they have reached what was asked of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from benchmarks import curves
from fleetfoot.recipe import Recipe, Result


def train_until(recipe: Recipe, folder: Path, least: float, *, every: int | None = None) -> Result:
    """Train, for as long as the recipe says at most, and stop at the first evaluation that returns `least`: what comes
    after it cannot change whether the best one does. `every`: vec steps between evaluations, if not the recipe's."""
    if every is not None:
        recipe = replace(recipe, evaluation=replace(recipe.evaluation, every_vec_steps=every))
    return curves.train_until(recipe, folder, lambda: any(r >= least for r in returns(folder)))


def returns(folder: Path) -> list[float]:
    """Of the evaluations so far."""
    text = (folder / "metrics.jsonl").read_text()
    whole = (json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("}\n"))
    return [line["eval/return"] for line in whole if "eval/return" in line]
