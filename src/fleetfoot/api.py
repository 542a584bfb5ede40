"""The library from Python: train, resume, load, evaluate, record. The command line calls these and nothing else."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from torch import nn

from fleetfoot import checkpoint, record
from fleetfoot.data import EnvSpec
from fleetfoot.envs.vec_env import VecEnv
from fleetfoot.errors import UserError
from fleetfoot.evaluate import Evaluation, Evaluator
from fleetfoot.policy import TrainedPolicy
from fleetfoot.recipe import Recipe, Result
from fleetfoot.run.folder import (
    check_changes,
    clear,
    differences,
    folder_lock,
    has_checkpoint,
    may_change,
    new_folder,
    new_run,
    read_recipe,
    read_spec,
    remove_if_empty,
    run_of,
    seed_folders,
    write_recipe,
)
from fleetfoot.run.ranks import Ranks, joined
from fleetfoot.system import resolve_device
from fleetfoot.topologies.multi_seed import loop as seeds_as_one

Which: TypeAlias = Literal["best", "last"]


class LoadedPolicy(NamedTuple):
    """A trained policy, and what it sees and does."""

    policy: TrainedPolicy
    spec: EnvSpec


def train(recipe: Recipe, folder: Path | str | None = None) -> Result:
    """Train from the start. Without a folder, a new one under `runs/` is called after the recipe, seed and time."""
    with joined() as ranks, contextlib.ExitStack() as stack:
        with ranks.raise_together():
            _check(recipe, ranks)
            place = Path()
            if ranks.first:
                place = new_folder(recipe, folder)
                stack.enter_context(new_run(place, recipe))
        return recipe.topology.run(recipe, place, None)


def train_seeds(recipe: Recipe, count: int, folder: Path | str | None = None) -> list[Result]:
    """Train `count` seeds from `recipe.seed` on as one batched computation; each is an ordinary run in a folder of its
    own, `seed-K` inside `folder`."""
    if count < 2:
        raise UserError(f"seeds must be at least 2, not {count}.")
    place = new_folder(recipe, folder)
    seeds = range(recipe.seed, recipe.seed + count)
    folders = [place / f"seed-{seed}" for seed in seeds]
    with joined() as ranks, contextlib.ExitStack() as stack:
        _check_seeds(recipe, ranks)
        if not place.exists():
            stack.callback(remove_if_empty, place)
        for seed, seed_folder in zip(seeds, folders, strict=True):
            stack.enter_context(new_run(seed_folder, dataclasses.replace(recipe, seed=seed)))
        return seeds_as_one.train_seeds(recipe, seeds, folders)


def resume_seeds(folder: Path | str, *, restart: bool = False, **changes: Any) -> list[Result]:
    """`resume` for the seeds in the folder of `train_seeds`: they go on as one."""
    stored = read_recipe(_seeds_in(folder)[0])
    return resume_seeds_as(folder, _changed(stored, changes), restart=restart)


def resume_seeds_as(folder: Path | str, recipe: Recipe, *, restart: bool = False) -> list[Result]:
    """`resume_as`, likewise; `recipe` is that of the first seed."""
    folders = _seeds_in(folder)
    stored = [read_recipe(seed_folder) for seed_folder in folders]
    check_changes(stored[0], recipe)
    for seed_folder, other in zip(folders, stored, strict=True):
        for path in differences(dataclasses.replace(stored[0], seed=other.seed), other):
            if not may_change(path):
                raise UserError(
                    f"{seed_folder} has another {path} than {folders[0]}, so they cannot be resumed as one; "
                    "resume each by itself."
                )
    with joined() as ranks, contextlib.ExitStack() as stack:
        _check_seeds(recipe, ranks)
        for seed_folder in folders:
            stack.enter_context(folder_lock(seed_folder))
        begun = _begun(Path(folder), folders, restart)
        states = _seeds_states(folders, recipe) if begun else None
        for seed_folder, other in zip(folders, stored, strict=True):
            if not begun:
                clear(seed_folder)
            write_recipe(seed_folder, dataclasses.replace(recipe, seed=other.seed))
        seeds = [other.seed for other in stored]
        return seeds_as_one.train_seeds(recipe, seeds, folders, states)


def resume(folder: Path | str, *, restart: bool = False, **changes: Any) -> Result:
    """Go on from the last checkpoint, with `changes` to the fields in `RESUMABLE`.

    `restart` trains from the start a run that was stopped before its first checkpoint.
    """
    return resume_as(folder, _changed(read_recipe(folder), changes), restart=restart)


def _changed(stored: Recipe, changes: dict[str, Any]) -> Recipe:
    unknown = [name for name in changes if name not in {f.name for f in dataclasses.fields(stored)}]
    if unknown:
        raise UserError(f"a recipe has no field {unknown[0]!r}.")
    return dataclasses.replace(stored, **changes)


def resume_as(folder: Path | str, recipe: Recipe, *, restart: bool = False) -> Result:
    """`resume` with the whole recipe given; it may differ from the stored one in the fields in `RESUMABLE`."""
    place = run_of(folder)
    check_changes(read_recipe(folder), recipe)
    with joined() as ranks, contextlib.ExitStack() as stack:
        with ranks.raise_together():
            _check(recipe, ranks)
            if ranks.first:
                stack.enter_context(folder_lock(place))
            begun = _begun(place, [place], restart)
            state = _last_state(folder, recipe, ranks) if begun else None
        with ranks.raise_together():  # only now: no rank has found anything wrong
            if ranks.first:
                if not begun:
                    clear(place)
                write_recipe(place, recipe)
        return recipe.topology.run(recipe, place, state)


def _begun(place: Path, folders: list[Path], restart: bool) -> bool:
    """Is there a checkpoint in each of the folders? UserError where not, unless the run may `restart`."""
    begun = all(map(has_checkpoint, folders))
    if not (begun or restart):
        raise UserError(
            f"{place} was stopped before its first checkpoint; add --restart to train it from the start."
        )
    return begun


def _seeds_in(folder: Path | str) -> list[Path]:
    folders = seed_folders(folder)
    if not folders:
        raise UserError(
            f"{folder} holds no seeds that were trained as one: there is no seed-0 in it."
        )
    return folders


def _check_seeds(recipe: Recipe, ranks: Ranks) -> None:
    _check(recipe, ranks)
    if ranks.world > 1:
        raise UserError("several seeds as one run in one process: leave torchrun out.")
    seeds_as_one.check(recipe)


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
    _check_unfinished(run_of(folder), loaded.step, recipe)
    before = loaded.state.get("world", 1)
    if ranks.first and before != ranks.world:
        print(
            f"fleetfoot: {before} process{'es' * (before > 1)} made this checkpoint and {ranks.world} "
            f"go{'es' * (ranks.world == 1)} on: weights, optimisers, statistics and counters continue, "
            "episodes and replay begin anew.",
            file=sys.stderr,
        )
    return loaded.state


def _check_unfinished(folder: Path, step: int, recipe: Recipe) -> None:
    if step >= recipe.total_vec_steps:
        raise UserError(
            f"{folder} is finished after {step:,} vec steps; to go on, give --total-vec-steps a larger number."
        )


def _seeds_states(folders: list[Path], recipe: Recipe) -> Iterator[dict[str, Any]]:
    """The states of all seeds at the newest vec step of which every one has a checkpoint, one after the other: each may
    hold a large replay."""
    kept = [checkpoint.steps(own) for own in folders]
    together = set.intersection(*map(set, kept))
    if not together:
        newest = {max(each) for each in kept}
        raise UserError(
            f"the seeds in {folders[0].parent} were last saved after {min(newest):,} to {max(newest):,} vec steps, so "
            "they cannot go on as one; resume each by itself."
        )
    step = max(together)
    _check_unfinished(folders[0].parent, step, recipe)
    return (checkpoint.load(each[step]).state for each in kept)


def which_there_is(folder: Path | str, which: Which) -> Which:
    """`which`, or "last" where nothing has been evaluated and so none is the best."""
    return which if (Path(folder) / "checkpoints" / "best.json").exists() else "last"


def load_policy(folder: Path | str, which: Which = "best", device: str = "cpu") -> LoadedPolicy:
    """The policy of a run: the one with the best evaluation, or the last (also where nothing was evaluated).

    No simulator is needed, except for runs of a version that stored no spec.json: their environment is built once.
    """
    recipe = read_recipe(folder)
    spec = read_spec(folder)
    if spec is None:
        with _evaluation_env(recipe, seed=0) as env:
            spec = env.spec
    place = resolve_device(device)
    spec = dataclasses.replace(spec, num_envs=1, task_ids=spec.task_ids[:1], device=place)
    network = _policy(recipe, spec, Path(folder), which, device)
    return LoadedPolicy(TrainedPolicy(network, spec), spec)


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
    """Film the policy in real time as MP4 or GIF, by the ending of `path` (by default an MP4 in the run's `videos/`),
    and write four of its frames side by side to the PNG `strip`."""
    recipe = read_recipe(folder)
    target = run_of(folder) / "videos" / f"{which}.mp4" if path is None else Path(path)
    record.check_ending(target, *record.ENCODERS)
    if strip is not None:
        record.check_ending(Path(strip), ".png")
    chosen = recipe.seeds().evaluation if seed is None else seed
    with _evaluation_env(recipe, seed=chosen) as env:
        policy = _policy(recipe, env.spec, Path(folder), which, "cpu")
        frames: Any = record.film(policy, env, seconds)
        if strip is not None:
            frames = list(frames)
            record.write_strip(frames, Path(strip))
        return record.write_film(frames, record.frame_rate(env.spec), target)


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
def _evaluation_env(recipe: Recipe, seed: int) -> Iterator[VecEnv]:
    """One environment, on the CPU."""
    env = recipe.env.for_evaluation().build(1, seed, torch.device("cpu"))
    try:
        yield env
    finally:
        env.close()
