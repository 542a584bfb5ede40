"""`fleetfoot report RUNS... --out report.html`"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro

from fleetfoot.cli.compare import Comparing
from fleetfoot.cli.form import parse
from fleetfoot.errors import UserError
from fleetfoot.extras import check

PACKAGES = ("plotly", "jinja2", "rliable")


@dataclass(frozen=True, kw_only=True)
class Options(Comparing):
    """A self-contained HTML page about runs: curves, table, time, diagnostics, videos, recipes, commands."""

    runs: tyro.conf.Positional[tuple[str, ...]] = ()
    """Run folders, folders of runs, or quoted patterns."""
    out: Path = Path("report.html")
    """The page to write; an earlier one is replaced."""
    title: str = "Training report"
    """Title of the page."""
    films: int = 1
    """Videos per group, from its best runs; 0: none."""


def run(args: list[str], imports: list[str]) -> int:
    options: Options = parse(Options, args, "fleetfoot report RUNS...")
    if not options.runs:
        raise UserError("which runs? fleetfoot report RUNS..., for instance fleetfoot report runs.")
    if options.out.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"--out {options.out} must end in .html.")
    if options.out.is_dir():
        raise UserError(f"--out {options.out} is a folder; give the name of a file.")
    if options.films < 0:
        raise UserError(f"--films must be at least 0, not {options.films}.")
    check("report", PACKAGES, "report")
    from fleetfoot import compare, report
    from fleetfoot.files import write_text

    compare.rliable()
    wish = report.Wish(options.title, options.ask(), options.films)
    page = report.build(compare.find(options.runs), wish)
    write_text(options.out, report.page_html(page))
    size = options.out.stat().st_size
    print(f"written: {options.out} ({size / 1e6:.1f} MB, {len(page.view['runs'])} runs)")
    return 0
