"""Learning curves of a recipe with several seeds, and a picture of them, beside what others have published."""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import tyro

from benchmarks.curves import draw_variants, points, trained
from benchmarks.curves import picture as new_picture
from fleetfoot import recipes
from fleetfoot.config import to_json
from fleetfoot.errors import UserError
from fleetfoot.log.meter import EVAL_RETURN
from fleetfoot.log.sinks import read_lines
from fleetfoot.run.folder import read_recipe


def recipe_curves(
    recipe: tyro.conf.Positional[str],
    seeds: tuple[int, ...] = (0, 1, 2),
    runs: Path = Path("runs/curves"),
    made_with: Path | None = None,
    picture: Path | None = None,
    published: tuple[str, ...] = (),
    published_label: str = "published",
    over: Literal["minutes", "steps"] = "minutes",
) -> dict[str, Any]:
    """Train a recipe with several seeds and collect its learning curves.

    :param recipe: Its name.
    :param seeds: One run each.
    :param runs: Folder of the runs, RECIPE-seedK; one that is there already is read, not trained again.
    :param made_with: Provenance (JSON) of runs that were made on another machine.
    :param picture: PNG to draw (needs matplotlib).
    :param published: Points of others: MINUTES:RETURN, STEPS:RETURN or, of one of several tasks, TASK=STEPS:RETURN.
    :param published_label: What to call them.
    :param over: The axis of a picture with published points.
    """
    others = read_published(published, over)
    label = recipe.replace("/", "-")
    curves, stored = [], recipes.get(recipe)
    for seed in seeds:
        folder = trained(replace(stored, seed=seed), runs / f"{label}-seed{seed}")
        curves.append({"seed": seed, **points(folder), **times(folder)})
        stored = read_recipe(folder)  # shorter or longer than the named one, perhaps
    result: dict[str, Any] = {
        "recipe_name": recipe,
        "final_return_mean": statistics.mean(curve["return"][-1] for curve in curves),
        "train_seconds_mean": statistics.mean(curve["train_seconds"][-1] for curve in curves),
        "seeds": curves,
        "recipe": to_json(stored),
    }
    if made_with is not None:
        result["made_with"] = json.loads(made_with.read_text())
    if picture is not None and others:
        draw_beside(recipe, curves, Published(published_label, over, others), picture)
    elif picture is not None:
        draw_variants({f"seed {curve['seed']}": [curve] for curve in curves}, picture)
    return result


def times(folder: Path) -> dict[str, Any]:
    """What does not count as training, and where the time of a vec step went, as means over the run."""
    lines = read_lines(folder / "metrics.jsonl")
    logged: dict[str, list[float]] = {}
    for line in lines:
        for name, value in line.items():
            if name.startswith("time/"):
                logged.setdefault(name.removeprefix("time/"), []).append(value)
    apart = {
        "compile_seconds": round(logged.pop("compile_s", [0.0])[-1], 1),  # of the last process
        "evaluate_seconds": [round(value, 1) for value in logged.pop("evaluate_s", [])],
    }
    evaluated = [line for line in lines if EVAL_RETURN in line]
    tasks = [name for name in evaluated[0] if name.startswith(f"{EVAL_RETURN}/")]
    return {
        "return_std": [round(line["eval/return_std"], 1) for line in evaluated],
        **apart,
        "time_split": {name: round(statistics.mean(values), 3) for name, values in logged.items()},
        "tasks": {
            name.removeprefix(f"{EVAL_RETURN}/"): [round(line[name], 1) for line in evaluated]
            for name in tasks
        },
        "ended": {name: lines[-1][name] for name in ("vec_steps", "updates", "train_seconds")},
    }


@dataclass(frozen=True)
class Published:
    """What others report: a task, or "" for the only one, to its points in units of the axis."""

    label: str
    over: Literal["minutes", "steps"]
    points: dict[str, list[tuple[float, float]]]


def read_published(given: tuple[str, ...], over: str) -> dict[str, list[tuple[float, float]]]:
    """The points of each task; steps in thousands."""
    by_task: dict[str, list[tuple[float, float]]] = {}
    for point in given:
        task, _, numbers = point.rpartition("=")
        try:
            x, y = map(float, numbers.split(":"))
        except ValueError:
            raise UserError(f"--published needs points such as 12.5:300, not {point!r}.") from None
        by_task.setdefault(task, []).append((x / 1_000 if over == "steps" else x, y))
    return by_task


def draw_beside(recipe: str, curves: list[dict[str, Any]], others: Published, path: Path) -> None:
    """Return over minutes of training or over steps, ours and what others have published."""
    with new_picture(path, size=(7, 3.6)) as (figure, (panel,)):
        colours: dict[str, Any] = {}
        highest = 0.0
        for curve in curves:
            x = [seconds / 60 for seconds in curve["train_seconds"]]
            if others.over == "steps":
                x = [steps / 1_000 for steps in curve["vec_steps"]]
            for task, y in (curve["tasks"] or {"": curve["return"]}).items():
                label = f"{task}, seed {curve['seed']}".removeprefix(", ")
                (line,) = panel.plot(x, y, marker="o", ms=4, label=label)
                colours[task] = line.get_color()
                highest = max(highest, *y)
        for task, points_of_task in others.points.items():
            label = f"{task}, {others.label}".removeprefix(", ")
            colour = colours.get(task, "gray") if task else "gray"
            panel.plot(
                *zip(*points_of_task, strict=True), "s--", color=colour, ms=5, lw=1, label=label
            )
            highest = max(highest, *(value for _, value in points_of_task))
        over_steps = "thousand steps of each environment"
        panel.set_xlabel("minutes of training" if others.over == "minutes" else over_steps)
        panel.set_ylabel("evaluation return")
        panel.set_xlim(left=0)
        panel.set_ylim(0, 1.1 * highest)
        panel.legend(frameon=False, fontsize=8)
        figure.suptitle(recipe)
