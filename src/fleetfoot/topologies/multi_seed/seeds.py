"""Training the seeds of one recipe, each in a run folder of its own: batched, or one after the other."""

from __future__ import annotations

import glob
import os
import secrets
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fleetfoot import checkpoint
from fleetfoot.errors import UserError, writing
from fleetfoot.recipe import Recipe, Result
from fleetfoot.run.folder import clear, has_checkpoint, write_recipe
from fleetfoot.topologies.multi_seed.loop import NotBatched, train_batched, why_not_batched


def make_folders(place: Path, recipe: Recipe, seeds: Sequence[int]) -> list[Path]:
    """Make a folder with a recipe for every seed, all at once: whenever the run is killed, all can be resumed."""
    hidden = place.parent / f".{place.name}.{secrets.token_hex(6)}.partial"
    with writing(place):
        for left in place.parent.glob(f".{glob.escape(place.name)}.*.partial"):  # by a kill
            shutil.rmtree(left, ignore_errors=True)
        for seed in seeds:
            folder = hidden / f"seed-{seed}"
            folder.mkdir(parents=True)
            write_recipe(folder, replace(recipe, seed=seed))
        if place.exists():
            place.rmdir()  # it is empty
        os.replace(hidden, place)
    return [place / f"seed-{seed}" for seed in seeds]


def train(recipe: Recipe, seeds: Sequence[int], folders: Sequence[Path]) -> list[Result]:
    """Start every seed, or continue those that are not finished; Ctrl-C saves and stops."""
    if len(seeds) == 1:
        return train_in_turn(recipe, seeds, folders)
    saved = [saved_steps(folder) for folder in folders]
    common = max(set.intersection(*map(set, saved)), default=None)
    why = why_not_batched(recipe)
    if why is None and common is None and any(saved):
        why = "they have no checkpoints of the same vec step"
    if why is None and common is not None:
        filled = {(steps[common] / "replay.safetensors").exists() for steps in saved}
        if len(filled) > 1:
            why = "some of their checkpoints hold a replay and some do not"
    if why is None:
        # Loaded one after the other: each may hold a large replay.
        states = (
            None if common is None else checkpoint.load(steps[common]).to_resume()
            for steps in saved
        )
        try:
            return train_batched(recipe, seeds, folders, states)
        except NotBatched as reason:
            why = str(reason)
    tell(f"the seeds of {recipe.name} are trained one after the other: {why}.")
    return train_in_turn(recipe, seeds, folders)


def train_in_turn(recipe: Recipe, seeds: Sequence[int], folders: Sequence[Path]) -> list[Result]:
    """One seed after the other, each exactly as alone. Those that are finished are left alone."""
    results: list[Result] = []
    with_replay = not getattr(recipe.topology, "loads_replay", False)
    for number, (seed, folder) in enumerate(zip(seeds, folders, strict=True), start=1):
        if is_finished(folder, recipe):
            continue
        tell(f"seed {seed}, {number} of {len(seeds)}")
        state = None
        if has_checkpoint(folder):
            state = checkpoint.load(folder, with_replay=with_replay).to_resume()
        else:
            clear(folder)
        results.append(recipe.topology.run(replace(recipe, seed=seed), folder, state))
        if not results[-1].finished:
            break
    return results


def saved_steps(folder: Path) -> dict[int, Path]:
    """The checkpoints of a seed, by their vec steps."""
    return checkpoint.steps(folder) if has_checkpoint(folder) else {}


def newest_step(folder: Path) -> int:
    return max(saved_steps(folder), default=0)


def is_finished(folder: Path, recipe: Recipe) -> bool:
    """Are all vec steps made, and was the last evaluation not cut?"""
    saved = saved_steps(folder)
    last = max(saved, default=0)
    if last < recipe.total_vec_steps:
        return False
    try:
        return not checkpoint.plain_entry(saved[last], "evaluation_owed")
    except UserError:  # damaged: whoever goes on with it says so
        return False


def tell(line: str) -> None:
    print(f"fleetfoot: {line}", file=sys.stderr)
