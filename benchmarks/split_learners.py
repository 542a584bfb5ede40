"""Wall-clock to a fixed return: `split_learners` beside `synchronous`, in turn and with overlap, all in one process.

    python benchmarks/split_learners.py --device cuda                          # pendulum, CartpoleBalance; three seeds
    python benchmarks/split_learners.py --tasks t1 --seeds 0 --minutes 2 --device cuda
    python benchmarks/split_learners.py --plot docs/images/split-learners.png  # from the JSON; needs matplotlib

Agent, sizes and ratio of updates to vec steps are the same; only the topology differs. The clock begins with the
first evaluation after everything is compiled and recorded, and stands still during evaluations. A run ends with the
evaluation that reaches the target, or with its time. The JSON is written after every run, so that one that fails, or
a budget that ends, costs no other.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fleetfoot import recipes
from fleetfoot.agents.fast_td3 import FastTD3Config
from fleetfoot.bench.learner import forget
from fleetfoot.bench.provenance import provenance
from fleetfoot.checkpoint import CheckpointConfig
from fleetfoot.config import to_json
from fleetfoot.envs.playground import PlaygroundConfig
from fleetfoot.evaluate import EvaluationConfig
from fleetfoot.log import EVAL_RETURN, Counters, LogConfig
from fleetfoot.log.sinks import read_lines
from fleetfoot.pace import PaceConfig
from fleetfoot.recipe import Recipe
from fleetfoot.topologies.old_run import Run
from fleetfoot.topologies.pql.loop import SplitLearnersConfig, SplitRun, split_learners
from fleetfoot.topologies.synchronous import SynchronousConfig, synchronous

RESULT = Path(__file__).parent / "results" / "split-learners.json"
READY = 20  # vec steps of learning after which everything is compiled and recorded
TOPOLOGIES: dict[str, SynchronousConfig | SplitLearnersConfig] = {
    "synchronous": SynchronousConfig(),
    "overlap": SynchronousConfig(overlap=True),
    "split_learners": SplitLearnersConfig(),
}


@dataclass(frozen=True)
class Task:
    recipe: Recipe
    target: float  # return that ends a run
    every: int  # vec steps between evaluations
    steps: int  # of an evaluation: the return is that of so many steps of each episode


def pendulum() -> Task:
    """4,096 pendulums written in torch, with networks of the size that robots need."""
    base = recipes.get("fast_td3/pendulum")
    recipe = replace(
        base,
        agent=FastTD3Config(v_min=-300.0, v_max=0.0, policy_noise=0.1),
        replay=replace(base.replay, capacity=4096 * 256),
        pace=PaceConfig(updates_per_vec_step=2.0, warmup_vec_steps=20),
        num_envs=4096,
        batch_size=8192,
        precision="bf16",
        total_vec_steps=20_000,
    )
    return Task(recipe, target=-170.0, every=25, steps=200)


def control(task: str, target: float, steps: int) -> Task:
    """A task of Playground's control suite: rewards between 0 and 1."""
    base = recipes.get("fast_td3/t1-joystick-flat")
    recipe = replace(
        base,
        name=f"fast_td3/{task}",
        env=PlaygroundConfig(task=task),
        agent=FastTD3Config(v_min=0.0, v_max=100.0),
        explorer=replace(base.explorer, std_min=0.05, std_max=0.8),
        replay=replace(base.replay, capacity=4096 * 512, n_step=3),
        pace=PaceConfig(updates_per_vec_step=8.0, warmup_vec_steps=20),
        batch_size=8192,
        gamma=0.99,
        total_vec_steps=20_000,
    )
    return Task(recipe, target, every=100, steps=steps)


def t1() -> Task:
    """A humanoid; the first compilation takes minutes."""
    recipe = recipes.get("fast_td3/t1-joystick-flat")
    replay = replace(recipe.replay, capacity=4096 * 4096)
    return Task(replace(recipe, replay=replay), target=6.0, every=500, steps=300)


