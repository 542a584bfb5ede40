"""The learning curve of a run, as numbers and as a picture made of text."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from fleetfoot.log.meter import EVAL_RETURN
from fleetfoot.log.sinks import read_lines

EIGHTHS = " ▁▂▃▄▅▆▇█"


class Point(NamedTuple):
    """One evaluation."""

    vec_steps: int
    train_seconds: float
    value: float  # mean return


def curve(path: Path) -> list[Point]:
    """The evaluations in a run folder, or in its metrics.jsonl, in order."""
    file = path / "metrics.jsonl" if path.is_dir() else path
    lines = [line for line in read_lines(file) if isinstance(line.get(EVAL_RETURN), (int, float))]
    return [Point(x["vec_steps"], x.get("train_seconds", 0.0), x[EVAL_RETURN]) for x in lines]


def plot_text(points: Sequence[Point], *, width: int = 60, height: int = 8) -> str:
    """A bar chart of returns over vec steps, for a terminal; columns between two points slope."""
    if not points:
        return "no evaluations yet"
    low, high = min(p.value for p in points), max(p.value for p in points)
    # Bars begin at zero where all returns are positive, so that heights can be compared.
    floor = min(low, 0.0)
    spread = (high - floor) or 1.0
    columns = [_at(points, i / max(width - 1, 1)) for i in range(width)]
    # At least one eighth: the lowest value is there too, not absent.
    eighths = [max(1, round((value - floor) / spread * height * 8)) for value in columns]
    labels = {height - 1: f"{high:,.0f}", 0: f"{floor:,.0f}"}
    margin = max(len(label) for label in labels.values())
    rows = []
    for row in reversed(range(height)):
        bars = "".join(EIGHTHS[min(max(n - row * 8, 0), 8)] for n in eighths)
        rows.append(f"{labels.get(row, ''):>{margin}} ┤{bars}".rstrip())
    first, last = points[0], points[-1]
    left, right = f"{first.vec_steps:,}", f"{last.vec_steps:,} vec steps"
    axis = left + " " * max(width - len(left) - len(right), 1) + right
    took = timedelta(seconds=round(last.train_seconds))
    summary = f"return {last.value:,.1f}, best {high:,.1f}, after {took} of training"
    return "\n".join([*rows, f"{'':{margin}}  {axis}", f"{'':{margin}}  {summary}"])


def _at(points: Sequence[Point], share: float) -> float:
    """The return at a share (0 to 1) of the steps, on straight lines between the evaluations."""
    step = points[0].vec_steps + share * (points[-1].vec_steps - points[0].vec_steps)
    for a, b in pairwise(points):
        if a.vec_steps <= step < b.vec_steps:
            part = (step - a.vec_steps) / (b.vec_steps - a.vec_steps)
            return a.value + part * (b.value - a.value)
    return points[-1].value
