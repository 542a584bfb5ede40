"""What `fleetfoot sweep` prints at its end."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from fleetfoot.cli.main import INTERRUPTED
from fleetfoot.extras import typed
from fleetfoot.study.folder import Study
from fleetfoot.study.search import Goal
from fleetfoot.study.table import Row, check_metric, write_table

SHOWN = 10  # rows of the table; all are in sweep.csv


def finish(made: Study, goal: Goal, done: bool) -> int:
    rows, path = write_table(made, goal.metric)
    command = typed("fleetfoot", "sweep", "--folder", made.folder)
    if not done:
        print(f"interrupted and saved; to continue:\n  {command}")
        return INTERRUPTED
    complete = [row for row in rows if row.results]
    if not complete:
        check_metric(made.seed_folders(rows[0].name)[0], goal.metric)
    complete.sort(key=lambda row: row.mean if goal.minimize else -row.mean)
    show(complete, goal, len(rows))
    compare = typed("fleetfoot", "compare", made.folder)
    print(f"all of them in {path}; with intervals and curves:\n  {compare}")
    if complete:
        best = made.seed_folders(complete[0].name)[0]
        print(f"to train the best again:\n  {typed('fleetfoot', 'train', best)}")
    return 0


def show(rows: Sequence[Row], goal: Goal, count: int) -> None:
    """The best of them."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 120
    title = f"the best {min(SHOWN, len(rows))} of {count} configurations"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    paths = list(dict.fromkeys(path for row in rows for path in row.settings))
    for head in (*paths, f"mean {goal.metric}", "lowest", "highest"):
        table.add_column(head, justify="right" if head not in paths else "left", overflow="fold")
    for row in rows[:SHOWN]:
        values = (row.mean, min(row.results), max(row.results))
        numbers = ["" if math.isnan(value) else f"{value:,.6g}" for value in values]
        table.add_row(*(short(row.settings.get(path, "")) for path in paths), *numbers)
    console.print(table, markup=False)


def short(value: Any) -> str:
    """A number that a search chose, without digits that nobody reads."""
    try:
        return f"{float(value):.4g}" if len(value) > 8 else str(value)
    except ValueError:
        return str(value)
