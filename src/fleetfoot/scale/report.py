"""One page of text about a study, and its tables."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import numpy as np

from fleetfoot.errors import writing
from fleetfoot.run.stored import write_stored
from fleetfoot.scale.results import Analysis, Crossings, Fitted
from fleetfoot.scale.table import RunTable


def write_tables(table: RunTable, made: Analysis, folder: Path) -> list[Path]:
    """evaluations.csv (all that the analysis starts from), crossings.csv, fit.json and report.txt."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        written = [table.write(folder / "evaluations.csv")]
        written.append(_write_crossings(made, folder / "crossings.csv"))
        path = folder / "fit.json"
        write_stored(path, "fit", _finite(made.to_json()))
        text = folder / "report.txt"
        text.write_text(page(made) + "\n")
    return [*written, path, text]


def _write_crossings(made: Analysis, path: Path) -> Path:
    heads = ["task", "utd", "batch", "lr", "params", "seeds", "on_law", "seconds_per_env_step"]
    heads += ["overfitting", "parameter_norm"]
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*heads, *(f"env_steps_to_{j:.0f}" for j in made.thresholds)])
        for row in made.crossings:
            key = row.key
            values = [row.seconds_per_env_step, row.overfitting, row.parameter_norm, *row.data]
            cells = ["" if math.isnan(value) else f"{value:.6g}" for value in values]
            head = [key.task, key.utd, key.batch, key.lr, key.params, row.seeds, int(row.on_law)]
            writer.writerow([*head, *cells])
    return path


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity."""
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def page(made: Analysis) -> str:
    """What was measured, which laws hold how well, and what to use at which budget."""
    parts = [_what(made), _data(made), _settings(made), _budgets(made), _learner(made)]
    if made.notes:
        parts.append("\n".join(["Notes", *(f"- {note}" for note in made.notes)]))
    return "\n\n".join(part for part in parts if part)


def _what(made: Analysis) -> str:
    recipes = ", ".join(dict.fromkeys(made.recipes.values()))
    ratios = ", ".join(f"{sigma:.3g}" for sigma in sorted({sigma for sigma, _ in made.ratios}))
    lines = [f"Scaling study of {recipes}"]
    lines.append(f"{made.seeds} seeds at update-to-data ratios {ratios}.")
    for task, (low, high) in made.tasks.items():
        lines.append(f"{task}: score 0 is a return of {low:,.1f}, 1,000 is {high:,.1f}.")
    return "\n".join(lines)


def _data(made: Analysis) -> str:
    sized = len({size for _, size in made.ratios}) > 1
    lines = ["Data: env steps until a score, D = D_min + M (ratio / b)^-a"]
    if sized:  # too many columns; crossings.csv has them
        lines[0] += " + M (parameters / n)^-d"
    ratios = [] if sized else [f"at {sigma:.3g}" for sigma, _ in made.ratios]
    lines.append("score " + "".join(f"{name:>13}" for name in ratios) + _heads(sized))
    lines += [_data_row(fitted, sized) for fitted in made.laws]
    top = made.laws[-1]
    lines.append(
        f"No ratio needs less than {top.law.least:,.0f} env steps for a score of {top.threshold:.0f}."
    )
    if made.held_out:
        errors = [one.error for one in made.held_out]
        lines.append(
            f"Ratio {made.held_out[0].sigma:.3g}, predicted from the smaller ones: wrong by {np.mean(errors):.1%} in "
            f"the mean, {max(errors):.1%} at most."
        )
    return "\n".join(lines)


def _heads(sized: bool) -> str:
    heads = f"{'a':>8}{'b':>9}{'D_min':>11}{'R^2':>7}"
    return heads + (f"{'d':>8}{'n':>10}" if sized else "")


def _data_row(fitted: Fitted, sized: bool) -> str:
    law = fitted.law
    data = [] if sized else fitted.data
    row = f"{fitted.threshold:5.0f} " + "".join(f"{steps:>13,.0f}" for steps in data)
    row += f"{law.a:8.3f}{law.b:9.3g}{law.least:>11,.0f}{law.r2:7.3f}"
    return row + (f"{law.d:8.3f}{law.n:10.3g}" if sized else "")


def _settings(made: Analysis) -> str:
    lines = []
    for name, law, unit in (
        ("batch size", made.batch_law, ".0f"),
        ("learning rate", made.lr_law, ".3g"),
    ):
        if law is None:
            continue
        size = f", parameters^{law.size_slope:.3f}" if law.size_slope else ""
        lines.append(f"Best {name}: ratio^{law.slope:.4f}{size} (R^2 {law.r2:.2f})")
        for task in law.log10_at_one:
            at_one = law(task, 1.0, made.params)
            own = made.own_slopes["batch" if unit == ".0f" else "lr"].get(task)
            alone = f"; slope of this task alone {own:.3f}" if own is not None else ""
            lines.append(f"  {task}: {at_one:{unit}} at ratio 1{alone}")
    if made.batch_law is None:
        used = sorted({row.key.batch for row in made.crossings})
        lines.append(f"Batch size {', '.join(map(str, used))}: no law of the best.")
    if made.lr_law is None and made.lr is not None:
        rates = sorted({row.key.lr for row in made.crossings})
        lines.append(f"Learning rate {', '.join(f'{lr:.3g}' for lr in rates)}: no law of the best.")
    return "\n".join(lines)


def _budgets(made: Analysis) -> str:
    lines = [
        f"Budgets: F = C + delta D, with C = 10 ratio D batch N FLOPs, N = {made.params:,.0f} critic parameters, "
        f"delta = {made.delta:.3g} FLOPs",
        "score      best ratio   env steps       FLOPs    budget F | fastest ratio   env steps   seconds",
    ]
    for best, fast in zip(made.optima, made.fastest, strict=True):
        edge, also = ("<" if best.at_edge else " "), ("<" if fast.at_edge else " ")
        lines.append(
            f"{best.threshold:5.0f} {best.sigma:14.3g}{edge}{best.data:>12,.0f}{best.compute:12.3g}"
            f"{best.budget:12.3g} |{fast.sigma:13.3g}{also}{fast.data:>12,.0f}{fast.budget:10.1f}"
        )
    lines.append(
        "(<: at the end of the ratios that were searched. Seconds: of all seeds trained together.)"
    )
    if (law := made.budget_law) is not None:
        lines.append(
            f"Best ratio for a budget: {10 ** law.law.log10_at_one['']:.3g} F^{law.law.slope:.3f}; at the two highest "
            f"scores, which it has not seen, wrong by {law.held_out_error:.1%}."
        )
    sizes = {size for _, size in made.ratios}
    if len(sizes) > 1:
        chosen = ", ".join(f"{one.threshold:.0f}: {one.params:,.0f}" for one in made.optima)
        lines.append(f"Best size of the critic by score: {chosen}.")
    return "\n".join(lines)


def _learner(made: Analysis) -> str:
    rows = [row for row in made.crossings if row.on_law]
    if all(math.isnan(row.overfitting) and math.isnan(row.parameter_norm) for row in rows):
        return "The learner was not diagnosed."
    lines = [
        "The learner: TD loss on the newest 1 % of the replay minus on all of it; norm of the critic's parameters"
    ]
    rows.sort(key=lambda row: (row.key.task, row.key.params, row.key.utd))
    lines += map(_learner_row, rows)
    return "\n".join(lines)


def _learner_row(row: Crossings) -> str:
    key = row.key
    return (
        f"  {key.task}, ratio {key.utd:.3g}, batch {key.batch}, {key.params:,} parameters: "
        f"{row.overfitting:+.4g}, norm {row.parameter_norm:.4g}"
    )
