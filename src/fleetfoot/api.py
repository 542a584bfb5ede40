"""The library from Python: train, resume, load, evaluate, record. The command line calls these and nothing else.

A run folder holds `recipe.json`, `metrics.jsonl`, `tensorboard/`, `checkpoints/` and `videos/`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from torch import nn

from fleetfoot import checkpoint, record
from fleetfoot.data import EnvSpec
from fleetfoot.envs.vec_env import VecEnv
from fleetfoot.evaluate import Evaluation, Evaluator
from fleetfoot.part import UserError, dumps, from_json
from fleetfoot.ranks import Ranks, joined
from fleetfoot.recipe import Recipe, Result, resolve_device
from fleetfoot.topologies import seeds as seeds_as_one

try:
    import fcntl
except ImportError:  # Windows: two processes in one run folder go unnoticed there
    fcntl = None  # type: ignore[assignment]

Which: TypeAlias = Literal["best", "last"]

# What may change when a run goes on: nothing here changes what the numbers in its checkpoint mean.
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
    "fleetfoot.topologies.split_on_ray",
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
    "fleetfoot.envs.mjlab",  # without mjlab too
    "fleetfoot.envs.isaac_lab",
)


class LoadedPolicy(NamedTuple):
    """A trained policy (Obs -> greedy action, in evaluation mode) and what it expects to see."""

    policy: nn.Module
    spec: EnvSpec


def train(recipe: Recipe, folder: Path | str | None = None) -> Result:
    """Train from the start. Without a folder, a new one under `runs/` is called after the recipe, seed and time."""
    with joined() as ranks, contextlib.ExitStack() as held:
        with ranks.agreeing():
            _check(recipe, ranks)
            place = new_folder(recipe, folder) if ranks.first else Path()
            made = not place.exists()
            if ranks.first:
                place.mkdir(parents=True, exist_ok=True)
                held.enter_context(_alone(place))
                _write_recipe(place, recipe)
        try:
            return recipe.topology.run(recipe, place, None)
        except UserError:
            # What was wrong showed before anything was learned: leave no empty run behind.
            if made and not has_checkpoint(place) and not _nonempty(place / "metrics.jsonl"):
                shutil.rmtree(place, ignore_errors=True)
            raise


def train_seeds(recipe: Recipe, count: int, folder: Path | str | None = None) -> list[Result]:
    """Train `count` seeds from `recipe.seed` on as one batched computation; each is an ordinary run in a folder of its
    own, `seed-K` inside `folder`."""
    if count < 2:
        raise UserError(f"seeds must be at least 2, not {count}.")
    place = new_folder(recipe, folder)
    made = not place.exists()
    seeds = range(recipe.seed, recipe.seed + count)
    with joined() as ranks, contextlib.ExitStack() as held:
        _check(recipe, ranks)
        if ranks.world > 1:
            raise UserError("several seeds as one run in one process: leave torchrun out.")
        seeds_as_one.check(recipe)
        folders = [place / f"seed-{seed}" for seed in seeds]
        for seed, own in zip(seeds, folders, strict=True):
            own.mkdir(parents=True)
            held.enter_context(_alone(own))
            _write_recipe(own, dataclasses.replace(recipe, seed=seed))
        try:
            return seeds_as_one.train_seeds(recipe, seeds, folders)
        except UserError:
            if made and not any(has_checkpoint(own) for own in folders):
                shutil.rmtree(place, ignore_errors=True)
            raise


def resume(folder: Path | str, *, restart: bool = False, **changes: Any) -> Result:
    """Go on from the last checkpoint, with `changes` to the fields in `RESUMABLE`.

    `restart` trains from the start a run that was stopped before its first checkpoint.
    """
    stored = read_recipe(folder)
    unknown = [name for name in changes if name not in {f.name for f in dataclasses.fields(stored)}]
    if unknown:
        raise UserError(f"a recipe has no field {unknown[0]!r}.")
    return resume_as(folder, dataclasses.replace(stored, **changes), restart=restart)


def resume_as(folder: Path | str, recipe: Recipe, *, restart: bool = False) -> Result:
    """`resume` with the whole recipe given; it may differ from the stored one in the fields in `RESUMABLE`."""
    place = run_of(folder)
    stored = read_recipe(folder)
    fixed = [path for path in differences(stored, recipe) if not _may_change(path)]
    if fixed:
        raise UserError(
            f"{fixed[0]} cannot change when a run goes on (the checkpoint was made with "
            f"{_look_up(stored, fixed[0])}); train a new run instead."
        )
    with joined() as ranks, contextlib.ExitStack() as held:
        with ranks.agreeing():
            _check(recipe, ranks)
            if ranks.first:
                held.enter_context(_alone(place))
            begun = has_checkpoint(place)
            if not (begun or restart):
                raise UserError(
                    f"{place} was stopped before its first checkpoint; add --restart to train it from the start."
                )
            state = _last_state(folder, recipe, ranks) if begun else None
        if ranks.first:
            if not begun:
                for leftover in ("metrics.jsonl", "tensorboard", "checkpoints", "videos"):
                    _remove(place / leftover)
            _write_recipe(place, recipe)
        return recipe.topology.run(recipe, place, state)


def _check(recipe: Recipe, ranks: Ranks) -> None:
    recipe.check()
    if ranks.world > 1 and not getattr(recipe.topology, "across_ranks", False):
        raise UserError(
            f"{type(recipe.topology).__name__} does not run across the processes of torchrun; "
            "start fleetfoot by itself, or choose --topology SynchronousConfig."
        )
    if recipe.evaluation.diagnose and not getattr(recipe.topology, "diagnoses", False):
        raise UserError(
            f"{type(recipe.topology).__name__} cannot diagnose; use --evaluation.no-diagnose, "
            "or choose --topology SynchronousConfig."
        )


def _last_state(folder: Path | str, recipe: Recipe, ranks: Ranks) -> dict[str, Any]:
    itself = getattr(recipe.topology, "loads_replay", False)
    loaded = checkpoint.load(folder, which="last", rank=ranks.rank, with_replay=not itself)
    if loaded.step >= recipe.total_vec_steps:
        raise UserError(
            f"{run_of(folder)} is finished after {loaded.step:,} vec steps; "
            "to go on, give --total-vec-steps a larger number."
        )
    before = loaded.state.get("world", 1)
    if ranks.first and before != ranks.world:
        print(
            f"fleetfoot: {before} process{'es' * (before > 1)} made this checkpoint and {ranks.world} "
            f"go{'es' * (ranks.world == 1)} on: weights, optimisers, statistics and counters continue, "
            "episodes and replay begin anew.",
            file=sys.stderr,
        )
    return loaded.state


def which_there_is(folder: Path | str, which: Which) -> Which:
    """`which`, or "last" where nothing has been evaluated and so none is the best."""
    return which if (Path(folder) / "checkpoints" / "best.json").exists() else "last"


def load_policy(folder: Path | str, which: Which = "best", device: str = "cpu") -> LoadedPolicy:
    """The policy of a run: the one with the best evaluation, or the last (also where nothing was evaluated)."""
    recipe = read_recipe(folder)
    with _evaluation_env(recipe, num_envs=1, seed=0, device=device) as env:
        return LoadedPolicy(_policy(recipe, env.spec, Path(folder), which, device), env.spec)


def evaluate_run(
    folder: Path | str,
    *,
    episodes: int = 20,
    which: Which = "best",
    seed: int | None = None,
    device: str = "auto",
) -> Evaluation:
    """Whole greedy episodes in environments of their own; the same seed gives the same episodes."""
    recipe = read_recipe(folder)
    chosen = recipe.seeds().evaluation if seed is None else seed
    cfg = dataclasses.replace(recipe.evaluation, episodes=episodes)
    evaluator = Evaluator(recipe.env, cfg, chosen, resolve_device(device))
    try:
        return evaluator(_policy(recipe, evaluator.env.spec, Path(folder), which, device))
    finally:
        evaluator.close()


def record_run(
    folder: Path | str,
    path: Path | str | None = None,
    *,
    seconds: float = 10.0,
    which: Which = "best",
    seed: int | None = None,
    strip: Path | str | None = None,
) -> Path:
    """Film the policy in real time as MP4 (by default in the run's `videos/`), and cut a 4-frame PNG `strip`."""
    place = run_of(folder)
    recipe = read_recipe(folder)
    chosen = recipe.seeds().evaluation if seed is None else seed
    with _evaluation_env(recipe, num_envs=1, seed=chosen, device="cpu") as env:
        policy = _policy(recipe, env.spec, Path(folder), which, "cpu")
        frames: Any = record.film(policy, env, seconds)
        if strip is not None:
            frames = list(frames)
            record.strip(frames, Path(strip))
        target = Path(path) if path is not None else place / "videos" / f"{which}.mp4"
        return record.write_mp4(frames, record.frame_rate(env.spec), target)


def new_folder(recipe: Recipe, folder: Path | str | None) -> Path:
    """Where a new run goes. An existing folder must be empty: nothing is ever overwritten."""
    if folder is not None:
        place = Path(folder)
        if place.exists() and (not place.is_dir() or any(place.iterdir())):
            go_on = f"; fleetfoot resume {place} goes on with it" if is_run(place) else ""
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


def _may_change(path: str) -> bool:
    names = path.split(".")
    if names[0] in RESUMABLE or path.startswith(RESUMABLE_INSIDE):
        return True
    return any(name.endswith(RESUMABLE_ENDINGS) for name in names)


def is_run(folder: Path) -> bool:
    return (folder / "recipe.json").is_file()


def has_checkpoint(folder: Path) -> bool:
    return (folder / "checkpoints" / "last.json").is_file()


def read_recipe(folder: Path | str) -> Recipe:
    """The recipe a run was started with."""
    path = run_of(folder) / "recipe.json"
    if not path.is_file():
        raise UserError(f"{folder} is no run folder: it has no recipe.json.")
    load_own_parts()
    try:
        recipe = from_json(json.loads(path.read_text()))
    except (OSError, ValueError, TypeError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{path} cannot be read as a recipe: {reason}.") from error
    if not isinstance(recipe, Recipe):
        raise UserError(f"{path} holds no recipe.")
    return recipe


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


def _look_up(value: Any, path: str) -> Any:
    for name in path.split("."):
        value = getattr(value, name)
    return value


def _policy(recipe: Recipe, spec: EnvSpec, folder: Path, which: Which, device: str) -> nn.Module:
    loaded = checkpoint.load(folder, which=which_there_is(folder, which), with_replay=False)
    agent = recipe.build_agent(spec, resolve_device(device))
    # The policy alone: the rest of the agent's state is tied to the number of environments and the device of training.
    try:
        agent.policy.load_state_dict(loaded.state["agent"]["policy"])
    except (KeyError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:300]
        raise UserError(
            f"the checkpoint in {folder} does not fit its recipe.json: {reason}"
        ) from error
    return agent.policy.eval()


@contextlib.contextmanager
def _evaluation_env(recipe: Recipe, num_envs: int, seed: int, device: str) -> Iterator[VecEnv]:
    env = recipe.env.for_evaluation().build(num_envs, seed, resolve_device(device))
    try:
        yield env
    finally:
        env.close()


def _write_recipe(folder: Path, recipe: Recipe) -> None:
    hidden = folder / ".recipe.json.partial"
    hidden.write_text(dumps(recipe))
    os.replace(hidden, folder / "recipe.json")


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep a second process out of the folder. The lock goes with the process that holds it, however it ends."""
    if fcntl is None:
        yield
        return
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(f"another process is training in {folder}.") from None
        yield


def _nonempty(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
