"""The actor-scaling study of Ape-X in small: 1, 2, 4, 8 actors at equal learner updates.

python benchmarks/apex_actors.py --seeds 0 1 2

Each actor has as many environments as any other and the pace counts vec steps, so all runs make the same updates at the
same batch size; more actors only means more, and more different, rows to learn from. Runs lie in runs/apex_actors/; one
that is there already is read, not trained again.
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
from fleetfoot.log import LogConfig, curve
from fleetfoot.part import to_json
from fleetfoot.topologies.actor_learner import ActorLearnerConfig

RESULTS = Path(__file__).parent / "results"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--recipe", default="apex_dqn/cartpole")
    parser.add_argument("--actors", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--envs-per-actor", type=int, default=4)
    parser.add_argument("--vec-steps", type=int, default=1_500)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--runs", type=Path, default=Path("runs/apex_actors"))
    parser.add_argument("--out", type=Path, default=RESULTS / "apex-actors.json")
    parser.add_argument("--picture", type=Path, help="PNG to draw (needs matplotlib)")
    args = parser.parse_args()
    base = replace(recipes.get(args.recipe), device="cpu", threads=1)
    assert isinstance(base.topology, ActorLearnerConfig)
    about, rows = provenance(), []
    for actors in args.actors:
        recipe = replace(
            base,
            num_envs=actors * args.envs_per_actor,
            total_vec_steps=args.vec_steps,
            topology=replace(base.topology, actors=actors),
            log=LogConfig(every_vec_steps=50, tensorboard=False, console=False),
        )
        curves = []
        for seed in args.seeds:
            folder = args.runs / f"{actors}x{args.envs_per_actor}-seed{seed}"
            if not (folder / "checkpoints" / "last.json").exists():
                train(replace(recipe, seed=seed), folder)
            points = curve(folder)  # an evaluation that comes while another runs is left out
            returns = [round(point.value, 1) for point in points]
            curves.append({"vec_steps": [p.vec_steps for p in points], "return": returns})
            print(actors, seed, curves[-1], flush=True)
        rows.append(
            {
                "actors": actors,
                "num_envs": recipe.num_envs,
                "updates": recipe.pace.updates_after(recipe.total_vec_steps),
                "env_steps": recipe.total_vec_steps * recipe.num_envs,
                "by_seed": dict(zip(map(str, args.seeds), curves, strict=True)),
                "final_return_mean": statistics.mean(c["return"][-1] for c in curves),
                "best_return_mean": statistics.mean(max(c["return"]) for c in curves),
            }
        )
    result: dict[str, Any] = {"made_with": about, "recipe": to_json(base), "rows": rows}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(result, indent=1) + "\n")
    if args.picture:
        draw(rows, args.picture)


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 3.2), layout="constrained")
    for number, row in enumerate(rows):
        for one, found in enumerate(row["by_seed"].values()):
            label = None if one else f"{row['actors']} actors"
            axes.plot(found["vec_steps"], found["return"], color=f"C{number}", label=label)
    axes.set_xlabel("vec steps (4 updates each, whatever the number of actors)")
    axes.set_ylabel("greedy return")
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    main()
