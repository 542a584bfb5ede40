"""`fleetfoot sweep RECIPE --over agent.tau=0.005,0.05 --over num_envs=64,256 --seeds 3 --folder STUDY`"""

from __future__ import annotations

import os
import shlex
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import tyro

from fleetfoot import study
from fleetfoot.cli.form import flags_of, parse, parse_recipe
from fleetfoot.cli.sweep_result import finish
from fleetfoot.cli.which_recipe import find_recipe, modules_of
from fleetfoot.config import to_json
from fleetfoot.errors import Notice, UserError
from fleetfoot.recipe import Recipe
from fleetfoot.run.folder import differences, from_stored
from fleetfoot.study import space
from fleetfoot.study.folder import Study, check_no_cluster, is_study
from fleetfoot.study.launch import Launcher, Locally, OnRay
from fleetfoot.study.runner import default_workers, workers_in_memory
from fleetfoot.study.search import Goal, Search
from fleetfoot.study.seeds import threads_of
from fleetfoot.study.table import write_table
from fleetfoot.system import usable_cores
from fleetfoot.topologies.multi_seed.loop import why_not_batched
from fleetfoot.topologies.ray.cluster import ClusterFields, cluster

USAGE = """usage: fleetfoot sweep RECIPE --over FIELD=VALUE,VALUE [--over ...] [--seeds 3] --folder STUDY
       fleetfoot sweep RECIPE --over FIELD=LOW..HIGH[:log] ... --search optuna --trials 50 --folder STUDY
       fleetfoot sweep --folder STUDY

Train every combination of values, or let Optuna choose, with several seeds each. You can stop or kill it at any time;
the same command, or the last form, continues. fleetfoot compare STUDY compares the results. fleetfoot sweep RECIPE
--help shows every option."""


@dataclass(frozen=True, kw_only=True)
class Where:
    """The options of both forms."""

    folder: Path | None = None
    """The study: a new folder, or one to continue."""
    jobs: int = 0
    """Processes at the same time; 0: as many as cores and memory allow, and one on a GPU."""
    ray: str = os.environ.get("RAY_ADDRESS", "")
    """Address of a Ray cluster (host:port, or auto) to train on, instead of this machine. By default RAY_ADDRESS."""


@dataclass(frozen=True, kw_only=True)
class GoOn(Where):
    """Continue a study."""

    trials: int = 0
    """Total trials of a search; 0: as many as before."""


@dataclass(frozen=True, kw_only=True)
class Options(Where):
    """What `fleetfoot sweep` takes besides the fields of the recipe."""

    over: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """FIELD=VALUE,VALUE,...; may be repeated. With --search optuna also a range, FIELD=LOW..HIGH or
    FIELD=LOW..HIGH:log. Quote values of several words: 'agent.critic_net.hidden=64 64,128 128'."""
    search: Literal["grid", "optuna"] = "grid"
    """grid: every combination; optuna: --trials trials, chosen and pruned by Optuna."""
    trials: int = 50
    """Total trials of a search."""
    metric: str = "eval/return"
    """The metric to compare by: the mean over seeds of its last value."""
    minimize: bool = False
    """Smaller values are better."""
    prune: bool = True
    """Let Optuna's median rule end trials that look bad."""
    seeds: int = 3
    """Seeds of each configuration, from --seed on, as one batched computation where the recipe allows it."""


@dataclass(frozen=True)
class Nothing:
    """No options besides the fields of a recipe."""


def run(args: list[str], imports: list[str]) -> int:
    if args and args[0] in ("-h", "--help"):
        print(USAGE)
        return 0
    if not args or args[0].startswith("-"):
        go_on: GoOn = parse(GoOn, args, "fleetfoot sweep")
        return train(stored(go_on), go_on)
    return train(*begun(args[0], args[1:], imports))


