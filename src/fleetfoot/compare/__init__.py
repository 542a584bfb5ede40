"""Comparison of many runs: aggregates with confidence intervals, curves, figures."""

from __future__ import annotations

from fleetfoot.compare.comparison import Ask, Comparison, Group, compare
from fleetfoot.compare.draw import draw
from fleetfoot.compare.intervals import Bootstrap, Estimate, rliable
from fleetfoot.compare.ranges import read_ranges
from fleetfoot.compare.runs import Run, find, read

__all__ = [
    "Ask",
    "Bootstrap",
    "Comparison",
    "Estimate",
    "Group",
    "Run",
    "compare",
    "draw",
    "find",
    "read",
    "read_ranges",
    "rliable",
]
