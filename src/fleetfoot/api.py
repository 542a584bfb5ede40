"""The library from Python: train, resume, load, evaluate, record. The command line calls these and nothing else.

More than 300 lines: all that a program may call is on one page.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import torch
from torch import nn

from fleetfoot import checkpoint, record
from fleetfoot.data import EnvSpec
from fleetfoot.envs.vec_env import EnvConfig, VecEnv
from fleetfoot.errors import UserError, one_line
from fleetfoot.evaluate import Evaluation, Evaluator
from fleetfoot.guard import build_env
from fleetfoot.policy import TrainedPolicy
from fleetfoot.recipe import Recipe, Result
from fleetfoot.run.folder import (
    beyond,
    check_changes,
    check_sealed,
    clear,
    differences,
    folder_lock,
    has_checkpoint,
    is_checkpoint,
    learned_anything,
    may_change,
    new_folder,
    new_run,
    read_recipe,
    read_spec,
    run_of,
    seed_folders,
    write_recipe,
)
from fleetfoot.run.loading import buildable, check_finite, check_same_task
from fleetfoot.run.provenance import recorded
from fleetfoot.run.ranks import Ranks, process_group
from fleetfoot.system import resolve_device
from fleetfoot.topologies.multi_seed import seeds as multi_seed

Which: TypeAlias = Literal["best", "last"]


class LoadedPolicy(NamedTuple):
    """A trained policy, and what it sees and does."""

    policy: TrainedPolicy
    spec: EnvSpec


def train(recipe: Recipe, folder: Path | str | None = None) -> Result:
    """Train from the start. Without a folder, a new one under `runs/` is called after the recipe, seed and time."""
    with process_group() as ranks, contextlib.ExitStack() as stack:
        with ranks.raise_together():
            _check(recipe, ranks)
            place = Path()
            if ranks.first:
                place = new_folder(recipe, folder)
                stack.enter_context(new_run(place, recipe))
                stack.enter_context(recorded(place))
        return recipe.topology.run(recipe, place, None)


def train_seeds(recipe: Recipe, count: int, folder: Path | str | None = None) -> list[Result]:
    """Train `count` seeds from `recipe.seed` on; each is an ordinary run in a folder of its own, `seed-K` inside
    `folder`. They learn as one batched computation where the recipe allows it, and one after the other where not."""
    if count < 2:
        raise UserError(f"seeds must be at least 2, not {count}.")
    seeds = range(recipe.seed, recipe.seed + count)
    with process_group() as ranks, contextlib.ExitStack() as stack:
        _check_seeds(recipe, ranks)
        place = new_folder(recipe, folder)
        is_new = not place.exists()
        folders = multi_seed.make_folders(place, recipe, seeds)
        for seed_folder in folders:
            stack.enter_context(folder_lock(seed_folder))
        stack.enter_context(recorded(*folders))
        try:
            return multi_seed.train(recipe, seeds, folders)
        except UserError:
            if not any(learned_anything(seed_folder) for seed_folder in folders):
                shutil.rmtree(place, ignore_errors=True)
                if not is_new:
                    place.mkdir()
            raise


def resume_seeds(
    folder: Path | str, *, restart: bool = False, delete_checkpoints: bool = False, **changes: Any
) -> list[Result]:
    """`resume` for the seeds in the folder of `train_seeds`: continues those that are not finished."""
    recipe = _changed(read_recipe(_seeds_in(folder)[0]), changes)
    return resume_seeds_as(folder, recipe, restart=restart, delete_checkpoints=delete_checkpoints)


def resume_seeds_as(
    folder: Path | str, recipe: Recipe, *, restart: bool = False, delete_checkpoints: bool = False
) -> list[Result]:
    """`resume_as`, likewise; `recipe` is that of the first seed."""
    folders = _seeds_in(folder)
    stored = [read_recipe(seed_folder) for seed_folder in folders]
    check_changes(stored[0], recipe)
    for seed_folder, other in zip(folders, stored, strict=True):
        for path in differences(dataclasses.replace(stored[0], seed=other.seed), other):
            if not may_change(path):
                raise UserError(
                    f"{seed_folder} has another {path} than {folders[0]}, so they cannot be resumed together; "
                    "resume each by itself."
                )
    with process_group() as ranks, contextlib.ExitStack() as stack:
        _check_seeds(recipe, ranks)
        for seed_folder in folders:
            stack.enter_context(folder_lock(seed_folder))
        begun = [has_checkpoint(seed_folder) for seed_folder in folders]
        for seed_folder, has_begun, own in zip(folders, begun, stored, strict=True):
            if has_begun:
                check_sealed(seed_folder, own)
            else:
                _check_restart(seed_folder, restart or any(begun), delete_checkpoints)
        going_on = multi_seed.not_beyond(folders, recipe.total_vec_steps)
        left = [one for one in going_on if not multi_seed.is_finished(one, recipe)]
        if not left:
            raise _finished(Path(folder), recipe.total_vec_steps)
        seeds = [other.seed for one, other in zip(folders, stored, strict=True) if one in going_on]
        for seed, seed_folder in zip(seeds, going_on, strict=True):
            if not has_checkpoint(seed_folder):
                clear(seed_folder)
            write_recipe(seed_folder, dataclasses.replace(recipe, seed=seed))
        stack.enter_context(recorded(*left))
        return multi_seed.train(recipe, seeds, going_on)


def resume(
    folder: Path | str, *, restart: bool = False, delete_checkpoints: bool = False, **changes: Any
) -> Result:
    """Go on from the last checkpoint, with `changes` to the fields in `RESUMABLE`.

    `restart` trains from the start a run that was stopped before its first checkpoint; `delete_checkpoints` allows that
    also where last.json is lost and whole checkpoints are there.
    """
    recipe = _changed(read_recipe(folder), changes)
    return resume_as(folder, recipe, restart=restart, delete_checkpoints=delete_checkpoints)


def _changed(stored: Recipe, changes: dict[str, Any]) -> Recipe:
    unknown = [name for name in changes if name not in {f.name for f in dataclasses.fields(stored)}]
    if unknown:
        raise UserError(f"a recipe has no field {unknown[0]!r}.")
    return dataclasses.replace(stored, **changes)


def resume_as(
    folder: Path | str, recipe: Recipe, *, restart: bool = False, delete_checkpoints: bool = False
) -> Result:
    """`resume` with the whole recipe given; it may differ from the stored one in the fields in `RESUMABLE`."""
    place = run_of(folder)
    stored = read_recipe(folder)
    check_changes(stored, recipe)
    with process_group() as ranks, contextlib.ExitStack() as stack:
        with ranks.raise_together():
            _check(recipe, ranks)
            if ranks.first:
                stack.enter_context(folder_lock(place))
            begun = has_checkpoint(place) or is_checkpoint(folder)
            if not begun:
                _check_restart(place, restart, delete_checkpoints)
            else:
                check_sealed(folder, stored)
            state = _last_state(folder, recipe, ranks) if begun else None
        with ranks.raise_together():  # only now: no rank has found anything wrong
            if ranks.first:
                if not begun:
                    clear(place)
                write_recipe(place, recipe)
                stack.enter_context(recorded(place))
        return recipe.topology.run(recipe, place, state)


def _seeds_in(folder: Path | str) -> list[Path]:
    folders = seed_folders(folder)
    if not folders:
        raise UserError(f"{folder} holds no seeds: there is no seed-0 in it.")
    return folders


def _check_restart(folder: Path, restart: bool, delete_checkpoints: bool) -> None:
    """UserError unless a run without a last.json may be trained from the start."""
    whole = checkpoint.whole_beside(folder / "checkpoints")
    if whole is not None and not (restart and delete_checkpoints):
        delete = "; --restart deletes it only together with --delete-checkpoints" if restart else ""
        raise UserError(
            f"{folder} has no last.json, but {whole} is complete: fleetfoot resume {whole} continues from it{delete}."
        )
    if not restart:
        raise UserError(
            f"{folder} was stopped before its first checkpoint; add --restart to train it from the start."
        )


def _finished(folder: Path, step: int) -> UserError:
    return UserError(
        f"{folder} is finished after {step:,} vec steps; to continue, give a larger --total-vec-steps."
    )


def _check_seeds(recipe: Recipe, ranks: Ranks) -> None:
    _check(recipe, ranks)
    if ranks.world > 1:
        raise UserError("several seeds are trained in one process: leave out torchrun, or --seeds.")


def _check(recipe: Recipe, ranks: Ranks) -> None:
    if not isinstance(recipe, Recipe):
        raise UserError(
            f"a recipe is needed, not {recipe!r:.100}; recipes.get gives one by its name."
        )
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
    if loaded.step > recipe.total_vec_steps:
        raise beyond(run_of(folder), loaded.step, recipe.total_vec_steps)
    if loaded.step == recipe.total_vec_steps and not loaded.state.get("evaluation_owed"):
        raise _finished(run_of(folder), loaded.step)
    before = loaded.state.get("world", 1)
    if ranks.first and before != ranks.world:
        print(
            f"fleetfoot: this checkpoint was made with {before} process{'es' * (before > 1)} and is resumed with "
            f"{ranks.world}: weights, optimisers, statistics and counters continue, "
            "episodes and replay start from scratch.",
            file=sys.stderr,
        )
    return loaded.to_resume()


def which_there_is(folder: Path | str, which: Which) -> Which:
    """`which`, or "last" where nothing has been evaluated and so none is the best."""
    if which not in get_args(Which):
        raise UserError(f"which must be 'best' or 'last', not {which!r}.")
    return which if (Path(folder) / "checkpoints" / "best.json").exists() else "last"


def load_policy(folder: Path | str, which: Which = "best", device: str = "cpu") -> LoadedPolicy:
    """The policy of a run: the one with the best evaluation, or the last (also where nothing was evaluated). No
    simulator is needed."""
    recipe, spec = read_recipe(folder), read_spec(folder)
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
    env: EnvConfig | None = None,
) -> Evaluation:
    """Whole greedy episodes in environments of their own; the same seed gives the same episodes. `env`: another
    environment than that of the run, with the same observations and actions."""
    recipe = read_recipe(folder)
    chosen = recipe.seeds().evaluation if seed is None else seed
    cfg = dataclasses.replace(recipe.evaluation, episodes=episodes)
    place, wanted = resolve_device(device), recipe.env if env is None else env
    with buildable():
        evaluator = Evaluator(wanted, cfg, chosen, place, recipe.env_timeout)
    try:
        if env is not None:
            check_same_task(evaluator.env.spec, read_spec(folder))
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
    target = _film_of(Path(folder), which) if path is None else Path(path)
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


def _film_of(folder: Path, which: Which) -> Path:
    """In the run's videos/, after the checkpoint where one is named."""
    run = run_of(folder)
    return run / "videos" / f"{which if run == folder else folder.resolve().name}.mp4"