@dataclass(frozen=True)
class Made:
    """A study, and the recipe that it varies."""

    study: Study
    base: Recipe
    axes: Sequence[space.Axis]
    goal: Goal
    search: bool

    def point(self, settings: dict[str, str]) -> Recipe:
        words = [word for path, value in settings.items() for word in self.words(path, value)]
        fixed = self.base.derived_fields()
        recipe, _ = parse_recipe(self.base, Nothing, words, "fleetfoot sweep", fixed)
        recipe.check()
        return recipe  # type: ignore[no-any-return]

    def ends(self, which: Literal[0, -1]) -> dict[str, str]:
        """The first or the last value of every axis."""
        whole = self.whole()
        ends = {axis.path: (axis.low, axis.high)[which] for axis in self.axes if axis.is_range}
        texts = {path: f"{end:.0f}" if path in whole else repr(end) for path, end in ends.items()}
        return texts | {a.path: ordered(a.values)[which] for a in self.axes if not a.is_range}

    def words(self, path: str, value: str) -> list[str]:
        """A value as it would stand on the command line."""
        name = path.replace("_", "-")
        if dict(flags_of(self.base)).get(f"--{name}") is not bool:
            return [f"--{name}", *split(path, value)]
        if value.lower() not in ("true", "false"):
            raise UserError(f"--over {path} is true or false, not {value!r:.80}.")
        before, _, last = name.rpartition(".")
        last = last if value.lower() == "true" else f"no-{last}"
        return [f"--{before}.{last}" if before else f"--{last}"]

    def whole(self) -> frozenset[str]:
        hints = dict(flags_of(self.base))
        paths = [axis.path for axis in self.axes]
        return frozenset(path for path in paths if hints.get(f"--{path.replace('_', '-')}") is int)


def ordered(values: Sequence[str]) -> Sequence[str]:
    """Numbers from the lowest to the highest; other values as they are."""
    try:
        return sorted(values, key=float)
    except ValueError:
        return values


def split(path: str, value: str) -> list[str]:
    """The words of a value. An option among them would change something that nobody sees to be swept."""
    try:
        words = shlex.split(value)
    except ValueError:
        words = ["--"]
    if any(word.startswith("--") for word in words):
        raise UserError(f"--over {path} cannot be {value!r:.80}.")
    return words


def begun(name: str, args: list[str], imports: Sequence[str]) -> tuple[Made, Where]:
    """A new study, or one whose command is given again, perhaps with more values or trials."""
    start = find_recipe(name)
    fixed = start.derived_fields()
    recipe, options = parse_recipe(start, Options, args, f"fleetfoot sweep {name}", fixed)
    if options.folder is None:
        raise UserError("give the study a --folder.")
    check_no_cluster(recipe)
    axes = space.axes_of(options.over)
    check_once(args, axes)
    if options.trials < 1:
        raise UserError(f"--trials must be at least 1, not {options.trials}.")
    goal = Goal(options.metric, options.minimize, options.trials, options.prune)
    search = options.search == "optuna"
    points = [] if search else space.grid(axes)
    recipe = with_threads(recipe, options, len(points) or usable_cores())
    sweep = {
        "base": to_json(recipe),
        "over": list(options.over),
        "search": search,
        "goal": asdict(goal),
    }
    made = Made(Study(options.folder, options.seeds, {}), recipe, axes, goal, search)
    named = {space.name_of(settings): settings for settings in points}
    recipes = {key: made.point(settings) for key, settings in named.items()}
    check_same(options.folder, made, options.over)
    if search:  # what the recipe itself can refuse, and not its agent, is refused now, and not by a trial hours later
        low, high = made.ends(0), made.ends(-1)
        # The lowest learning rate beside the highest end of its schedule.
        rising = low | {path: end for path, end in high.items() if path.endswith(".lr_end")}
        between = [low | {a.path: value} for a in axes if not a.is_range for value in a.values]
        for settings in (low, high, rising, *between):
            made.point(settings)
    opened = study.open_study(
        options.folder, recipes, options.seeds, modules_of(name, recipe, imports), named, sweep
    )
    return replace(made, study=opened), options


def check_once(args: Sequence[str], axes: Sequence[space.Axis]) -> None:
    given = {word.split("=")[0].replace("_", "-") for word in args}
    for axis in axes:
        if f"--{axis.path.replace('_', '-')}" in given:
            raise UserError(f"--over {axis.path} and its value are both given; give one of them.")


