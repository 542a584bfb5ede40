"""What the studies share: runs that are trained once and read again, their curves as numbers, and pictures of them."""

from __future__ import annotations

import os
import signal
import statistics
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from fleetfoot.api import resume, train
from fleetfoot.config import to_json
from fleetfoot.errors import UserError
from fleetfoot.extras import install_line
from fleetfoot.log import LogConfig, curve
from fleetfoot.log.meter import EVAL_RETURN
from fleetfoot.log.sinks import read_lines
from fleetfoot.recipe import Recipe, Result
from fleetfoot.run.folder import has_checkpoint, is_run, read_recipe

BESIDES = ("length", "error_velocity", "error_yaw")  # what else an evaluation tells, where it does
AXES = {"train_seconds": "seconds of training", "env_steps": "environment steps"}


def trained(recipe: Recipe, folder: Path) -> Path:
    """The folder, with a run in it: one that is there already stays, one without a checkpoint begins again."""
    if is_run(folder) and not has_checkpoint(folder):
        resume(folder, restart=True)
    elif not folder.exists():
        train(recipe, folder)
    return folder


def finished(folder: Path) -> Path:
    """The same folder; a `UserError` where its run was stopped."""
    lines = read_lines(folder / "metrics.jsonl")
    if not lines or lines[-1]["vec_steps"] < read_recipe(folder).total_vec_steps:
        raise UserError(f"{folder} holds a run that was stopped: resume it, or delete it.")
    return folder


def points(folder: Path) -> dict[str, list[float]]:
    """The evaluations of a run, as columns."""
    num_envs = read_recipe(folder).num_envs
    evaluations = curve(folder)
    lines = [line for line in read_lines(folder / "metrics.jsonl") if EVAL_RETURN in line]
    besides = [name for name in BESIDES if lines and all(f"eval/{name}" in line for line in lines)]
    return {
        "vec_steps": [point.vec_steps for point in evaluations],
        "env_steps": [point.vec_steps * num_envs for point in evaluations],
        "train_seconds": [round(point.train_seconds, 2) for point in evaluations],
        "return": [round(point.value, 2) for point in evaluations],
        **{name: [round(line[f"eval/{name}"], 3) for line in lines] for name in besides},
    }


def train_until(recipe: Recipe, folder: Path, enough: Callable[[], bool]) -> Result:
    """Train, and stop as by Ctrl-C as soon as `enough()`, which is asked a few times per second."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.2):
            if (folder / "metrics.jsonl").exists() and enough():
                return os.kill(os.getpid(), signal.SIGINT)

    watcher = threading.Thread(target=watch, daemon=True)
    # A signal that comes when the run has just ended meets this handler, and does nothing.
    before = signal.signal(signal.SIGINT, lambda number, frame: None)
    try:
        watcher.start()
        return train(recipe, folder)
    finally:
        ended.set()
        watcher.join()
        signal.signal(signal.SIGINT, before)


def scaling_study(
    base: Recipe,
    sizes: Sequence[int],
    seeds: Sequence[int],
    runs: Path,
    sized: Callable[[int], Recipe],
    facts: Callable[[int, Recipe], dict[str, Any]],
) -> Iterator[dict[str, Any]]:
    """Train `sized(size)` with every seed. What was measured so far, after each size."""
    quiet = LogConfig(every_vec_steps=50, tensorboard=False, console=False)
    rows: list[dict[str, Any]] = []
    for size in sizes:
        recipe = replace(sized(size), log=quiet)
        by_seed = {}
        for seed in seeds:
            folder = trained(replace(recipe, seed=seed), runs / f"{size}-seed{seed}")
            by_seed[str(seed)] = points(finished(folder))
            print(size, seed, by_seed[str(seed)]["return"], flush=True)
        final = [columns["return"][-1] for columns in by_seed.values()]
        best = [max(columns["return"]) for columns in by_seed.values()]
        rows.append(
            {
                **facts(size, recipe),
                "num_envs": recipe.num_envs,
                "by_seed": by_seed,
                "final_return_mean": statistics.mean(final),
                "best_return_mean": statistics.mean(best),
            }
        )
        yield {"load_after": load(), "recipe": to_json(base), "rows": rows}


def load() -> float | None:
    """Processes that want to run, on average over the last minute."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def draw_scaling(
    rows: list[dict[str, Any]], path: Path, what: str, label: str, *, of_each: bool = False
) -> None:
    """Return over vec steps, a colour for each number of `what`; `of_each`: over the vec steps of each of them."""
    with picture(path, size=(6, 3.2)) as (_, (panel,)):
        for number, row in enumerate(rows):
            for first, columns in enumerate(row["by_seed"].values()):
                name = None if first else f"{row[what]} {what}"
                steps = [x / row[what] if of_each else x for x in columns["vec_steps"]]
                panel.plot(steps, columns["return"], color=f"C{number}", label=name)
        panel.set_xlabel(label)
        panel.set_ylabel("greedy return")
        panel.legend()


def draw_variants(variants: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """Return over time and over environment steps: of each variant the mean over its seeds, and each in a thin line."""
    with picture(path, panels=2, size=(9, 3.4), sharey=True) as (figure, panels):
        for number, (label, seeds) in enumerate(variants.items()):
            for panel, axis in zip(panels, AXES, strict=True):
                for columns in seeds:
                    panel.plot(
                        columns[axis], columns["return"], color=f"C{number}", lw=0.6, alpha=0.5
                    )
                mean_x, mean_y = (_mean_of(seeds, name) for name in (axis, "return"))
                panel.plot(mean_x, mean_y, color=f"C{number}", lw=2, label=label)
        for panel, label in zip(panels, AXES.values(), strict=True):
            panel.set_xlabel(label)
        lengths = {columns["env_steps"][-1] for seeds in variants.values() for columns in seeds}
        if max(lengths) > 10 * min(lengths):
            panels[1].set_xscale("log")
        else:
            from matplotlib.ticker import EngFormatter

            panels[1].xaxis.set_major_formatter(EngFormatter(sep=""))  # 200k, 20M
        panels[0].set_xlim(left=0)
        panels[0].set_ylabel("evaluation return")
        handles = panels[0].get_legend_handles_labels()
        figure.legend(*handles, loc="outside right center", frameon=False)


def _mean_of(seeds: list[dict[str, Any]], name: str) -> list[float]:
    return [statistics.mean(at) for at in zip(*(columns[name] for columns in seeds), strict=True)]


@contextmanager
def picture(
    path: Path, *, panels: int = 1, size: tuple[float, float], **options: Any
) -> Iterator[tuple[Any, list[Any]]]:
    """A matplotlib figure and its panels, in a row, to draw into; written to `path` at the end."""
    try:
        import matplotlib
    except ImportError as error:
        raise UserError(f"a picture needs matplotlib: {install_line('plot')}") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, grid = pyplot.subplots(
        1, panels, figsize=size, layout="constrained", squeeze=False, **options
    )
    for panel in grid[0]:
        panel.grid(alpha=0.3)
    yield figure, list(grid[0])
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