def _policy(recipe: Recipe, spec: EnvSpec, folder: Path, which: Which, device: str) -> nn.Module:
    which = which_there_is(folder, which)
    check_sealed(folder, recipe, which)
    loaded = checkpoint.load(folder, which=which, with_replay=False)
    with buildable():
        agent = recipe.build_agent(spec, resolve_device(device))
    # The policy alone: the rest of the agent's state is tied to the number of environments and the device of training.
    try:
        policy = loaded.state["agent"]["policy"]
        checkpoint.check_fits(policy, agent.policy.state_dict(), "policy")
        agent.policy.load_state_dict(policy)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise UserError(
            f"the checkpoint in {folder} does not fit its recipe.json: {one_line(error)}"
        ) from error
    try:
        check_finite(policy)
    except UserError as error:
        raise UserError(f"the policy of {loaded.folder} cannot be used: {error}.") from None
    return agent.policy.eval()


@contextlib.contextmanager
def _evaluation_env(recipe: Recipe, seed: int) -> Iterator[VecEnv]:
    """One environment, on the CPU."""
    with buildable():
        config, cpu = recipe.env.for_evaluation(), torch.device("cpu")
        env = build_env(config, 1, seed, cpu, recipe.env_timeout)
    try:
        yield env
    finally:
        env.close()
