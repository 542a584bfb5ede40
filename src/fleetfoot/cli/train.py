"""`fleetfoot train [RECIPE] [--field value ...]`. A recipe is a name, a file, a run folder or `module:recipe`."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fleetfoot import api, checkpoint, recipes
from fleetfoot.cli import dry_run
from fleetfoot.cli.form import parse_recipe
from fleetfoot.cli.main import INTERRUPTED, speaks
from fleetfoot.cli.run_folder import best_seed, command_line
from fleetfoot.cli.which_recipe import find_recipe, modules_of
from fleetfoot.config import to_json
from fleetfoot.envs.robot import RobotConfig
from fleetfoot.errors import UserError, one_line
from fleetfoot.extras import typed
from fleetfoot.log import curve, plot_text
from fleetfoot.recipe import Recipe, Result
from fleetfoot.run.folder import has_checkpoint, read_recipe, seed_folders
from fleetfoot.study import seeds
from fleetfoot.system import resolve_device


@dataclass(frozen=True, kw_only=True)
class Options:
    """What `fleetfoot train` takes besides the fields of the recipe."""

    folder: Path | None = None
    """Run folder; by default a new one under runs/."""
    dry_run: bool = False
    """Do not train; print the whole recipe, its parameters and memory, and what would be written where."""
    video: bool = True
    """Record a video of the best policy at the end."""
    seeds: int = 1
    """Train this many seeds, starting at --seed, each in its own run folder: as one batched computation where the
    recipe allows it, otherwise one after the other, or in --jobs processes."""
    jobs: int = 1
    """Number of processes for seeds that cannot be batched; 0: as many as cores and memory allow."""


def run(args: list[str], imports: list[str]) -> int:
    name = recipes.DEFAULT
    if args and not args[0].startswith("-"):
        name, *args = args
    start = find_recipe(name)
    check_either(args, "--replay.capacity", "--replay.capacity-gib")
    fixed = start.derived_fields()
    recipe, options = parse_recipe(start, Options, args, f"fleetfoot train {name}", fixed)
    needed = modules_of(name, recipe, imports)
    if options.seeds < 1:
        raise UserError(f"--seeds must be at least 1, not {options.seeds}.")
    check_jobs(options.jobs, options.seeds != 1)
    if options.dry_run:
        print(dry_run.describe(recipe, options.folder, options.seeds, options.video))
        return 0
    if start.device == "cuda" and isinstance(recipe.env, RobotConfig):
        say_if_slow(name, recipe)
    if options.seeds > 1 and options.jobs != 1 and seeds.wants_processes(recipe):
        place, done = seeds.train_seeds(recipe, options.seeds, options.folder, options.jobs, needed)
        return finish_seeds(place, done, needed)
    if options.seeds > 1:
        results = api.train_seeds(recipe, options.seeds, options.folder)
        done = all(result.finished for result in results)
        return finish_seeds(results[0].folder.parent, done, needed)
    return finish(api.train(recipe, options.folder), options.video, needed)


def say_if_slow(name: str, recipe: Recipe) -> None:
    """Other simulators for GPUs begin with minutes of compilation; these robots just walk slowly."""
    if resolve_device(recipe.device).type == "cpu":
        print(
            f"fleetfoot: {name} is made for a GPU and slow on CPU cores; `fleetfoot list recipes` says which are not.",
            file=sys.stderr,
        )


def check_jobs(jobs: int, several: bool) -> None:
    if jobs < 0:
        raise UserError(f"--jobs must be 0 or more, not {jobs}.")
    if jobs != 1 and not several:
        raise UserError("--jobs is for several --seeds.")


def check_either(args: Sequence[str], one: str, other: str) -> None:
    """UserError where both of two flags that state the same thing are given."""
    given = {word.split("=")[0].replace("_", "-") for word in args}
    if {one, other} <= given:
        raise UserError(f"{one} and {other} set the same thing; give only one.")


def finish(result: Result, video: bool, imports: Sequence[str]) -> int:
    """Print the result, where it is stored and how to continue."""
    if not speaks():
        return 0
    folder = result.folder
    film: Path | None = None
    can_film = True
    if video and result.finished:
        print("filming the best policy (Ctrl-C skips it) ...", flush=True)
        try:
            film = api.record_run(folder)
        except KeyboardInterrupt:
            print("fleetfoot: no video: interrupted", file=sys.stderr)
        except Exception as error:  # the training was good, whatever fails now
            print(f"fleetfoot: no video: {one_line(error)}", file=sys.stderr)
            can_film = False
    if film is not None:
        recipe = read_recipe(folder)
        recipe.log.add_film(folder, film, result.counters, to_json(recipe))
    print(report(result, film, imports, can_film=can_film))
    return 0 if result.finished else INTERRUPTED


def finish_seeds(place: Path, done: bool, imports: Sequence[str]) -> int:
    """Print the result of each seed, and of all together."""
    returns = []
    for folder in seed_folders(place):
        if not has_checkpoint(folder):
            print(f"{folder}   not begun")
            continue
        state = checkpoint.load(folder, with_replay=False).state
        if math.isnan(state["last_return"]):
            print(f"{folder}   not evaluated yet")
            continue
        print(f"{folder}   last {state['last_return']:,.1f}, best {state['best_return']:,.1f}")
        returns.append(state["last_return"])
    if len(returns) > 1:
        print(f"mean of {len(returns)} seeds: last {sum(returns) / len(returns):,.1f}")
    if done:
        print("finished; what to run next:")
        print("  " + command_line("compare", place, imports=imports))
        if best := best_seed(place):
            print("  " + command_line("evaluate", best, imports=imports))
        return 0
    print("interrupted and saved; to continue:")
    print("  " + command_line("resume", place, imports=imports))
    return INTERRUPTED


def report(
    result: Result, film: Path | None, imports: Sequence[str] = (), *, can_film: bool = True
) -> str:
    folder = result.folder
    lines = []
    if points := curve(folder) if (folder / "metrics.jsonl").exists() else []:
        lines += ["", plot_text(points), ""]
    if not math.isnan(result.last_return):
        lines.append(f"return       last {result.last_return:,.1f}, best {result.best_return:,.1f}")
    lines.append(f"checkpoint   {folder / 'checkpoints'}")
    events = folder / "tensorboard"
    if events.is_dir():
        lines.append(f"TensorBoard  {events}")
    if film is not None:
        lines.append(f"video        {film}")
    more = ["--total-vec-steps", str(2 * result.counters.vec_steps)] if result.finished else []
    lines += [
        "",
        "finished; what to run next:" if result.finished else "interrupted and saved; to continue:",
        "  " + command_line("resume", folder, *more, imports=imports),
        "  " + command_line("evaluate", folder, imports=imports),
    ]
    if can_film:
        lines.append("  " + command_line("record", folder, imports=imports))
    if events.is_dir():
        lines.append("  " + typed("tensorboard", "--logdir", folder))
    return "\n".join(lines)
