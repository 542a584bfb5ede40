"""Pictures of a study."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fleetfoot.errors import writing
from fleetfoot.scale import curves
from fleetfoot.scale.curves import SCALE
from fleetfoot.scale.extra import pyplot
from fleetfoot.scale.frontier import ratio_grid
from fleetfoot.scale.results import Analysis, Crossings
from fleetfoot.scale.table import RunTable

DPI = 130


def draw(table: RunTable, made: Analysis, folder: Path) -> list[Path]:
    """curves.png, laws.png and frontier.png; settings.png where settings were fitted; learner.png where it was
    diagnosed."""
    figures = {"curves": _curves(table, made), "laws": _laws(made), "frontier": _frontier(made)}
    if made.batch_law is not None or made.lr_law is not None:
        figures["settings"] = _settings(made)
    if not all(math.isnan(row.parameter_norm) for row in made.crossings):
        figures["learner"] = _learner(made)
    return [_save(figure, folder / f"{name}.png") for name, figure in figures.items()]


def _save(figure: Any, path: Path) -> Path:
    with writing(path):
        figure.savefig(path, dpi=DPI, metadata={"Software": None})
    pyplot().close(figure)
    return path


def _panels(count: int, height: float = 3.6) -> tuple[Any, Sequence[Any]]:
    figure, panels = pyplot().subplots(
        1, count, figsize=(4.5 * count, height), squeeze=False, layout="constrained"
    )
    return figure, list(panels[0])


def _colours(made: Analysis) -> dict[float, Any]:
    ratios = sorted({row.key.utd for row in made.crossings})
    shades = pyplot().get_cmap("viridis")(np.linspace(0.0, 0.85, len(ratios)))
    return dict(zip(ratios, shades, strict=True))


def _curves(table: RunTable, made: Analysis) -> Any:
    """The mean over seeds of each configuration on the laws, and its isotonic curve."""
    figure, panels = _panels(len(made.tasks))
    colours = _colours(made)
    on_law = {row.key for row in made.crossings if row.on_law}
    sizes = {key.params for key in on_law}
    for panel, (task, (low, high)) in zip(panels, made.tasks.items(), strict=True):
        for key, runs in table.groups().items():
            if key.task != task or key not in on_law:
                continue
            one = curves.seed_curves(key, runs)
            size = f", {key.params / 1e3:.0f}k" if len(sizes) > 1 else ""
            x, style = one.env_steps, {"color": colours[key.utd]}
            panel.plot(x, one.mean, lw=0.8, alpha=0.5, **style)
            panel.plot(x, curves.isotonic(x, one.mean), label=f"{key.utd:g}{size}", **style)
        for fitted in made.laws:
            panel.axhline(low + fitted.threshold / SCALE * (high - low), color="gray", lw=0.4)
        panel.set_title(task)
        panel.set_xlabel("environment steps")
    panels[0].set_ylabel("return, mean over seeds (thick: isotonic)")
    panels[-1].legend(title="updates per env step", fontsize=8)
    return figure


def _laws(made: Analysis) -> Any:
    """Data over ratio, one line for each threshold; the right panel holds out the largest ratio."""
    figure, panels = _panels(2 if made.held_out else 1)
    sigma = np.array([ratio for ratio, _ in made.ratios])
    grid = np.geomspace(sigma.min() / 1.3, sigma.max() * 1.3, 200)
    shades = pyplot().get_cmap("plasma")(np.linspace(0.0, 0.85, len(made.laws)))
    for fitted, shade in zip(made.laws, shades, strict=True):
        panels[0].plot(sigma, fitted.data, "o", color=shade, ms=4)
        panels[0].plot(grid, fitted.law(grid, made.params), color=shade, lw=1.2)
        panels[0].text(
            grid[-1],
            fitted.law(grid, made.params)[-1],
            f" {fitted.threshold:.0f}",
            fontsize=7,
            va="center",
        )
    panels[0].set(
        xscale="log",
        yscale="log",
        xlabel="updates per env step",
        ylabel="env steps until the score",
    )
    panels[0].set_title(f"data laws, R² ≥ {made.r2:.3f}")
    _plain_ticks(panels[0], sorted(set(sigma.tolist())))
    if made.held_out:
        measured = [one.measured for one in made.held_out]
        predicted = [one.predicted for one in made.held_out]
        ends = [min(measured + predicted) * 0.9, max(measured + predicted) * 1.1]
        panels[1].fill_between(
            ends, [0.75 * x for x in ends], [1.25 * x for x in ends], color="gray", alpha=0.15, lw=0
        )
        panels[1].plot(ends, ends, color="gray", lw=0.8)
        panels[1].plot(measured, predicted, "o", ms=4)
        panels[1].set(xlabel="measured env steps", ylabel="predicted from smaller ratios")
        panels[1].set_title(f"ratio {made.held_out[0].sigma:g} held out (band: 25 %)")
    return figure


def _plain_ticks(panel: Any, ratios: Sequence[float]) -> None:
    panel.set_xticks(ratios, [f"{ratio:.3g}" for ratio in ratios])
    panel.minorticks_off()


def _frontier(made: Analysis) -> Any:
    """Compute over data for each threshold, and the best ratio over the budget."""
    figure, panels = _panels(3)
    costs = made.costs()
    sigma = np.array([ratio for ratio, _ in made.ratios])
    grid = ratio_grid(sigma.tolist())
    inside = (grid >= sigma.min()) & (grid <= sigma.max())
    shades = pyplot().get_cmap("plasma")(np.linspace(0.0, 0.85, len(made.laws)))
    fixed, per_update = made.seconds
    for fitted, best, fast, shade in zip(made.laws, made.optima, made.fastest, shades, strict=True):
        data = fitted.law(grid, made.params)
        compute, seconds = costs.compute(grid, data), data * (fixed + per_update * grid)
        for panel, cost in ((panels[0], compute), (panels[1], seconds)):
            panel.plot(data, cost, color=shade, lw=0.6, ls=":")
            panel.plot(
                data[inside], cost[inside], color=shade, lw=1.4, label=f"{fitted.threshold:.0f}"
            )
        if not best.at_edge:
            panels[0].plot(best.data, best.compute, "*", color=shade, ms=9)
        if not fast.at_edge:
            panels[1].plot(fast.data, fast.budget, "*", color=shade, ms=9)
    panels[0].set(xscale="log", yscale="log", xlabel="env steps", ylabel="FLOPs")
    panels[0].set_title("frontier; star: least C + δ D")
    panels[1].set(
        xscale="log", yscale="log", xlabel="env steps", ylabel="seconds (all seeds together)"
    )
    panels[1].set_title("frontier in time; star: fastest")
    panels[1].legend(title="score", fontsize=7)
    best = [one for one in made.optima if not one.at_edge]
    panels[2].plot([one.budget for one in best], [one.sigma for one in best], "*", ms=8)
    if made.budget_law is not None:
        ends = np.geomspace(min(one.budget for one in best), max(one.budget for one in best), 50)
        law = made.budget_law.law
        label = f"{10 ** law.log10_at_one['']:.2g} F^{law.slope:.2f}"
        panels[2].plot(ends, [law("", budget) for budget in ends], lw=1.2, label=label)
        panels[2].legend(fontsize=8)
    panels[2].set(
        xscale="log", yscale="log", xlabel="budget F = C + δ D, FLOPs", ylabel="best ratio"
    )
    panels[2].set_title(f"δ = {made.delta:.2g}, N = {made.params:,.0f}")
    return figure


def _settings(made: Analysis) -> Any:
    fitted = [
        ("batch", "best batch size", made.batch_law),
        ("lr", "best learning rate", made.lr_law),
    ]
    fitted = [(name, label, law) for name, label, law in fitted if law is not None]
    figure, panels = _panels(len(fitted))
    for panel, (name, label, law) in zip(panels, fitted, strict=True):
        assert law is not None
        for place, task in enumerate(law.log10_at_one):
            points = [best for best in made.bests[name] if best.task == task]
            ratios = sorted({best.utd for best in points})
            colour = f"C{place % 10}"
            panel.plot(
                [b.utd for b in points], [b.value for b in points], "o", color=colour, label=task
            )
            size = made.params if law.size_slope else 1.0
            panel.plot(ratios, [law(task, ratio, size) for ratio in ratios], color=colour)
        panel.set(xscale="log", yscale="log", xlabel="updates per env step", ylabel=label)
        panel.set_title(f"ratio^{law.slope:.3f}")
        panel.legend(fontsize=8)
    return figure


def _learner(made: Analysis) -> Any:
    figure, panels = _panels(2)
    rows = sorted((row for row in made.crossings if row.on_law), key=lambda row: row.key.utd)
    names = {
        "overfitting": "TD loss, newest 1 % minus all rows",
        "parameter_norm": "norm of the critic's parameters",
    }
    for panel, (name, label) in zip(panels, names.items(), strict=True):
        groups: dict[tuple[str, int], list[Crossings]] = {}
        for row in rows:
            groups.setdefault((row.key.task, row.key.params), []).append(row)
        for (task, params), members in groups.items():
            x, y = [row.key.utd for row in members], [getattr(row, name) for row in members]
            panel.plot(x, y, "o-", label=f"{task}, {params:,} parameters")
        panel.set(xscale="log", xlabel="updates per env step", ylabel=label)
        _plain_ticks(panel, sorted({row.key.utd for row in rows}))
    panels[0].legend(fontsize=8)
    return figure
