"""Train a recipe with several seeds and keep its learning curves as JSON and PNG.

python benchmarks/recipe_curves.py fast_td3/halfcheetah --seeds 0 1 2

Runs lie in runs/curves/; one that is there already is read, not trained again.
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
from fleetfoot.log import curve
from fleetfoot.part import to_json

RESULTS = Path(__file__).parent / "results"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("recipe")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--runs", type=Path, default=Path("runs/curves"))
    parser.add_argument("--picture", type=Path, help="PNG to draw (needs matplotlib)")
    args = parser.parse_args()
    recipe = recipes.get(args.recipe)
    about = provenance()
    label = args.recipe.replace("/", "-")
    seeds = []
    for seed in args.seeds:
        folder = args.runs / f"{label}-seed{seed}"
        if not folder.exists():
            train(replace(recipe, seed=seed), folder)
        points = curve(folder)
        seeds.append(
            {
                "seed": seed,
                "vec_steps": [p.vec_steps for p in points],
                "env_steps": [p.vec_steps * recipe.num_envs for p in points],
                "train_seconds": [round(p.train_seconds, 1) for p in points],
                "return": [round(p.value, 1) for p in points],
            }
        )
    result: dict[str, Any] = {
        "recipe": to_json(recipe),
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
        draw(args.recipe, seeds, args.picture)


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
