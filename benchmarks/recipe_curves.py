"""Train a recipe with several seeds and keep its learning curves as JSON and PNG.

python benchmarks/recipe_curves.py fast_td3/halfcheetah --seeds 0 1 2

Runs lie in runs/curves/; one that is there already is read, not trained again. One that was trained on another machine
is read with `--made-with`, a JSON file that says what it was made with. `--published MINUTES:RETURN ...` draws what
others have published beside it, over steps with `--over steps` and STEPS:RETURN. Of a set of tasks each has its line;
what is published of one is TASK=STEPS:RETURN.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

from fleetfoot import recipes, train
from fleetfoot.bench.provenance import provenance
from fleetfoot.config import to_json
from fleetfoot.log import curve
from fleetfoot.log.meter import EVAL_RETURN
from fleetfoot.log.sinks import read_lines
from fleetfoot.run.folder import read_recipe

RESULTS = Path(__file__).parent / "results"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("recipe")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--runs", type=Path, default=Path("runs/curves"))
    parser.add_argument("--picture", type=Path, help="PNG to draw (needs matplotlib)")
    parser.add_argument("--made-with", type=Path, help="provenance of runs made elsewhere (JSON)")
    parser.add_argument("--published", nargs="+", default=[], metavar="MINUTES:RETURN")
    parser.add_argument("--over", choices=["minutes", "steps"], default="minutes")
    parser.add_argument("--published-label", default="published")
    args = parser.parse_args()
    recipe = recipes.get(args.recipe)
    about = json.loads(args.made_with.read_text()) if args.made_with else provenance()
    label = args.recipe.replace("/", "-")
    seeds, trained = [], recipe
    for seed in args.seeds:
        folder = args.runs / f"{label}-seed{seed}"
        if not folder.exists():
            train(replace(recipe, seed=seed), folder)
        trained = read_recipe(folder)  # shorter or longer than the named one, perhaps
        points = curve(folder)
        seeds.append(
            {
                "seed": seed,
                "vec_steps": [p.vec_steps for p in points],
                "env_steps": [p.vec_steps * trained.num_envs for p in points],
                "train_seconds": [round(p.train_seconds, 1) for p in points],
                "return": [round(p.value, 1) for p in points],
                **times(folder),
            }
        )
    result: dict[str, Any] = {
        "recipe": to_json(trained),
        "seeds": seeds,
        "final_return_mean": statistics.mean(s["return"][-1] for s in seeds),
        "train_seconds_mean": statistics.mean(s["train_seconds"][-1] for s in seeds),
        "made_with": about,
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"curve-{label}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(
        f"{args.recipe}: final return {result['final_return_mean']:,.0f} over {len(seeds)} seeds, ",
        end="",
    )
    print(f"{result['train_seconds_mean']:.0f} s of training each; written to {path}")
    if args.picture is not None:
        if args.published:
            draw_beside(args, seeds, about["hardware"]["gpus"])
        else:
            draw(args.recipe, seeds, args.picture)


def times(folder: Path) -> dict[str, Any]:
    """What does not count as training, and where the time of a vec step went, as means over the run."""
    lines = read_lines(folder / "metrics.jsonl")
    seen: dict[str, list[float]] = {}
    for line in lines:
        for name, value in line.items():
            if name.startswith("time/"):
                seen.setdefault(name.removeprefix("time/"), []).append(value)
    apart = {
        "compile_seconds": round(seen.pop("compile_s", [0.0])[-1], 1),  # of the last process
        "evaluate_seconds": [round(value, 1) for value in seen.pop("evaluate_s", [])],
    }
    split = {name: round(statistics.mean(values), 3) for name, values in seen.items()}
    evaluated = [line for line in lines if EVAL_RETURN in line]
    tasks = [name for name in evaluated[0] if name.startswith(f"{EVAL_RETURN}/")]
    return {
        "return_std": [round(line["eval/return_std"], 1) for line in evaluated],
        **apart,
        "time_split": split,
        "tasks": {
            name.removeprefix(f"{EVAL_RETURN}/"): [round(line[name], 1) for line in evaluated]
            for name in tasks
        },
        "ended": {name: lines[-1][name] for name in ("vec_steps", "updates", "train_seconds")},
    }


def draw_beside(args: argparse.Namespace, seeds: list[dict[str, Any]], gpus: list[str]) -> None:
    """Return over minutes of training or over steps, ours and what others have published."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panel = pyplot.subplots(figsize=(7, 3.6))
    where = f" ({gpus[0]})" if gpus else ""
    colours: dict[str, Any] = {}
    highest = 0.0
    for entry in seeds:
        x = [seconds / 60 for seconds in entry["train_seconds"]]
        if args.over == "steps":
            x = [steps / 1_000 for steps in entry["vec_steps"]]
        lines = {f"{task}, seed {entry['seed']}{where}": y for task, y in entry["tasks"].items()}
        for label, y in (lines or {f"seed {entry['seed']}{where}": entry["return"]}).items():
            (line,) = panel.plot(x, y, marker="o", ms=4, label=label)
            colours[label.split(",")[0]] = line.get_color()
            highest = max(highest, *y)
    for task, points in published(args.published, args.over).items():
        colour = colours.get(task, "gray")
        label = f"{task}, {args.published_label}" if task else args.published_label
        panel.plot(*zip(*points, strict=True), "s--", color=colour, ms=5, lw=1, label=label)
        highest = max(highest, *(y for _, y in points))
    over_steps = "thousand steps of each environment"
    panel.set_xlabel("minutes of training" if args.over == "minutes" else over_steps)
    panel.set_ylabel("evaluation return")
    panel.set_xlim(left=0)
    panel.set_ylim(0, 1.1 * highest)
    panel.grid(alpha=0.3)
    panel.legend(frameon=False, fontsize=8)
    figure.suptitle(args.recipe)
    figure.tight_layout()
    args.picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(args.picture, dpi=130)


def published(given: list[str], over: str) -> dict[str, list[tuple[float, float]]]:
    """Of each task, or of "", the points to draw."""
    found: dict[str, list[tuple[float, float]]] = {}
    for point in given:
        task, _, numbers = point.rpartition("=")
        x, y = map(float, numbers.split(":"))
        found.setdefault(task, []).append((x / 1_000 if over == "steps" else x, y))
    return found


def draw(name: str, seeds: list[dict[str, Any]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 2, figsize=(9, 3.2), sharey=True)
    for panel, axis, label in zip(
        panels,
        ("train_seconds", "env_steps"),
        ("seconds of training", "environment steps"),
        strict=True,
    ):
        for entry in seeds:
            panel.plot(
                entry[axis], entry["return"], marker="o", ms=3, label=f"seed {entry['seed']}"
            )
        panel.set_xlabel(label)
        panel.grid(alpha=0.3)
        panel.set_xlim(left=0)
        panel.locator_params(axis="x", nbins=5)
    panels[0].set_ylabel("evaluation return")
    panels[0].legend(frameon=False)
    figure.suptitle(name)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    main()
