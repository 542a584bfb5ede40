"""Figures of a comparison."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fleetfoot.compare.comparison import AXES, Axis, Comparison, Group
from fleetfoot.compare.intervals import Estimate

LABELS: dict[Axis, str] = {
    "env_steps": "environment steps",
    "train_seconds": "seconds of training",
}
STYLES = ("-", "--", ":", "-.")  # change after ten groups, when the colours repeat
DPI = 130


def draw(made: Comparison, folder: Path) -> list[Path]:
    """curves.png and scores.png, and tasks.png where there are several tasks."""
    import matplotlib

    matplotlib.use("Agg")
    paths = [_save(_curves(made), folder / "curves.png")]
    paths.append(_save(_scores(made), folder / "scores.png"))
    if len(made.tasks) > 1:
        paths.append(_save(_tasks(made), folder / "tasks.png"))
    else:  # that of an earlier comparison
        (folder / "tasks.png").unlink(missing_ok=True)
    return paths


def _save(figure: Any, path: Path) -> Path:
    from matplotlib import pyplot

    # Without the version of matplotlib, so that the bytes do not depend on it.
    figure.savefig(path, dpi=DPI, metadata={"Software": None})
    pyplot.close(figure)
    return path


def _style(place: int) -> dict[str, Any]:
    return {"color": f"C{place % 10}", "ls": STYLES[place // 10 % len(STYLES)]}


def _score_name(made: Comparison) -> str:
    metrics = {task.metric for task in made.tasks.values()}
    if metrics == {"success"}:
        return "success rate"
    return "score" if made.normalised else "return"


def _curves(made: Comparison) -> Any:
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
    for panel, axis in zip(panels, AXES, strict=True):
        for place, group in enumerate(made.groups):
            curve = group.curves.get(axis)
            if curve is None:
                continue
            x, style = _scaled(axis, curve.x, made), _style(place)
            panel.plot(x, curve.y, label=group.name, marker="o", ms=_dot(curve.x), **style)
            if curve.low is not None:
                panel.fill_between(x, curve.low, curve.high, color=style["color"], alpha=0.18, lw=0)
        _finish(panel, axis, made)
    panels[0].set_ylabel(f"{_score_name(made)} (IQM, 95 %)")
    _legend(figure, panels[0], len(made.groups))
    return figure


def _dot(x: Sequence[float]) -> float:
    return 3.0 if len(x) <= 30 else 0.0


def _tasks(made: Comparison) -> Any:
    """Each run as a thin line and the mean of each group as a thick one, over environment steps."""
    from matplotlib import pyplot

    wide = min(4, len(made.tasks))
    high = -(-len(made.tasks) // wide)
    size = (max(9.0, 2.6 * wide), 2.4 * high + 0.6)
    figure, panels = pyplot.subplots(
        high, wide, figsize=size, squeeze=False, sharey=True, layout="constrained"
    )
    for panel, task in zip(panels.flat, made.tasks, strict=False):
        for place, group in enumerate(made.groups):
            lines, style = group.task_curves[task]["env_steps"], _style(place)
            for line in lines:
                panel.plot(_scaled("env_steps", line.x, made), line.y, lw=0.7, alpha=0.4, **style)
            x = np.unique(np.concatenate([line.x for line in lines]))
            x = x[(x >= max(line.x[0] for line in lines)) & (x <= min(li.x[-1] for li in lines))]
            y = np.mean([np.interp(x, line.x, line.y) for line in lines], axis=0)
            panel.plot(_scaled("env_steps", x.tolist(), made), y, label=group.name, **style)
        panel.set_title(task, fontsize="medium")
        _finish(panel, "env_steps", made)
    for panel in panels.flat[len(made.tasks) :]:
        panel.set_axis_off()
    for row in panels:
        row[0].set_ylabel(_score_name(made))
    _legend(figure, panels.flat[0], len(made.groups))
    return figure


def _scaled(axis: Axis, x: Sequence[float], made: Comparison) -> list[float]:
    """In minutes where a run is long."""
    return [value / 60 for value in x] if axis == "train_seconds" and _long(made) else list(x)


def _long(made: Comparison) -> bool:
    curves = [group.curves.get("train_seconds") for group in made.groups]
    return max((curve.x[-1] for curve in curves if curve is not None), default=0.0) > 600


def _finish(panel: Any, axis: Axis, made: Comparison) -> None:
    from matplotlib.ticker import EngFormatter

    label = LABELS[axis]
    if axis == "train_seconds" and _long(made):
        label = label.replace("seconds", "minutes")
    panel.set_xlabel(label)
    panel.set_xlim(left=0)
    panel.grid(alpha=0.3)
    panel.locator_params(axis="x", nbins=5)
    if axis == "env_steps":
        panel.xaxis.set_major_formatter(EngFormatter(sep=""))


def _legend(figure: Any, panel: Any, groups: int) -> None:
    handles, labels = panel.get_legend_handles_labels()
    columns = max(1, min(groups, 100 // (max(map(len, labels), default=1) + 6)))
    figure.legend(handles, labels, loc="outside lower center", ncols=min(columns, 5), frameon=False)


def _scores(made: Comparison) -> Any:
    """One row per group: the interval as a bar, the estimate as a line across it."""
    from matplotlib import pyplot

    versus = made.baseline
    columns: list[tuple[str, Callable[[Group], Estimate | None]]] = [
        (f"{_score_name(made)} (IQM)", lambda group: group.iqm)
    ]
    if made.normalised:
        columns.append(("optimality gap", lambda group: group.optimality_gap))
    if len(made.groups) > 1:
        columns.append((f"P(better than {versus})", lambda group: group.improvement))
    size = (9, 0.42 * len(made.groups) + 1.0)
    figure, panels = pyplot.subplots(
        1, len(columns), figsize=size, squeeze=False, sharey=True, layout="constrained"
    )
    for panel, (title, pick) in zip(panels.flat, columns, strict=True):
        for place, group in enumerate(made.groups):
            estimate = pick(group)
            if estimate is None:
                continue
            if estimate.interval is not None:
                low, high = estimate.interval
                panel.barh(place, high - low, 0.6, left=low, color=f"C{place % 10}", alpha=0.6)
            panel.vlines(estimate.value, place - 0.3, place + 0.3, color="black", lw=1.6)
        panel.set_title(title, fontsize="medium")
        panel.grid(axis="x", alpha=0.3)
        panel.locator_params(axis="x", nbins=5)
        panel.use_sticky_edges = False  # otherwise bars have no margin at their left end
        panel.margins(x=0.08)
        for side in ("top", "right", "left"):
            panel.spines[side].set_visible(False)
        panel.tick_params(axis="y", length=0)
        panel.set_axisbelow(True)
        if title.startswith("P("):
            panel.set_xlim(-0.03, 1.03)
            panel.axvline(0.5, color="gray", lw=1, ls="--")
    first = panels.flat[0]
    first.set_yticks(range(len(made.groups)), [group.name for group in made.groups])
    first.set_ylim(len(made.groups) - 0.5, -0.5)  # the first on top
    return figure
