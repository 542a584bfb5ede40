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
from typing import Any

from fleetfoot import checkpoint
from fleetfoot.errors import UserError, writing
from fleetfoot.recipe import Recipe, Result
from fleetfoot.run.folder import beyond, clear, has_checkpoint, write_recipe
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
    left = [pair for pair in zip(seeds, folders, strict=True) if not is_finished(pair[1], recipe)]
    seeds, folders = [seed for seed, _ in left], [folder for _, folder in left]
    if len(seeds) < 2:
        return train_in_turn(recipe, seeds, folders)
    saved = [saved_steps(folder) for folder in folders]
    common = max(set.intersection(*map(set, saved)), default=None)
    why = why_not_batched(recipe) or _why_apart(saved, common)
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
    """One seed after the other, each exactly as alone."""
    results: list[Result] = []
    with_replay = not getattr(recipe.topology, "loads_replay", False)
    for number, (seed, folder) in enumerate(zip(seeds, folders, strict=True), start=1):
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


def _why_apart(saved: Sequence[dict[int, Path]], common: int | None) -> str | None:
    """Why seeds with these checkpoints do not go on together from `common`; None: they do."""
    if common is None:
        return "they have no checkpoints of the same vec step" if any(saved) else None
    # A kill leaves some of them one save of the batch ahead. Who is further was continued alone, and loses nothing.
    for steps in saved:
        ahead = [folder for step, folder in steps.items() if step > common]
        if len(ahead) > 1 or not all(checkpoint.plain_values(one).get("batched") for one in ahead):
            return "some of them are further than others"
    if len({_counts(steps[common]) for steps in saved}) > 1:
        return "they have not made as many updates, or do not hold as many rows in their replays"
    return None


def _counts(folder: Path) -> tuple[Any, ...]:
    """What is one number for all seeds that are trained together: of their updates, and of what they have stored."""
    state, replay = checkpoint.plain_values(folder), checkpoint.plain_values(folder, "replay")
    counts = [state.get(name) for name in ("updates", "owed", "world")]
    pace, ring = state.get("pace", {}), replay.get("ring", replay)
    stored = [ring.get(name) for name in ("size", "written", "filled")]
    return (*counts, *sorted(pace.items()), *stored)


def not_beyond(folders: Sequence[Path], total_vec_steps: int) -> list[Path]:
    """Those that have not gone further; the others stay as they are. UserError where all have gone further."""
    newest = {folder: max(saved_steps(folder), default=0) for folder in folders}
    if min(newest.values()) > total_vec_steps:
        raise beyond(folders[0].parent, min(newest.values()), total_vec_steps)
    for folder, step in newest.items():
        if step > total_vec_steps:
            tell(f"{folder.name} is at vec step {step} already, and stays as it is.")
    return [folder for folder in folders if newest[folder] <= total_vec_steps]


def is_finished(folder: Path, recipe: Recipe) -> bool:
    """Are all vec steps made, and was the last evaluation not cut?"""
    saved = saved_steps(folder)
    last = max(saved, default=0)
    if last < recipe.total_vec_steps:
        return False
    try:
        return not checkpoint.plain_values(saved[last]).get("evaluation_owed")
    except UserError:  # damaged: whoever goes on with it says so
        return False


def tell(line: str) -> None:
    print(f"fleetfoot: {line}", file=sys.stderr)
