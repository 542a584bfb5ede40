"""Runs that end when they have reached what was asked of them."""

from __future__ import annotations

import json
import os
import signal
import threading
from dataclasses import replace
from pathlib import Path

from fleetfoot.api import train
from fleetfoot.recipe import Recipe, Result


def train_until(recipe: Recipe, folder: Path, least: float, *, every: int | None = None) -> Result:
    """Train, for as long as the recipe says at most, and stop at the first evaluation that returns `least`: what comes
    after it cannot change whether the best one does. `every`: vec steps between evaluations, if not the recipe's."""
    if every is not None:
        recipe = replace(recipe, evaluation=replace(recipe.evaluation, every_vec_steps=every))
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.1):
            if any(value >= least for value in returns(folder)):
                return os.kill(os.getpid(), signal.SIGINT)

    watching = threading.Thread(target=watch, daemon=True)
    # A signal that comes when the run has just ended finds this, and does nothing.
    before = signal.signal(signal.SIGINT, lambda number, frame: None)
    try:
        watching.start()
        return train(recipe, folder)
    finally:
        over.set()
        watching.join()
        signal.signal(signal.SIGINT, before)


def returns(folder: Path) -> list[float]:
    """Of the evaluations so far."""
    path = folder / "metrics.jsonl"
    text = path.read_text() if path.exists() else ""
    whole = (json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("}\n"))
    return [line["eval/return"] for line in whole if "eval/return" in line]