def with_threads(recipe: Recipe, options: Options, jobs: int) -> Recipe:
    """Goes on with as many as at the start, for the same bits."""
    assert options.folder is not None
    if is_study(options.folder):
        if not recipe.threads:
            return replace(recipe, threads=base_of(study.read_study(options.folder)).threads)
        return recipe
    return threads_of(recipe, options.jobs or jobs)


def check_same(folder: Path, made: Made, over: Sequence[str]) -> None:
    """UserError where the folder holds a study of something else."""
    if not is_study(folder):
        return
    before = study.read_study(folder)
    if path := next(differences(base_of(before), made.base), None):
        raise UserError(f"{folder} was made with another {path}; give another --folder.")
    same = before.sweep.get("over") == list(over) or not made.search
    if before.sweep.get("search") is not made.search or not same:
        raise UserError(
            f"{folder} was made with another --over or --search; give another --folder."
        )


def base_of(of: Study) -> Recipe:
    if "base" not in of.sweep:
        raise UserError(f"{of.folder} was not made by fleetfoot sweep.")
    return from_stored(of.sweep["base"], of.folder / "study.json")


def stored(where: GoOn) -> Made:
    """A study to go on with."""
    if where.folder is None:
        raise UserError("which study? fleetfoot sweep RECIPE --over ... --folder STUDY")
    if not is_study(where.folder):
        raise UserError(f"which recipe? {where.folder} is not a study yet.")
    before = study.read_study(where.folder)
    base, told = base_of(before), before.sweep
    try:
        over, goal = list(map(str, told["over"])), Goal(**told["goal"])
        goal = Goal(str(goal.metric), bool(goal.minimize), int(goal.trials), bool(goal.prune))
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"{where.folder / 'study.json'} cannot be read: its sweep settings are damaged."
        ) from error
    if where.trials < 0:
        raise UserError(f"--trials must be at least 1, not {where.trials}.")
    if where.trials:
        goal = replace(goal, trials=where.trials)
        before = replace(
            before, sweep={**told, "goal": asdict(goal)}
        )  # written with the next trial
    axes = space.axes_of(over)
    return Made(before, base, axes, goal, told.get("search") is True)


def train(made: Made, where: Where) -> int:
    plan: Search | None = None
    if made.search:
        plan = Search(made.study, made.axes, made.goal, made.point, made.whole())
    count = made.goal.trials if plan else len(made.study.points)
    print(
        f"{count} configurations, {made.study.seeds} seed{'s' * (made.study.seeds != 1)} each, in {made.study.folder}"
    )
    try:
        with placed(made, where) as (workers, launcher):
            done = study.run_study(made.study, workers, plan, launcher)
    except UserError:
        write_table(plan.study if plan else made.study, made.goal.metric)
        raise
    return finish(plan.study if plan else made.study, made.goal, done)


@contextmanager
def placed(made: Made, where: Where) -> Iterator[tuple[int, Launcher]]:
    """How many processes, and where."""
    base, jobs = made.base, where.jobs
    if jobs < 0:
        raise UserError(f"--jobs must be 0 or more, not {jobs}.")
    if where.ray:
        gpus = 1.0 if base.torch_device().type == "cuda" else 0.0
        cpus = float(base.threads or 1)
        with cluster(ClusterFields(address=where.ray), cpus=cpus, gpus=gpus) as ray:
            room = int(ray.cluster_resources().get("CPU", cpus) // cpus)
            yield jobs or max(1, room), OnRay(ray, cpus=cpus, gpus=gpus)
        return
    one = made.search or why_not_batched(base) is None
    in_memory = workers_in_memory(base, made.study.seeds if one else 1)
    if jobs > in_memory:
        text = f"{jobs} processes may need more memory than is free; it is enough for {in_memory}"
        warnings.warn(text, Notice, stacklevel=2)
    yield jobs or min(default_workers([base]), in_memory), Locally()
