"""What the studies of scaling share: runs of several sizes and seeds, their curves as JSON, and a picture."""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from fleetfoot.api import resume, train
from fleetfoot.bench.provenance import provenance
from fleetfoot.config import to_json
from fleetfoot.log import LogConfig, curve
from fleetfoot.recipe import Recipe
from fleetfoot.run.folder import has_checkpoint, is_run

RESULTS = Path(__file__).parent / "results"
QUIET = LogConfig(every_vec_steps=50, tensorboard=False, console=False)


def arguments(
    about: str | None, name: str, recipe: str, seeds: list[int]
) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--recipe", default=recipe)
    parser.add_argument("--seeds", type=int, nargs="+", default=seeds)
    parser.add_argument("--runs", type=Path, default=Path("runs") / name.replace("-", "_"))
    parser.add_argument("--out", type=Path, default=RESULTS / f"{name}.json")
    parser.add_argument("--picture", type=Path, help="PNG to draw (needs matplotlib)")
    return parser


def study(
    args: argparse.Namespace,
    base: Recipe,
    sizes: list[int],
    sized: Callable[[int], Recipe],
    facts: Callable[[int, Recipe], dict[str, Any]],
) -> list[dict[str, Any]]:
    """Train `sized(size)` with every seed, and write the curves. A run that is there already is read, one that was
    broken off begins again."""
    about, rows = provenance(), []
    for size in sizes:
        recipe = replace(sized(size), log=QUIET)
        curves = []
        for seed in args.seeds:
            folder = args.runs / f"{size}-seed{seed}"
            if is_run(folder) and not has_checkpoint(folder):
                resume(folder, restart=True)
            elif not folder.exists():
                train(replace(recipe, seed=seed), folder)
            points = curve(folder)  # an evaluation that comes while another runs is left out
            found = {
                "vec_steps": [p.vec_steps for p in points],
                "train_seconds": [round(p.train_seconds, 1) for p in points],
                "return": [round(p.value, 1) for p in points],
            }
            curves.append(found)
            print(size, seed, found, flush=True)
        rows.append(
            {
                **facts(size, recipe),
                "num_envs": recipe.num_envs,
                "by_seed": dict(zip(map(str, args.seeds), curves, strict=True)),
                "final_return_mean": statistics.mean(c["return"][-1] for c in curves),
                "best_return_mean": statistics.mean(max(c["return"]) for c in curves),
            }
        )
    load_after = provenance()["hardware"]["load_before"]
    result = {"made_with": about, "load_after": load_after, "recipe": to_json(base), "rows": rows}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(result, indent=1) + "\n")
    return rows


def draw(
    rows: list[dict[str, Any]], path: Path, what: str, label: str, shared: bool = False
) -> None:
    """Return over vec steps, a colour for each number of `what`; `shared`: of each of them, and not of all together."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 3.2), layout="constrained")
    for number, row in enumerate(rows):
        for one, found in enumerate(row["by_seed"].values()):
            name = None if one else f"{row[what]} {what}"
            steps = [x / row[what] if shared else x for x in found["vec_steps"]]
            axes.plot(steps, found["return"], color=f"C{number}", label=name)
    axes.set_xlabel(label)
    axes.set_ylabel("greedy return")
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
