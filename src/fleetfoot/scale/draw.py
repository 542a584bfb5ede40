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
from fleetfoot.scale.frontier import Optimum
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


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def _ticker() -> Any:
    from matplotlib import ticker

    return ticker


def _save(figure: Any, path: Path) -> Path:
    with writing(path):
        figure.savefig(path, dpi=DPI, metadata={"Software": None})
    _pyplot().close(figure)
    return path


def _panels(count: int) -> tuple[Any, Sequence[Any]]:
    figure, panels = _pyplot().subplots(
        1, count, figsize=(4.5 * count, 3.6), squeeze=False, layout="constrained"
    )
    return figure, list(panels[0])


def _colours(made: Analysis) -> dict[float, Any]:
    ratios = sorted({row.key.utd for row in made.crossings})
    shades = _pyplot().get_cmap("viridis")(np.linspace(0.0, 0.85, len(ratios)))
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
            panel.plot(x, curves.isotonic(one.mean), label=f"{key.utd:.3g}{size}", **style)
        for fitted in made.laws:
            panel.axhline(low + fitted.threshold / SCALE * (high - low), color="gray", lw=0.4)
        panel.set_title(task)
        panel.set_xlabel("environment steps")
    panels[0].set_ylabel("return, mean over seeds (thick: isotonic)")
    panels[-1].legend(title="updates per env step", fontsize=8)
    return figure


def _laws(made: Analysis) -> Any:
    """Data over ratio, one line for each threshold, or for each size at the highest; on the right what a law of the
    smaller ratios says about the largest."""
    figure, panels = _panels(2 if made.held_out else 1)
    sigma = np.array([ratio for ratio, _ in made.ratios])
    sizes = np.array([size for _, size in made.ratios])
    grid = np.geomspace(sigma.min() / 1.3, sigma.max() * 1.3, 200)
    if len(set(sizes.tolist())) > 1:
        top = made.laws[-1]
        lines = [
            (top, sizes == size, float(size), f"{size:,}") for size in sorted(set(sizes.tolist()))
        ]
        title = f"parameters (score {top.threshold:.0f})"
    else:
        lines = [
            (one, sizes > 0, made.params, f"{one.threshold:.0f}") for one in reversed(made.laws)
        ]
        title = "score"
    for (fitted, mine, size, label), shade in zip(lines, _shades(len(lines)), strict=True):
        panels[0].plot(sigma[mine], np.array(fitted.data)[mine], "o", color=shade, ms=4)
        panels[0].plot(grid, fitted.law(grid, size), color=shade, lw=1.2, label=label)
    panels[0].set(xlabel="updates per env step", ylabel="env steps until the score")
    _log_axes(panels[0])
    _plain_ticks(panels[0], sorted(set(sigma.tolist())))
    _legend(panels[0], title)
    middle = float(np.median([one.law.r2 for one in made.laws]))
    panels[0].set_title(f"data laws, median R² {middle:.3f}, lowest {made.r2:.3f}", fontsize=10)
    if made.held_out:
        _held_out(panels[1], made)
    return figure


def _held_out(panel: Any, made: Analysis) -> None:
    measured = [one.measured for one in made.held_out]
    predicted = [one.predicted for one in made.held_out]
    ends = np.array([min(measured + predicted) * 0.9, max(measured + predicted) * 1.1])
    panel.fill_between(ends, 0.75 * ends, 1.25 * ends, color="gray", alpha=0.15, lw=0)
    panel.plot(ends, ends, color="gray", lw=0.8)
    panel.plot(measured, predicted, "o", ms=4)
    panel.set(xlabel="measured env steps", ylabel="predicted from smaller ratios")
    panel.set_title(f"ratio {made.held_out[0].sigma:.3g} held out (band: 25 %)", fontsize=10)


def _legend(panel: Any, title: str) -> None:
    """Beside the panel, where it hides nothing."""
    place = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0), "borderaxespad": 0.2}
    panel.legend(title=title, fontsize=7, title_fontsize=7, frameon=False, **place)


