"""`fleetfoot dashboard [RUNS]`"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro

from fleetfoot.cli.compare import fields_of
from fleetfoot.cli.form import parse
from fleetfoot.cli.report import PACKAGES
from fleetfoot.errors import UserError, nearest
from fleetfoot.extras import check

REPS = 1_000  # of the bootstrap: fewer than in a report, because the page is made again whenever a log grows


@dataclass(frozen=True, kw_only=True)
class Options:
    """A live report on a folder of runs, at http://127.0.0.1. It refreshes itself and changes nothing."""

    runs: tyro.conf.Positional[Path] = Path("runs")
    """The folder that holds the runs, at any depth."""
    port: int = 8642
    """Port on this machine; 0: any free port."""
    by: str = ""
    """Group runs by this field of their recipes, or several with commas; by default by recipe."""


def run(args: list[str], imports: list[str]) -> int:
    options: Options = parse(Options, args, "fleetfoot dashboard [RUNS]")
    if options.runs.is_file():
        raise UserError(f"{options.runs} is a file; give a folder of runs.")
    if not options.runs.is_dir():
        names = [str(path) for path in options.runs.parent.glob("*/")]
        raise UserError(f"there is no folder {options.runs}.{nearest(str(options.runs), names)}")
    if not 0 <= options.port < 2**16:
        raise UserError(f"--port must be from 0 to 65535, not {options.port}.")
    check("dashboard", PACKAGES, "report")
    from fleetfoot import compare, report
    from fleetfoot.report.serve import serve

    compare.rliable()
    ask = compare.Ask(by=fields_of(options.by), bootstrap=compare.Bootstrap(reps=REPS))
    with serve(options.runs, options.port, report.Wish(str(options.runs), ask)) as server:
        print(f"{server.address}  shows {options.runs} (Ctrl-C ends it)", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()
    return 0
