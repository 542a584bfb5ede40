"""`fleetfoot scale run RECIPE... --utd 0.5 1 2 4 --seeds 8 --folder STUDY`"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fleetfoot import recipes, study
from fleetfoot.cli.form import parse_recipe
from fleetfoot.cli.main import INTERRUPTED
from fleetfoot.cli.which_recipe import find_recipe
from fleetfoot.errors import UserError
from fleetfoot.extras import typed
from fleetfoot.recipe import Recipe
from fleetfoot.scale import grid
from fleetfoot.scale.table import read_table
from fleetfoot.study.folder import is_study
from fleetfoot.system import usable_cores

USAGE = """usage: fleetfoot scale run RECIPE... --utd 0.5 1 2 4 [--batch ...] [--lr ...] [--width ...] --folder STUDY
       fleetfoot scale run --folder STUDY

Train every combination, with several seeds each. You can stop or kill it at any time; the same command, or the second
form, continues. A grid with new values adds them to the study. fleetfoot scale run RECIPE --help shows every option."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What `fleetfoot scale run` takes besides the fields of the recipe."""

    utd: tuple[float, ...] = ()
    """Update-to-data ratios: updates per env step. 0.5: one update every two env steps, over all environments."""
    updates: tuple[float, ...] = ()
    """The same, as updates per vec step, which is easier to read with thousands of environments."""
    batch: tuple[int, ...] = ()
    """Batch sizes; by default the recipe's."""
    lr: tuple[float, ...] = ()
    """Learning rates of the critic; by default the recipe's. That of the policy changes by the same factor."""
    width: tuple[float, ...] = ()
    """Widths of the critic, as multiples of the recipe's."""
    fitted: bool = False
    """Take batch size and learning rate of each ratio from the laws of an earlier `fleetfoot scale fit
    STUDY`."""
    seeds: int = 8
    """Seeds of each configuration, from --seed on, trained as one batched computation where the recipe allows it."""
    folder: Path | None = None
    """The study: a new folder, or one to continue."""
    workers: int = 0
    """Configurations trained at the same time; 0: as many as the cores allow, and one on a GPU."""
    diagnose: bool = True
    """Measure overfitting and norms of the critic at each evaluation, if the agent supports it."""


def run(args: list[str], imports: list[str]) -> int:
    if args and args[0] in ("-h", "--help"):
        print(USAGE)
        return 0
    names: list[str] = []
    while args and not args[0].startswith("-"):
        names.append(args[0])
        args = args[1:]
    # Without a recipe the options are read all the same, beside those of any recipe, none of which may be given.
    parsed = [
        parse_recipe(
            find_recipe(name), Options, args, f"fleetfoot scale run {name}", fixed=("name",)
        )
        for name in names or [recipes.DEFAULT]
    ]
    options: Options = parsed[0][1]
    if options.folder is None:
        raise UserError("give the study a --folder.")
    if names:
        modules = [name.partition(":")[0] for name in names if ":" in name]
        made = opened([recipe for recipe, _ in parsed], options, [*imports, *modules])
    elif is_study(options.folder):
        made = study.read_study(options.folder)
    else:
        raise UserError(
            f"which recipe? fleetfoot scale run RECIPE... --utd 0.5 1 2 4 --folder {options.folder}"
        )
    print(
        f"{len(made.points)} configurations, {made.seeds} seed{'s' * (made.seeds != 1)} each, in {made.folder}"
    )
    if not study.run_study(made, options.workers or None):
        again = typed("fleetfoot", "scale", "run", "--folder", made.folder)
        print(f"interrupted and saved; to continue:\n  {again}")
        return INTERRUPTED
    table = read_table(made.folder).write(made.folder / "evaluations.csv")
    fit = typed("fleetfoot", "scale", "fit", made.folder)
    print(f"finished, all evaluations in {table}; to fit the laws:\n  {fit}")
    return 0


def opened(chosen: Sequence[Recipe], options: Options, imports: Sequence[str]) -> study.Study:
    """The study of a grid."""
    assert options.folder is not None
    if options.seeds < 2:
        raise UserError(
            f"--seeds must be at least 2, not {options.seeds}: one seed says nothing about its spread; 8 are usual."
        )
    if options.utd and options.updates:
        raise UserError("--utd and --updates set the same thing; give only one.")
    if not (options.utd or options.updates):
        raise UserError("which update-to-data ratios? Give --utd 0.5 1 2 4, for instance.")
    grid.check_recipes(chosen)
    points: dict[str, Recipe] = {}
    for recipe in chosen:
        utd = options.utd or tuple(value / recipe.num_envs for value in options.updates)
        if options.fitted:
            settings = along_the_laws(recipe, utd, options)
        else:
            settings = grid.product_of(utd, options.batch, options.lr, options.width)
        points |= grid.points([recipe], settings)
    cpu = all(recipe.torch_device().type == "cpu" for recipe in chosen)
    threads = max(1, usable_cores() // len(points)) if cpu else 0
    if cpu and is_study(options.folder):  # as many as at the start, for the same bits
        threads = next(iter(study.read_study(options.folder).points.values())).threads
    points = {
        name: grid.prepared(recipe, diagnose=options.diagnose, threads=threads)
        for name, recipe in points.items()
    }
    for recipe in points.values():
        recipe.check()
    return study.open_study(options.folder, points, options.seeds, imports)


def along_the_laws(recipe: Recipe, utd: Sequence[float], options: Options) -> list[grid.Setting]:
    from fleetfoot.scale.suggest import Laws

    assert options.folder is not None
    if options.batch or options.lr:
        raise UserError(
            "--fitted chooses batch size and learning rate; leave out --batch and --lr."
        )
    laws = Laws.read(options.folder)
    settings = []
    for ratio in utd:
        batch, lr = laws.setting(recipe, ratio)
        settings += grid.product_of((ratio,), (batch,), (lr,) if lr else (), options.width)
    return settings