TASKS: dict[str, Callable[[], Task]] = {
    "pendulum": pendulum,
    "balance": lambda: control("CartpoleBalance", 450.0, 500),
    "swingup": lambda: control("CartpoleSwingup", 350.0, 500),
    "cheetah": lambda: control("CheetahRun", 150.0, 500),
    "t1": t1,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--tasks", nargs="+", default=["pendulum", "balance"], choices=TASKS)
    parser.add_argument("--topologies", nargs="+", default=list(TOPOLOGIES), choices=TOPOLOGIES)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--minutes", type=float, default=0.75, help="training time of a run")
    parser.add_argument("--budget", type=float, default=9.0, help="minutes for everything")
    parser.add_argument("--target", type=float, help="return to reach, instead of the task's own")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--num-envs", type=int, help="fewer, to try this on a small machine")
    parser.add_argument("--batch-size", type=int, help="likewise")
    parser.add_argument("--updates", type=float, help="per vec step, likewise")
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--plot", type=Path, help="draw what --out holds; nothing is run")
    args = parser.parse_args()
    if args.plot is not None:
        draw(json.loads(args.out.read_text()), args.plot)
        return
    begun = time.perf_counter()
    result: dict[str, Any] = {"made_with": provenance(), "minutes": args.minutes, "tasks": {}}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    for name in args.tasks:
        task = sized(TASKS[name](), args)
        rows: list[dict[str, Any]] = []
        result["tasks"][name] = {
            "target": task.target,
            "recipe": to_json(task.recipe),
            "evaluation_steps": task.steps,
            "runs": rows,
        }
        for seed in args.seeds:  # all topologies of a seed, then the next: a budget may end
            for topology in args.topologies:
                left = 60 * args.budget - (time.perf_counter() - begun)
                if left <= 0:
                    continue
                recipe = replace(task.recipe, seed=seed, topology=TOPOLOGIES[topology])
                row = {"topology": topology, "seed": seed}
                rows.append(row | attempt(recipe, task.target, min(left, 60 * args.minutes)))
                args.out.write_text(json.dumps(result, indent=1) + "\n")
                said = {key: value for key, value in rows[-1].items() if key != "curve"}
                print(name, json.dumps(said), flush=True)
    result["wall_seconds"] = round(time.perf_counter() - begun, 1)
    args.out.write_text(json.dumps(result, indent=1) + "\n")
    print(table(result))


def sized(task: Task, args: argparse.Namespace) -> Task:
    """The task as the command wants it, with evaluations of as many environments as train: they share what compiles."""
    recipe = task.recipe
    num_envs = args.num_envs or recipe.num_envs
    updates = args.updates or recipe.pace.updates_per_vec_step
    rows = recipe.replay.capacity // recipe.num_envs
    recipe = replace(
        recipe,
        num_envs=num_envs,
        batch_size=args.batch_size or recipe.batch_size,
        replay=replace(recipe.replay, capacity=rows * num_envs),
        pace=replace(recipe.pace, updates_per_vec_step=updates),
        evaluation=EvaluationConfig(
            every_vec_steps=task.every, episodes=num_envs, max_vec_steps=task.steps
        ),
        log=LogConfig(every_vec_steps=task.every, tensorboard=False, console=False),
        checkpoint=CheckpointConfig(every_vec_steps=0, replay=False),
        device=args.device,
    )
    target = task.target if args.target is None else args.target
    return replace(task, recipe=recipe, target=target)


def attempt(recipe: Recipe, target: float, limit: float) -> dict[str, Any]:
    """One run; one that fails says why, and the others go on."""
    forget(recipe.torch_device())
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        try:
            found = one(recipe, Path(folder), target, limit)
        except Exception as error:
            traceback.print_exc()
            reason = " ".join(str(error).split())[:300]
            found = {"error": f"{type(error).__name__}: {reason}", "curve": []}
    # Such as: the learner runs without CUDA graphs.
    said = sorted({str(warning.message)[:200] for warning in seen})
    wall = round(time.perf_counter() - begun, 1)
    return found | {"wall_seconds": wall, "warnings": said[:8]}


def one(recipe: Recipe, folder: Path, target: float, limit: float) -> dict[str, Any]:
    points: list[dict[str, float]] = []
    run = (SplitRun if isinstance(recipe.topology, SplitLearnersConfig) else Run).build(
        recipe, folder, None
    )

    def evaluated(counters: Counters, metrics: dict[str, float], state: Any = None) -> None:
        """In place of keeping the best policy: note the return, and stop where that is due."""
        if counters.vec_steps < recipe.pace.warmup_vec_steps + READY:
            return  # something is still to be compiled
        zero = points[0]["train_seconds"] if points else counters.train_seconds
        points.append(
            {
                "vec_steps": counters.vec_steps,
                "updates": counters.updates,
                "train_seconds": round(counters.train_seconds, 3),
                "seconds": round(counters.train_seconds - zero, 3),
                "evaluate_seconds": round(metrics["time/evaluate_s"], 3),
                "return": round(metrics[EVAL_RETURN], 2),
            }
        )
        if metrics[EVAL_RETURN] >= target or points[-1]["seconds"] >= limit:
            signal.raise_signal(signal.SIGINT)  # as by Ctrl-C: the run stops after this vec step

    run.evaluated = evaluated  # type: ignore[method-assign]
    run.save = run.interrupted = lambda: None  # type: ignore[method-assign]
    try:
        if isinstance(run, SplitRun):
            split_learners(run)
        else:
            assert isinstance(recipe.topology, SynchronousConfig)
            synchronous(run, overlap=recipe.topology.overlap)
    finally:
        run.close()
    first, last = points[0], points[-1]
    steps, seconds = last["vec_steps"] - first["vec_steps"], last["seconds"]
    lines = read_lines(folder / "metrics.jsonl")
    return {
        "seconds_to_target": seconds if last["return"] >= target else None,
        "env_steps": last["vec_steps"] * recipe.num_envs,
        "updates": last["updates"],
        "iteration_ms": round(1e3 * seconds / steps, 3) if steps else None,
        "last_return": last["return"],
        "time_split": {
            name: round(lines[-1][name], 3)
            for name in sorted(lines[-1])
            if name.startswith(("time/", "split/"))
        },
        "curve": points,
    }


def table(result: dict[str, Any]) -> str:
    lines = [
        "| task | topology | seconds to target, by seed | median | ms per vec step | last return |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, task in result["tasks"].items():
        for topology in dict.fromkeys(row["topology"] for row in task["runs"]):
            rows = [row for row in task["runs"] if row["topology"] == topology]
            good = [row for row in rows if "error" not in row]
            took = [row.get("seconds_to_target") for row in rows]
            reached = [seconds for seconds in took if seconds is not None]
            # A run that did not get there took longer than any that did.
            middle = sorted(reached) + [None] * (len(took) - len(reached))
            median = middle[(len(middle) - 1) // 2]
            cells = [
                f"{name} (to {task['target']:g})",
                topology,
                ", ".join("not reached" if s is None else f"{s:.1f}" for s in took),
                "not reached" if median is None else f"{median:.1f}",
                ", ".join(f"{row['iteration_ms']:.2f}" for row in good if row["iteration_ms"]),
                ", ".join(f"{row['last_return']:.1f}" for row in good),
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def draw(result: dict[str, Any], path: Path) -> None:
    """Return over seconds of training, one panel per task."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    tasks = result["tasks"]
    figure, panels = pyplot.subplots(
        1, len(tasks), figsize=(4.8 * len(tasks), 3.4), layout="constrained", squeeze=False
    )
    colours = {name: f"C{number}" for number, name in enumerate(TOPOLOGIES)}
    for panel, (name, task) in zip(panels[0], tasks.items(), strict=True):
        labelled: set[str] = set()
        for row in task["runs"]:
            topology = row["topology"]
            panel.plot(
                [point["seconds"] for point in row["curve"]],
                [point["return"] for point in row["curve"]],
                color=colours[topology],
                marker=".",
                ms=4,
                lw=1,
                label=None if topology in labelled else topology,
            )
            labelled.add(topology)
        panel.axhline(task["target"], color="gray", ls=":", lw=1)
        envs = task["recipe"]["num_envs"]
        panel.set_title(f"{name}, {envs:,} environments", fontsize=10)
        panel.set_xlabel("seconds of training")
        panel.grid(alpha=0.3)
    panels[0][0].set_ylabel("evaluation return")
    panels[0][0].legend(frameon=False, loc="lower right")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    print(f"drawn to {path}; median seconds:")
    for name, task in tasks.items():
        for topology in TOPOLOGIES:
            took = [
                row["seconds_to_target"]
                for row in task["runs"]
                if row["topology"] == topology and row.get("seconds_to_target") is not None
            ]
            if took:
                print(f"  {name} {topology}: {statistics.median(took):.1f}, {len(took)} runs")


if __name__ == "__main__":
    main()
