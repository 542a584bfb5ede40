"""`fleetfoot compare RUNS...`"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from fleetfoot.cli.form import parse
from fleetfoot.errors import UserError
from fleetfoot.extras import check

if TYPE_CHECKING:
    from fleetfoot.compare import Ask, Comparison, Estimate, Group


@dataclass(frozen=True, kw_only=True)
class Comparing:
    """What `fleetfoot compare` and `fleetfoot report` take alike."""

    by: str = ""
    """Group runs by this field of their recipes, or several with commas (agent.tau,num_envs); by default by recipe."""
    metric: Literal["auto", "return", "success"] = "auto"
    """What is scored; auto: success if the task reports it, otherwise the return."""
    low: float | None = None
    """Return that counts as a score of 0, for all tasks."""
    high: float | None = None
    """Return that counts as a score of 1, for all tasks."""
    baseline: str = ""
    """The group that the others are compared with; by default the first."""
    unfinished: bool = False
    """Include unfinished runs."""
    reps: int = 5_000
    """Bootstrap samples."""
    seed: int = 0
    """Seed of the bootstrap; the same runs and seed give the same numbers."""

    def ask(self, **more: Any) -> Ask:
        from fleetfoot.compare import Ask, Bootstrap

        return Ask(
            by=fields_of(self.by),
            metric=self.metric,
            everywhere=everywhere(self.low, self.high),
            baseline=self.baseline,
            unfinished=self.unfinished,
            bootstrap=Bootstrap(self.reps, self.seed),
            **more,
        )


def fields_of(by: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in by.split(",") if name.strip())


@dataclass(frozen=True, kw_only=True)
class Options(Comparing):
    """Interquartile mean, optimality gap and probability of improvement of groups of runs, with 95 % intervals, and
    their curves."""

    runs: tyro.conf.Positional[tuple[str, ...]] = ()
    """Run folders, folders of runs, or quoted patterns."""
    ranges: Path | None = None
    """JSON file with a range per task: {"task": [low, high]}."""
    at: int | None = None
    """Env steps at which to compare; by default those of the shortest run of each task."""
    folder: Path = Path("comparison")
    """Folder for the pictures and compare.json; it replaces those of an earlier comparison."""


def run(args: list[str], imports: list[str]) -> int:
    options: Options = parse(Options, args, "fleetfoot compare RUNS...")
    if not options.runs:
        raise UserError(
            "which runs? fleetfoot compare RUNS..., for instance fleetfoot compare runs."
        )
    check("compare", ("rliable", "matplotlib"), "compare")
    from fleetfoot import compare

    compare.rliable()
    ranges = {} if options.ranges is None else compare.read_ranges(options.ranges)
    ask = options.ask(ranges=ranges, at=options.at)
    runs = [compare.read(folder) for folder in compare.find(options.runs)]
    made = compare.compare(runs, ask)
    try:
        options.folder.mkdir(parents=True, exist_ok=True)
        table = options.folder / "compare.json"
        table.write_text(json.dumps(made.to_json(), indent=1) + "\n")
        written = [table, *compare.draw(made, options.folder)]
    except OSError as error:
        raise UserError(f"cannot write to {options.folder}: {error.strerror or error}.") from error
    show(made, written)
    return 0


def everywhere(low: float | None, high: float | None) -> tuple[float, float] | None:
    from fleetfoot.compare.ranges import check_range

    if low is None and high is None:
        return None
    if low is None or high is None:
        raise UserError("--low and --high must be given together.")
    check_range(low, high, "--low and --high")
    return low, high


def show(made: Comparison, written: list[Path]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 120  # of a file or a pipe, which have no width
    for note in made.notes:
        console.print(f"note: {escape(note)}", soft_wrap=True)
    console.print(f"written: {', '.join(map(str, written))}\n", soft_wrap=True, markup=False)
    what = ", ".join(f"{task} ({scale.at_env_steps:,.0f})" for task, scale in made.tasks.items())
    title = f"after env steps: {what}" if len(made.tasks) <= 4 else f"{len(made.tasks)} tasks"
    rows = [cells(group, made) for group in made.groups]
    heads = ["group", "runs", "IQM" if made.normalised else "IQM of returns", "gap", "P(better)"]
    if len(made.groups) > 1:
        title += f"; baseline {made.baseline}"
    table = Table(title=escape(title), title_justify="left", box=None, pad_edge=False)
    for place, head in enumerate(heads):
        if any(row[place] for row in rows):
            table.add_column(
                head, justify="right" if place else "left", no_wrap=place > 0, overflow="fold"
            )
    for row in rows:
        table.add_row(*(escape(row[i]) for i in range(len(heads)) if any(r[i] for r in rows)))
    console.print(table)


def cells(group: Group, made: Comparison) -> list[str]:
    """One row; missing entries are empty."""
    return [
        group.name,
        str(sum(map(len, group.seeds.values()))),
        with_interval(group.iqm, ".3f" if made.normalised else ",.1f"),
        with_interval(group.optimality_gap, ".3f"),
        with_interval(group.improvement, ".2f"),
    ]


def with_interval(estimate: Estimate | None, form: str) -> str:
    if estimate is None:
        return ""
    if estimate.interval is None:
        return f"{estimate.value:{form}}"
    low, high = estimate.interval
    return f"{estimate.value:{form}} [{low:{form}}, {high:{form}}]"
