"""Run folders: where a new one goes, what one holds, and who may write to it.

A run folder holds `recipe.json`, `spec.json` (what the policy sees and does), `provenance.json`, `metrics.jsonl`,
`tensorboard/`, `checkpoints/` and `videos/`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from filelock import lock_descriptor

from fleetfoot.checkpoint import sealed_recipe
from fleetfoot.checkpoint.read import Which
from fleetfoot.config import check_types, from_json, to_json
from fleetfoot.data import Continuous, Discrete, EnvSpec
from fleetfoot.errors import UserError, one_line, writing
from fleetfoot.files import open_lock
from fleetfoot.recipe import Recipe
from fleetfoot.run.stored import from_stranger, read_stored, write_stored

# What may change when a run is resumed: nothing here changes what the numbers in its checkpoint mean.
RESUMABLE = (
    "total_vec_steps",
    "log",
    "checkpoint",
    "evaluation",
    "device",
    "threads",
    "env_timeout",
    "execution",
    "precision",
)
RESUMABLE_ENDINGS = (
    "_optim",
)  # learning rates and the like: what a user changes after a loss exploded

RESUMABLE_INSIDE = ("topology.ray.", "topology.placement")  # where a run is computed, not what

# The modules whose parts a stored recipe may name without an import by the user.
OWN_PARTS = (
    "fleetfoot.recipes",
    "fleetfoot.explore",
    "fleetfoot.topologies.pql.on_ray",
    "fleetfoot.nn.mlp",
    "fleetfoot.nn.pessimism",
    "fleetfoot.nn.simba",
    "fleetfoot.envs.mujoco",
    "fleetfoot.envs.robot",
    "fleetfoot.envs.gym",
    "fleetfoot.envs.tensor",
    "fleetfoot.envs.atari",  # without ale-py too: only building needs it
    "fleetfoot.envs.envpool",  # nor EnvPool for this
    "fleetfoot.envs.humanoid_bench",
    "fleetfoot.envs.playground",  # and this one without JAX
    "fleetfoot.envs.lab.mjlab",  # without mjlab too
    "fleetfoot.envs.lab.isaac_lab",
)


def new_folder(recipe: Recipe, folder: Path | str | None) -> Path:
    """Where a new run goes. An existing folder must be empty: nothing is ever overwritten."""
    if folder is not None:
        place = Path(folder)
        with writing(place):
            if place.is_file():
                raise UserError(f"{place} is a file; give another --folder.")
            if place.exists() and any(place.iterdir()):
                go_on = f"; fleetfoot resume {place} continues it" if is_run(place) else ""
                raise UserError(f"{place} exists and is not empty{go_on}; give another --folder.")
        return place
    plain = re.sub(r"[^\w.+-]+", "-", recipe.name)
    name = f"{plain}-seed{recipe.seed}-{time.strftime('%Y%m%d-%H%M%S')}"
    places = (Path("runs") / (name if k == 1 else f"{name}-{k}") for k in range(1, 1000))
    return next(place for place in places if not place.exists())


def run_of(path: Path | str) -> Path:
    """The run that a folder is, or that one of its checkpoints belongs to."""
    place = Path(path)
    if not (place / "state.json").is_file() or place.resolve().parent.name != "checkpoints":
        return place
    if not (place.parent.parent / "recipe.json").is_file():  # a link from elsewhere
        place = place.resolve()
    return place.parent.parent


def check_changes(stored: Recipe, recipe: Recipe) -> None:
    """UserError where `recipe` differs from the stored one in what must stay."""
    fixed = [path for path in differences(stored, recipe) if not may_change(path)]
    if fixed:
        then = look_up(stored, fixed[0])
        name = type(then).__name__ if dataclasses.is_dataclass(then) else then
        raise UserError(
            f"{fixed[0]} cannot change when a run is resumed (the checkpoint was made with {name}); "
            "train a new run instead."
        )


def may_change(path: str) -> bool:
    names = path.split(".")
    if names[0] in RESUMABLE or path.startswith(RESUMABLE_INSIDE):
        return True
    return any(name.endswith(RESUMABLE_ENDINGS) for name in names)


def is_run(folder: Path) -> bool:
    return os.path.isfile(folder / "recipe.json")  # False also where one may not look


def seed_folders(folder: Path | str) -> list[Path]:
    """The runs of several seeds, in the order of their seeds; none in the folder of a single run."""
    return sorted(seeds_inside(folder), key=lambda path: read_recipe(path).seed)


def has_checkpoint(folder: Path) -> bool:
    return (folder / "checkpoints" / "last.json").is_file()


def learned_anything(folder: Path) -> bool:
    """Would something be lost with this run?"""
    return has_checkpoint(folder) or _has_content(folder / "metrics.jsonl")


def beyond(folder: Path, step: int, total_vec_steps: int) -> UserError:
    return UserError(
        f"{folder} is at vec step {step:,} already; --total-vec-steps {total_vec_steps} is behind it."
    )


def is_checkpoint(folder: Path | str) -> bool:
    """Is this one checkpoint of a run?"""
    return run_of(folder) != Path(folder)


def read_recipe(folder: Path | str) -> Recipe:
    """The recipe a run was started with."""
    path = run_of(folder) / "recipe.json"
    if not os.path.lexists(path):
        seeds = seeds_inside(folder)
        inside = f"; it holds the runs of several seeds, such as {seeds[0]}" if seeds else ""
        raise UserError(f"{folder} is not a run folder: it has no recipe.json{inside}.")
    return from_stored(read_stored(path, "recipe"), path)


def from_stored(tree: Any, path: Path) -> Recipe:
    """A recipe from the JSON in the file `path`. It executes nothing, whoever wrote it."""
    load_own_parts()
    try:
        recipe = from_json(tree)
    except UserError as error:  # a name that this version does not know
        raise UserError(f"{path}: {error}") from error
    except Exception as error:  # the checks of a part may stumble over anything
        raise UserError(f"{path} cannot be read as a recipe: {one_line(error)}.") from error
    if not isinstance(recipe, Recipe):
        raise UserError(f"{path} holds no recipe.")
    found: Recipe = from_stranger(recipe)
    return found


def check_sealed(folder: Path | str, recipe: Recipe, which: Which = "last") -> None:
    """UserError where a checkpoint was made with another recipe than the stored one, in what must stay."""
    sealed = from_stored(sealed_recipe(folder, which=which), Path(folder))
    for path in differences(sealed, recipe):
        if not may_change(path):
            now, then = look_up(recipe, path), look_up(sealed, path)
            raise UserError(
                f"recipe.json of {run_of(folder)} is not that of its checkpoint: {path} is {now!r:.80}, and was "
                f"{then!r:.80} when the checkpoint was made."
            )


def seeds_inside(folder: Path | str) -> list[Path]:
    """The same by name, without a look into them."""
    return sorted(path for path in Path(folder).glob("seed-*") if is_run(path))


def load_own_parts() -> None:
    """Make every part of the library known by its name."""
    for module in OWN_PARTS:
        importlib.import_module(module)


def differences(old: Any, new: Any, path: str = "") -> Iterator[str]:
    """The dotted names of the fields in which two parts differ."""
    if not dataclasses.is_dataclass(old) or type(old) is not type(new):
        if old != new:
            yield path
        return
    for field in dataclasses.fields(old):
        name = f"{path}.{field.name}" if path else field.name
        yield from differences(getattr(old, field.name), getattr(new, field.name), name)


def look_up(value: Any, path: str) -> Any:
    for name in path.split("."):
        value = getattr(value, name)
    return value


def write_recipe(folder: Path, recipe: Recipe) -> None:
    write_stored(folder / "recipe.json", "recipe", to_json(recipe))


def write_spec(folder: Path, spec: EnvSpec) -> None:
    """What the policy of a run sees and does, so that it can be loaded without the simulator."""
    fields = {f.name: getattr(spec, f.name) for f in dataclasses.fields(spec)}
    del fields["symmetry"], fields["no_symmetry"]  # a matter of training
    kind, size = type(spec.action).__name__, list(vars(spec.action).values())
    fields["action"] = [kind, *size]
    write_stored(folder / "spec.json", "spec", json.loads(json.dumps(fields, default=str)))


def read_spec(folder: Path | str) -> EnvSpec:
    path = run_of(folder) / "spec.json"
    if not path.exists():
        raise UserError(
            f"{path.parent} has no spec.json: it was stopped before it began to train, or the file is lost."
        )
    try:
        stored: dict[str, Any] = from_json(read_stored(path, "spec"))
        kind, size = stored["action"]
        stored["action"] = {"Continuous": Continuous, "Discrete": Discrete}[kind](size)
        stored["device"] = torch.device(stored["device"])
        dtypes = {str(dtype): dtype for dtype in (torch.uint8, torch.float32)}
        for name in ("obs_dtype", "critic_dtype"):
            stored[name] = dtypes[stored[name]]
        spec = EnvSpec(**stored)
        check_types(spec)
        return spec
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{path} cannot be read: {one_line(error)}.") from error


@contextlib.contextmanager
def new_run(folder: Path, recipe: Recipe) -> Iterator[None]:
    """Make the folder of a run and lock it. If the run fails before it has learned anything, it leaves nothing."""
    with writing(folder):
        is_new = not folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
    with folder_lock(folder):  # only its owner removes anything
        try:
            write_recipe(folder, recipe)
            yield
        except UserError:
            if not learned_anything(folder):
                with contextlib.suppress(UserError):  # the first error counts
                    clear(folder, "recipe.json", "spec.json", "provenance.json", ".lock")
                if is_new:
                    with contextlib.suppress(OSError):  # without its lock it may be another's now
                        folder.rmdir()
            raise


@contextlib.contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Keep a second process out of the folder. The lock is released when the process ends, however it ends.

    filelock takes the lock, of a file that is opened here, because it would follow a link.
    """
    with contextlib.ExitStack() as stack:
        with writing(folder):
            file = stack.enter_context(open_lock(folder / ".lock"))
            if not lock_descriptor(file.fileno(), blocking=False):
                raise UserError(f"another process is training in {folder}.")
            for left in folder.glob(".*.partial*"):  # by a kill
                left.unlink()
        yield


def _has_content(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0


def clear(folder: Path, *more: str) -> None:
    """Remove what a run wrote before its first checkpoint, and the files `more`."""
    with writing(folder):
        for name in ("metrics.jsonl", "tensorboard", "checkpoints", "videos", *more):
            path = folder / name
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