def _shades(count: int) -> Any:
    return _pyplot().get_cmap("plasma")(np.linspace(0.85, 0.0, count))


def _plain_ticks(panel: Any, ratios: Sequence[float]) -> None:
    panel.set_xticks(ratios, [f"{ratio:.3g}" for ratio in ratios])
    panel.xaxis.set_minor_locator(_ticker().NullLocator())


def _log_axes(panel: Any) -> None:
    """Logarithmic, with numbers at 1, 2 and 5: a range of less than ten has hardly any otherwise."""
    panel.set(xscale="log", yscale="log")
    for axis in (panel.xaxis, panel.yaxis):
        axis.set_major_locator(_ticker().LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_major_formatter(
            _ticker().FuncFormatter(lambda x, _: f"{x:.3g}" if x < 1e3 or x >= 1e6 else f"{x:,.0f}")
        )
        axis.set_minor_formatter(_ticker().NullFormatter())


def _frontier(made: Analysis) -> Any:
    """Compute and time over data for each threshold, and the best ratio over the budget."""
    figure, panels = _panels(3)
    costs = made.costs()
    sigma = np.array([ratio for ratio, _ in made.ratios])
    grid = np.geomspace(sigma.min(), sigma.max(), 200)
    fixed, per_update = made.seconds
    marks = zip(
        made.laws[::-1], made.optima[::-1], made.fastest[::-1], _shades(len(made.laws)), strict=True
    )
    for fitted, best, fast, shade in marks:
        data = fitted.law(grid, made.params)
        seconds = data * (fixed + per_update * grid)
        panels[0].plot(data, costs.compute(grid, data), color=shade, lw=1.4)
        panels[1].plot(data, seconds, color=shade, lw=1.4, label=f"{fitted.threshold:.0f}")
        if not best.at_edge:
            panels[0].plot(best.data, best.compute, "*", color=shade, ms=9)
        if not fast.at_edge:
            panels[1].plot(fast.data, fast.budget, "*", color=shade, ms=9)
    panels[0].set(xlabel="env steps", ylabel="FLOPs")
    panels[0].set_title("compute and data; star: least C + δ D", fontsize=10)
    _legend(panels[1], "score")
    panels[1].set(xlabel="env steps", ylabel="seconds (all seeds together)")
    panels[1].set_title("time and data; star: fastest", fontsize=10)
    _best_ratios(panels[2], made)
    _log_axes(panels[0])
    _log_axes(panels[1])
    return figure


def _best_ratios(panel: Any, made: Analysis) -> None:
    trusted = [one for one in made.optima if one.trusted and not one.at_edge]
    panel.plot([one.budget for one in trusted], [one.sigma for one in trusted], "*", ms=8)
    if made.budget_law is not None:
        ends = np.geomspace(trusted[0].budget, trusted[-1].budget, 50)
        law = made.budget_law.law
        label = f"{10 ** law.log10_at_one['']:.2g} F^{law.slope:.2f}"
        panel.plot(ends, [law("", budget) for budget in ends], lw=1.2, label=label)
        panel.legend(fontsize=8)
    wide = bool(trusted) and trusted[-1].budget > 5 * trusted[0].budget
    panel.set(xlabel="budget F = C + δ D, FLOPs", ylabel="best ratio", ylim=_around(trusted))
    panel.set(xscale="log" if wide else "linear")
    panel.set_title(f"δ = {made.delta:.2g}, N = {made.params:,.0f}", fontsize=10)


def _around(optima: Sequence[Optimum]) -> tuple[float, float] | None:
    """At least a factor of four, so that small differences look small."""
    if not optima:
        return None
    low, high = min(one.sigma for one in optima), max(one.sigma for one in optima)
    return min(low * 0.8, math.sqrt(low * high) / 2), max(high * 1.25, math.sqrt(low * high) * 2)


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
            panel.plot(ratios, [law(task, ratio, made.params) for ratio in ratios], color=colour)
        panel.set(xlabel="updates per env step", ylabel=label)
        _log_axes(panel)
        _plain_ticks(panel, sorted({best.utd for best in made.bests[name]}))
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
