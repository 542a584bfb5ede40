"""Pong with Ape-X and with the same agent in one process, each until it is solved or its time is up; curves as JSON.

python benchmarks/pong.py --minutes 8

For 16 cores and a GPU. On another machine: --actors, --envs-per-actor and --sync-envs. A run is stopped as by Ctrl-C,
so its folder can be resumed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from fleetfoot import recipes, train
from fleetfoot.bench.provenance import provenance
from fleetfoot.config import to_json
from fleetfoot.envs.atari import FRAME_SKIP
from fleetfoot.log import curve
from fleetfoot.log.sinks import read_lines
from fleetfoot.recipe import Recipe
from fleetfoot.topologies.apex.loop import ActorLearnerConfig

RESULTS = Path(__file__).parent / "results"
SOLVED = 15.0
KEPT = ("fleet/", "critic/td_error", "critic/q", "episode/return")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=8.0, help="wall-clock of each run")
    parser.add_argument("--until", type=float, default=18.0, help="a return that is enough")
    parser.add_argument("--recipes", nargs="+", default=["apex_dqn/pong", "dqn/pong"])
    parser.add_argument("--actors", type=int, default=12)
    parser.add_argument("--envs-per-actor", type=int, default=32)
    parser.add_argument("--sync-envs", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runs", type=Path, default=Path("runs/pong"))
    parser.add_argument("--out", type=Path, default=RESULTS / "pong.json")
    args = parser.parse_args()
    result: dict[str, Any] = {"made_with": provenance(), "minutes": args.minutes, "runs": []}
    for name in args.recipes:
        recipe = replace(recipes.get(name), seed=args.seed)
        if isinstance(recipe.topology, ActorLearnerConfig):
            topology = replace(recipe.topology, actors=args.actors)
            recipe = replace(recipe, topology=topology, num_envs=args.actors * args.envs_per_actor)
        else:
            recipe = replace(recipe, num_envs=args.sync_envs)
        result["runs"].append(one(recipe, args.runs, args.minutes * 60, args.until))
        args.out.parent.mkdir(parents=True, exist_ok=True)  # after each: a later one may fail
        args.out.write_text(json.dumps(result, indent=1) + "\n")
    print(f"written to {args.out}")


def one(recipe: Recipe, runs: Path, seconds: float, until: float) -> dict[str, Any]:
    folder = runs / f"{recipe.name.replace('/', '-')}-seed{recipe.seed}-{time.strftime('%H%M%S')}"
    start, over = time.perf_counter(), threading.Event()

    def watch() -> None:
        while not over.wait(2.0):
            known = curve(folder) if (folder / "metrics.jsonl").exists() else []
            solved = any(point.value >= until for point in known)
            if solved or time.perf_counter() - start > seconds:
                os.kill(os.getpid(), signal.SIGINT)
                return

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        done = train(recipe, folder)
    finally:
        over.set()
        watcher.join()
    wall = time.perf_counter() - start
    points = [
        {
            "frames": point.vec_steps * recipe.num_envs * FRAME_SKIP,
            "train_seconds": round(point.train_seconds, 1),
            "return": round(point.value, 2),
        }
        for point in curve(folder)
    ]
    reached = next((point for point in points if point["return"] >= SOLVED), None)
    lines = read_lines(folder / "metrics.jsonl")
    sparse = lines[:: max(1, len(lines) // 40)]
    found = {
        "recipe": to_json(recipe),
        "wall_seconds": round(wall, 1),
        "env_steps": done.counters.env_steps,
        "frames": done.counters.env_steps * FRAME_SKIP,
        "updates": done.counters.updates,
        "train_seconds": round(done.counters.train_seconds, 1),
        "best_return": done.best_return if points else None,
        "first_at_15": reached,
        "curve": points,
        "log": [
            {k: v for k, v in line.items() if k.startswith(KEPT) or k in ("vec_steps", "updates")}
            for line in sparse
        ],
    }
    print(json.dumps({k: v for k, v in found.items() if k not in ("recipe", "log", "curve")}))
    return found


if __name__ == "__main__":
    main()
