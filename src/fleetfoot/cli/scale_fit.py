"""`fleetfoot scale fit STUDY`"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro

from fleetfoot.cli.form import parse
from fleetfoot.errors import UserError, nearest
from fleetfoot.extras import check


@dataclass(frozen=True, kw_only=True)
class Options:
    """Fit the scaling laws of a study: batch size, learning rate and data over the ratio, the frontier of
    compute and data, and the best ratio for each budget. Writes JSON, CSV, pictures and one page of text."""

    study: tyro.conf.Positional[Path | None] = None
    """Folder of a study, any folder with its runs, or an evaluations.csv."""
    thresholds: tuple[float, ...] = ()
    """Scores, 0 to 1,000; by default ten from 200 to 800."""
    low: float | None = None
    """Return that counts as a score of 0, for all tasks."""
    high: float | None = None
    """Return that counts as a score of 1,000, for all tasks."""
    ranges: Path | None = None
    """JSON file with a range per task: {"task": [low, high]}."""
    delta: float | None = None
    """FLOPs that one env step is worth; by default as many as its updates cost at the middle ratio."""
    resets: tuple[int, ...] = ()
    """Env steps at which the networks are reset; the dips that follow are left out."""
    reset_every_updates: int = 0
    """The same, for networks that are reset after every so many updates."""
    reps: int = 100
    """Bootstrap samples."""
    seed: int = 0
    """Seed of the bootstrap; the same runs and seed give the same numbers."""
    folder: Path | None = None
    """Output folder; by default fit/ inside the study, or next to the file. Earlier output is replaced."""


def run(args: list[str], imports: list[str]) -> int:
    options: Options = parse(Options, args, "fleetfoot scale fit STUDY")
    place = options.study
    if place is None:
        raise UserError("which study? fleetfoot scale fit STUDY")
    if not place.exists():
        known = [str(path) for path in place.parent.glob("*")]
        raise UserError(f"there is no {place}.{nearest(str(place), known)}")
    check("fitting laws", ("scipy", "matplotlib"), "scale")
    from fleetfoot.cli.compare import everywhere
    from fleetfoot.compare import read_ranges
    from fleetfoot.scale import draw, report
    from fleetfoot.scale.analysis import Ask, analyse
    from fleetfoot.scale.curves import Resets
    from fleetfoot.scale.table import read_table

    ask = Ask(
        thresholds=options.thresholds,
        ranges={} if options.ranges is None else read_ranges(options.ranges),
        everywhere=everywhere(options.low, options.high),
        delta=options.delta,
        resets=Resets(options.resets, options.reset_every_updates),
        reps=options.reps,
        seed=options.seed,
    )
    table = read_table(place)
    made = analyse(table, ask)
    folder = options.folder or (place if place.is_dir() else place.parent) / "fit"
    written = [*report.write_tables(table, made, folder), *draw.draw(table, made, folder)]
    print(report.page(made))
    print(f"\nwritten: {', '.join(map(str, written))}")
    return 0
