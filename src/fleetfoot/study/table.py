"""The table of a sweep: each configuration, what it changes, and its results."""

from __future__ import annotations

import csv
import io
import math
import warnings
from dataclasses import dataclass
from pathlib import Path

from fleetfoot.errors import Notice, UserError, nearest
from fleetfoot.files import write_text
from fleetfoot.log.sinks import read_lines
from fleetfoot.study.folder import Settings, Study


@dataclass(frozen=True)
class Row:
    """One configuration. Results are those of the last evaluation of each seed that has one."""

    name: str
    settings: Settings
    state: str  # complete, pruned, failed, unfinished
    results: list[float]

    @property
    def mean(self) -> float:
        return sum(self.results) / len(self.results) if self.results else math.nan


def curve(run: Path, metric: str) -> dict[int, float]:
    """A metric over the vec steps of a run. The last line of a log may be half written."""
    path = run / "metrics.jsonl"
    if not path.exists():
        return {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        lines = read_lines(path)
    return {line["vec_steps"]: float(line[metric]) for line in lines if metric in line}


def check_metric(run: Path, metric: str) -> None:
    """UserError where a finished run has no such metric."""
    known = {name for line in read_lines(run / "metrics.jsonl") for name in line}
    if metric not in known:
        raise UserError(f"{run} has no metric {metric!r}.{nearest(metric, known)}")


def stored_trials(study: Study) -> dict[str, tuple[str, int]]:
    """The trials of a search that are over: complete, pruned or failed; and the vec step at which they were pruned."""
    stored = study.sweep.get("trials", {})
    try:
        found = {str(name): (str(state), int(step)) for name, (state, step) in stored.items()}
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        raise UserError(
            f"{study.folder / 'study.json'} cannot be read: its trials are damaged."
        ) from error
    if odd := {state for state, _ in found.values()} - {"complete", "pruned", "failed"}:
        raise UserError(
            f"{study.folder / 'study.json'} cannot be read: a trial has the unknown state {odd.pop()!r:.80}."
        )
    return found


def rows_of(study: Study, metric: str) -> list[Row]:
    trials = stored_trials(study)
    rows = []
    for name in study.points:
        finished = "complete" if study.job(name).finished() else "unfinished"
        state, _ = trials.get(name, (finished, 0))
        curves = [curve(run, metric) for run in study.seed_folders(name)]
        results = [of[max(of)] for of in curves if of] if state == "complete" else []
        rows.append(Row(name, study.settings.get(name, {}), state, results))
    return rows


def write_table(study: Study, metric: str) -> tuple[list[Row], Path]:
    """The rows, and the file `sweep.csv` with them. It holds no times, so the same results are the same file."""
    rows = rows_of(study, metric)
    paths = list(dict.fromkeys(path for row in rows for path in row.settings))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    first = next((recipe.seed for recipe in study.points.values()), 0)
    seeds = [f"seed {first + number}" for number in range(study.seeds)]
    writer.writerow([*paths, "state", f"mean {metric}", *seeds])
    for row in rows:
        mean = "" if math.isnan(row.mean) else f"{row.mean:.9g}"
        results = [f"{value:.9g}" for value in row.results]
        results += [""] * (study.seeds - len(results))
        writer.writerow([*(row.settings.get(p, "") for p in paths), row.state, mean, *results])
    path = study.folder / "sweep.csv"
    write_text(path, text.getvalue())
    return rows, path
