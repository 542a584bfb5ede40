"""The studies of PQL's paper in small: what batch size, environments and ratios, exploration noise and replay size do.

    python benchmarks/pql_studies.py batch --seeds 0 1 --plot docs/images/pql-batch.png
    python benchmarks/pql_studies.py envs
    python benchmarks/pql_studies.py noise
    python benchmarks/pql_studies.py buffer
    python benchmarks/pql_studies.py batch --recipe pql/pendulum-published --device cuda

Values are multiples of those of the recipe, so that a larger recipe is a larger study. Runs lie in runs/pql_studies/;
one that is there already is read, not trained again. `--redraw` draws a JSON that was made on another machine.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from fleetfoot import recipes, train
from fleetfoot.agents.ddpg import DDPGConfig
from fleetfoot.bench.provenance import provenance
from fleetfoot.checkpoint import CheckpointConfig
from fleetfoot.config import to_json
from fleetfoot.explore import NoiseLadderConfig
from fleetfoot.log import LogConfig, curve
from fleetfoot.log.sinks import read_lines
from fleetfoot.recipe import Recipe

RESULTS = Path(__file__).parent / "results"
Variants = dict[str, Recipe]


def batch(base: Recipe) -> Variants:
    sizes = (base.batch_size // 4, base.batch_size, 4 * base.batch_size)
    return {f"batch {rows:,}": replace(base, batch_size=rows) for rows in sizes}


def envs(base: Recipe) -> Variants:
    """Ratios are written as in the paper: vec steps to critic updates, then policy updates to critic updates."""
    found: Variants = {}
    for num_envs in (base.num_envs // 4, base.num_envs, 4 * base.num_envs):
        for updates in (2, 8):
            pace = replace(base.pace, updates_per_vec_step=float(updates))
            recipe = replace(base, num_envs=num_envs, pace=pace)
            found[f"{num_envs:,} envs, a:v 1:{updates}, p:v 1:2"] = recipe
    assert isinstance(base.agent, DDPGConfig)
    for every in (1, 4):
        agent = replace(base.agent, policy_every=every)
        found[f"{base.num_envs:,} envs, a:v 1:8, p:v 1:{every}"] = replace(base, agent=agent)
    return found


def noise(base: Recipe) -> Variants:
    assert isinstance(base.explorer, NoiseLadderConfig)
    ladder = base.explorer
    found = {f"mixed {ladder.std_min:g} to {ladder.std_max:g}": base}
    for std in (0.2, 0.4, 0.6, 0.8):
        found[f"constant {std:g}"] = replace(
            base, explorer=replace(ladder, std_min=std, std_max=std)
        )
    return found


def buffer(base: Recipe) -> Variants:
    sizes = (base.replay.capacity // 40, base.replay.capacity // 8, base.replay.capacity)
    return {
        f"{rows:,} transitions": replace(base, replay=replace(base.replay, capacity=rows))
        for rows in sizes
    }


STUDIES: dict[str, Callable[[Recipe], Variants]] = {
    "batch": batch,
    "envs": envs,
    "noise": noise,
    "buffer": buffer,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("study", choices=STUDIES)
    parser.add_argument("--recipe", default="pql/pendulum", help="of DDPG under split_learners")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--vec-steps", type=int, default=600)
    parser.add_argument("--evaluations", type=int, default=10)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--runs", type=Path, default=Path("runs/pql_studies"))
    parser.add_argument("--out", type=Path, help="JSON; results/pql-STUDY.json unless told")
    parser.add_argument("--plot", type=Path, help="PNG to draw (needs matplotlib)")
    parser.add_argument("--redraw", action="store_true", help="draw --out as it is, run nothing")
    args = parser.parse_args()
    out: Path = args.out or RESULTS / f"pql-{args.study}.json"
    if not args.redraw:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(study(args), indent=1) + "\n")
    result = json.loads(out.read_text())
    print(table(result))
    if args.plot is not None:
        draw(result, args.plot)


def base_of(args: argparse.Namespace) -> Recipe:
    every = max(1, args.vec_steps // args.evaluations)
    named = recipes.get(args.recipe)
    return replace(
        named,
        total_vec_steps=args.vec_steps,
        evaluation=replace(named.evaluation, every_vec_steps=every),
        log=LogConfig(every_vec_steps=every, tensorboard=False, console=False),
        checkpoint=CheckpointConfig(every_vec_steps=0, replay=False),
        device=args.device,
    )


def study(args: argparse.Namespace) -> dict[str, Any]:
    about, rows = provenance(), []
    for label, recipe in STUDIES[args.study](base_of(args)).items():
        curves = {}
        for seed in args.seeds:
            folder = trained(replace(recipe, seed=seed), args.runs)
            curves[str(seed)] = points(folder, recipe)
            print(label, seed, curves[str(seed)]["return"], flush=True)
        rows.append({"variant": label, "recipe": to_json(recipe), "by_seed": curves})
    return {"study": args.study, "made_with": about, "rows": rows}


def trained(recipe: Recipe, runs: Path) -> Path:
    """The folder of the run, which is made if it is not there. Studies share the runs they have in common."""
    text = json.dumps(to_json(recipe), sort_keys=True)
    folder = runs / hashlib.sha256(text.encode()).hexdigest()[:12]
    if not folder.exists():
        train(recipe, folder)
    if curve(folder)[-1].vec_steps < recipe.total_vec_steps:
        raise SystemExit(f"{folder} holds a run that was stopped: finish it, or delete it.")
    return folder


def points(folder: Path, recipe: Recipe) -> dict[str, Any]:
    found = curve(folder)
    last = read_lines(folder / "metrics.jsonl")[-1]
    return {
        "vec_steps": [point.vec_steps for point in found],
        "env_steps": [point.vec_steps * recipe.num_envs for point in found],
        "updates": [recipe.pace.updates_after(point.vec_steps) for point in found],
        "train_seconds": [round(point.train_seconds, 2) for point in found],
        "return": [round(point.value, 1) for point in found],
        "critic_updates_per_vec_step": last.get("split/critic_updates_per_vec_step"),
        "policy_updates_per_critic_update": last.get("split/policy_updates_per_critic_update"),
    }


def table(result: dict[str, Any]) -> str:
    lines = [
        "| variant | last return, by seed | mean | seconds of training |",
        "| --- | --- | --- | --- |",
    ]
    for row in result["rows"]:
        last = [found["return"][-1] for found in row["by_seed"].values()]
        took = [found["train_seconds"][-1] for found in row["by_seed"].values()]
        lines.append(
            f"| {row['variant']} | {', '.join(f'{value:.0f}' for value in last)} "
            f"| {statistics.mean(last):.0f} | {', '.join(f'{value:.0f}' for value in took)} |"
        )
    return "\n".join(lines)


def draw(result: dict[str, Any], path: Path) -> None:
    """Return over time and over environment steps: means over seeds, and each seed in a thin line."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import EngFormatter

    figure, panels = pyplot.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
    axes = {"train_seconds": "seconds of training", "env_steps": "environment steps"}
    for number, row in enumerate(result["rows"]):
        seeds = list(row["by_seed"].values())
        for panel, axis in zip(panels, axes, strict=True):
            for found in seeds:
                panel.plot(found[axis], found["return"], color=f"C{number}", lw=0.6, alpha=0.5)
            across = [statistics.mean(at) for at in zip(*(s[axis] for s in seeds), strict=True)]
            middle = [statistics.mean(at) for at in zip(*(s["return"] for s in seeds), strict=True)]
            panel.plot(across, middle, color=f"C{number}", lw=2, label=row["variant"])
    for panel, label in zip(panels, axes.values(), strict=True):
        panel.set_xlabel(label)
        panel.grid(alpha=0.3)
    seen = {found["env_steps"][-1] for row in result["rows"] for found in row["by_seed"].values()}
    if len(seen) > 1:
        panels[1].set_xscale("log")
    panels[1].xaxis.set_major_formatter(EngFormatter(sep=""))
    panels[0].set_xlim(left=0)
    panels[0].set_ylabel("evaluation return")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center", frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    main()
