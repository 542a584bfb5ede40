"""Run folders: where a new one goes, what one holds, and who may write to it.

A run folder holds `recipe.json`, `spec.json` (what the policy sees and does), `metrics.jsonl`, `tensorboard/`,
`checkpoints/` and `videos/`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from fleetfoot.config import dumps, from_json
from fleetfoot.data import Continuous, Discrete, EnvSpec
from fleetfoot.errors import UserError, writing
from fleetfoot.recipe import Recipe

try:
    import fcntl
except ImportError:  # Windows: two processes in one run folder go unnoticed there
    fcntl = None  # type: ignore[assignment]

# What may change when a run is resumed: nothing here changes what the numbers in its checkpoint mean.
RESUMABLE = (
    "total_vec_steps",
    "log",
    "checkpoint",
    "evaluation",
    "device",
    "threads",
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
    name = f"{recipe.name.replace('/', '-')}-seed{recipe.seed}-{time.strftime('%Y%m%d-%H%M%S')}"
    places = (Path("runs") / (name if k == 1 else f"{name}-{k}") for k in range(1, 1000))
    return next(place for place in places if not place.exists())


def run_of(path: Path | str) -> Path:
    """The run that a folder is, or that one of its checkpoints belongs to."""
    place = Path(path)
    inside = (place / "state.json").is_file() and place.resolve().parent.name == "checkpoints"
    return place.resolve().parent.parent if inside else place


def check_changes(stored: Recipe, recipe: Recipe) -> None:
    """UserError where `recipe` differs from the stored one in what must stay."""
    fixed = [path for path in differences(stored, recipe) if not may_change(path)]
    if fixed:
        raise UserError(
            f"{fixed[0]} cannot change when a run is resumed (the checkpoint was made with "
            f"{look_up(stored, fixed[0])}); train a new run instead."
        )


def may_change(path: str) -> bool:
    names = path.split(".")
    if names[0] in RESUMABLE or path.startswith(RESUMABLE_INSIDE):
        return True
    return any(name.endswith(RESUMABLE_ENDINGS) for name in names)


def is_run(folder: Path) -> bool:
    return (folder / "recipe.json").is_file()


def seed_folders(folder: Path | str) -> list[Path]:
    """The runs of several seeds, in the order of their seeds; none in the folder of a single run."""
    return sorted(_inside(folder), key=lambda path: read_recipe(path).seed)


def has_checkpoint(folder: Path) -> bool:
    return (folder / "checkpoints" / "last.json").is_file()


def read_recipe(folder: Path | str) -> Recipe:
    """The recipe a run was started with."""
    path = run_of(folder) / "recipe.json"
    if not path.is_file():
        seeds = _inside(folder)
        inside = f"; it holds the runs of several seeds, such as {seeds[0]}" if seeds else ""
        raise UserError(f"{folder} is not a run folder: it has no recipe.json{inside}.")
    load_own_parts()
    try:
        recipe = from_json(json.loads(path.read_text()))
    except UserError as error:  # a name that this version does not know
        raise UserError(f"{path}: {error}") from error
    except (OSError, ValueError, TypeError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{path} cannot be read as a recipe: {reason}.") from error
    if not isinstance(recipe, Recipe):
        raise UserError(f"{path} holds no recipe.")
    return recipe


def _inside(folder: Path | str) -> list[Path]:
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
    _write(folder / "recipe.json", dumps(recipe))


def write_spec(folder: Path, spec: EnvSpec) -> None:
    """What the policy of a run sees and does, so that it can be loaded without the simulator."""
    fields = {f.name: getattr(spec, f.name) for f in dataclasses.fields(spec)}
    kind, size = type(spec.action).__name__, list(vars(spec.action).values())
    fields["action"] = [kind, *size]
    _write(folder / "spec.json", json.dumps(fields, indent=2, default=str) + "\n")


def read_spec(folder: Path | str) -> EnvSpec | None:
    """None where the run was begun by a version that did not store it."""
    path = run_of(folder) / "spec.json"
    if not path.exists():
        return None
    try:
        stored: dict[str, Any] = from_json(json.loads(path.read_text()))
        kind, size = stored["action"]
        stored["action"] = {"Continuous": Continuous, "Discrete": Discrete}[kind](size)
        stored["device"] = torch.device(stored["device"])
        dtypes = {str(dtype): dtype for dtype in (torch.uint8, torch.float32)}
        for name in ("obs_dtype", "critic_dtype"):
            stored[name] = dtypes[stored[name]]
        return EnvSpec(**stored)
    except (OSError, KeyError, TypeError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{path} cannot be read: {reason}.") from error


def _write(path: Path, text: str) -> None:
    """Write the whole file, or leave it as it was."""
    hidden = path.with_name(f".{path.name}.partial")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        hidden.write_text(text)
        os.replace(hidden, path)


@contextlib.contextmanager
def new_run(folder: Path, recipe: Recipe) -> Iterator[None]:
    """Make the folder of a run and lock it. If the run fails before it has learned anything, no folder is left."""
    with writing(folder):
        is_new = not folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
    try:
        with folder_lock(folder):
            write_recipe(folder, recipe)
            yield
    except UserError:
        if is_new and not has_checkpoint(folder) and not _has_content(folder / "metrics.jsonl"):
            shutil.rmtree(folder, ignore_errors=True)
        raise


@contextlib.contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Keep a second process out of the folder. The lock is released when the process ends, however it ends."""
    if fcntl is None:
        yield
        return
    with contextlib.ExitStack() as stack:
        with writing(folder):
            file = stack.enter_context((folder / ".lock").open("w"))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(f"another process is training in {folder}.") from None
        yield


def _has_content(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0


def clear(folder: Path) -> None:
    """Remove what a run wrote before its first checkpoint."""
    with writing(folder):
        for name in ("metrics.jsonl", "tensorboard", "checkpoints", "videos"):
            path = folder / name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
