"""`fleetfoot bench NAME`: run a measurement of the source checkout's package `benchmarks`."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import fleetfoot
from fleetfoot.errors import UserError


def run(args: list[str], imports: list[str]) -> int:
    """Measure, print tables, write JSON; the exit code."""
    root = checkout()
    if root is None:
        raise UserError(
            "the benchmarks come with the source, not with the installed package; "
            "run this in a clone of the repository, or put the clone on PYTHONPATH."
        )
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    return int(importlib.import_module("benchmarks.command").run(args))


def checkout() -> Path | None:
    """The folder that holds `benchmarks/`: that of an editable install, the current one, or one on the path."""
    places = [Path(fleetfoot.__file__).parents[2], Path.cwd(), *map(Path, sys.path)]
    return next((place for place in places if (place / "benchmarks/command.py").is_file()), None)
