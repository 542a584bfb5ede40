"""Seconds of training to a fixed return: `split_learners` beside `synchronous`, in turn and with overlap.

Agent, sizes and ratio of updates to vec steps are the same; only the topology differs.
"""

from __future__ import annotations

import json
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from benchmarks.curves import picture as new_picture
from benchmarks.curves import train_until
from benchmarks.speed.learner import forget
from fleetfoot import recipes
from fleetfoot.agents.fast_td3 import FastTD3Config
from fleetfoot.checkpoint import CheckpointConfig
from fleetfoot.config import to_json
from fleetfoot.envs.playground import PlaygroundConfig
from fleetfoot.evaluate import EvaluationConfig
from fleetfoot.explore import NoiseLadderConfig
from fleetfoot.log import EVAL_RETURN, LogConfig
from fleetfoot.log.sinks import read_lines
from fleetfoot.pace import PaceConfig
from fleetfoot.recipe import Recipe
from fleetfoot.topologies.pql.loop import SplitLearnersConfig
from fleetfoot.topologies.synchronous import SynchronousConfig

READY = 20  # vec steps of learning after which everything is compiled and recorded
TOPOLOGIES: dict[str, SynchronousConfig | SplitLearnersConfig] = {
    "synchronous": SynchronousConfig(),
    "overlap": SynchronousConfig(overlap=True),
    "split_learners": SplitLearnersConfig(),
}


@dataclass(frozen=True)
class Task:
    """What to train, and when it is done."""

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
        replay=replace(base.off_policy_replay(), capacity=4096 * 256),
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
        explorer=NoiseLadderConfig(std_min=0.05, std_max=0.8),
        replay=replace(base.off_policy_replay(), capacity=4096 * 512, n_step=3),
        pace=PaceConfig(updates_per_vec_step=8.0, warmup_vec_steps=20),
        batch_size=8192,
        gamma=0.99,
        total_vec_steps=20_000,
    )
    return Task(recipe, target, every=100, steps=steps)


def t1() -> Task:
    """A humanoid; the first compilation takes minutes."""
    recipe = recipes.get("fast_td3/t1-joystick-flat")
    replay = replace(recipe.off_policy_replay(), capacity=4096 * 4096)
    return Task(replace(recipe, replay=replay), target=6.0, every=500, steps=300)


TASKS: dict[str, Callable[[], Task]] = {
    "pendulum": pendulum,
    "balance": lambda: control("CartpoleBalance", 450.0, 500),
    "swingup": lambda: control("CartpoleSwingup", 350.0, 500),
    "cheetah": lambda: control("CheetahRun", 150.0, 500),
    "t1": t1,
}


def split_learners(
    tasks: tuple[Literal["pendulum", "balance", "swingup", "cheetah", "t1"], ...] = (
        "pendulum",
        "balance",
    ),
    topologies: tuple[Literal["synchronous", "overlap", "split_learners"], ...] = (
        "synchronous",
        "overlap",
        "split_learners",
    ),
    seeds: tuple[int, ...] = (0, 1, 2),
    minutes: float = 0.75,
    budget: float = 9.0,
    target: float | None = None,
    device: str = "auto",
    num_envs: int | None = None,
    batch_size: int | None = None,
    updates: float | None = None,
    picture: Path | None = None,
    redraw: Path | None = None,
) -> Iterator[dict[str, Any]]:
    """Seconds of training to a return, all runs in one process.

    The clock begins with the first evaluation after everything is compiled and recorded, and stops during evaluations.
    A run ends with the evaluation that reaches the target, or with its time.

    :param tasks: pendulum, balance, swingup, cheetah, t1.
    :param topologies: synchronous, overlap, split_learners.
    :param seeds: Of each topology.
    :param minutes: Training time of a run, at most.
    :param budget: Minutes for everything.
    :param target: Return to reach, instead of the task's own.
    :param device: auto, cpu, cuda or cuda:K.
    :param num_envs: Fewer than the task's, to try this on a small machine.
    :param batch_size: Likewise.
    :param updates: Per vec step, likewise.
    :param picture: PNG to draw (needs matplotlib).
    :param redraw: A JSON to draw as it is; nothing is run.
    """
    begun = time.perf_counter()
    result: dict[str, Any] = {"minutes": minutes, "runs": [], "tasks": {}}
    if redraw is not None:
        result = json.loads(redraw.read_text())["result"]
        yield result
    for name in () if redraw else tasks:
        task = sized(TASKS[name](), num_envs, batch_size, updates, device)
        goal = task.target if target is None else target
        result["tasks"][name] = {"target": goal, "evaluation_steps": task.steps}
        result["tasks"][name]["recipe"] = to_json(task.recipe)
        for seed in seeds:  # all topologies of a seed, then the next: the budget may end
            for topology in topologies:
                left = 60 * budget - (time.perf_counter() - begun)
                if left <= 0:
                    continue
                recipe = replace(task.recipe, seed=seed, topology=TOPOLOGIES[topology])
                row = {"task": name, "topology": topology, "seed": seed}
                result["runs"].append(row | attempt(recipe, goal, min(left, 60 * minutes)))
                yield result
    if picture is not None:
        draw(result, picture)


def sized(
    task: Task, num_envs: int | None, batch_size: int | None, updates: float | None, device: str
) -> Task:
    """The task at other sizes, with evaluations of as many environments as train: they share what compiles."""
    recipe = task.recipe
    envs, replay = num_envs or recipe.num_envs, recipe.off_policy_replay()
    recipe = replace(
        recipe,
        num_envs=envs,
        batch_size=batch_size or recipe.batch_size,
        replay=replace(replay, capacity=replay.capacity // recipe.num_envs * envs),
        pace=replace(recipe.pace, updates_per_vec_step=updates or recipe.pace.updates_per_vec_step),
        evaluation=EvaluationConfig(
            every_vec_steps=task.every, episodes=envs, max_vec_steps=task.steps
        ),
        log=LogConfig(every_vec_steps=task.every, tensorboard=False, console=False),
        checkpoint=CheckpointConfig(every_vec_steps=0, replay=False),
        device=device,
    )
    return replace(task, recipe=recipe)


def attempt(recipe: Recipe, target: float, limit: float) -> dict[str, Any]:
    """One run; if it fails, the row says why, and the others go on."""
    forget(recipe.torch_device())
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        try:
            row = measure(recipe, Path(folder) / "run", target, limit)
        except Exception as error:
            traceback.print_exc()
            reason = " ".join(str(error).split())[:300]
            row = {"error": f"{type(error).__name__}: {reason}", "curve": []}
    # Such as: the learner runs without CUDA graphs.
    messages = sorted({str(warning.message)[:200] for warning in raised})
    wall = round(time.perf_counter() - begun, 1)
    return row | {"wall_seconds": wall, "warnings": messages[:8]}


def measure(recipe: Recipe, folder: Path, target: float, limit: float) -> dict[str, Any]:
    """Train until an evaluation reaches the target, for at most so many seconds of training."""

    def enough() -> bool:
        points = curve_when_ready(folder, recipe)
        return any(p["return"] >= target or p["seconds"] >= limit for p in points)

    train_until(recipe, folder, enough)
    points = curve_when_ready(folder, recipe)
    reached = next((i for i, point in enumerate(points) if point["return"] >= target), None)
    if reached is not None:
        points = points[: reached + 1]  # the run may have gone on before it was stopped
    first, last = points[0], points[-1]
    steps = last["vec_steps"] - first["vec_steps"]
    lines = read_lines(folder / "metrics.jsonl")
    return {
        "seconds_to_target": None if reached is None else last["seconds"],
        "env_steps": last["vec_steps"] * recipe.num_envs,
        "updates": last["updates"],
        "iteration_ms": round(1e3 * last["seconds"] / steps, 3) if steps else None,
        "last_return": last["return"],
        "time_split": {
            name: round(lines[-1][name], 3)
            for name in sorted(lines[-1])
            if name.startswith(("time/", "split/"))
        },
        "curve": points,
    }


def curve_when_ready(folder: Path, recipe: Recipe) -> list[dict[str, float]]:
    """The evaluations so far, from the first at which everything was compiled; `seconds` count from there."""
    ready = recipe.pace.warmup_vec_steps + READY
    lines = read_lines(folder / "metrics.jsonl")
    lines = [line for line in lines if EVAL_RETURN in line and line["vec_steps"] >= ready]
    return [
        {
            "vec_steps": line["vec_steps"],
            "updates": line["updates"],
            "train_seconds": round(line["train_seconds"], 3),
            "seconds": round(line["train_seconds"] - lines[0]["train_seconds"], 3),
            "return": round(line[EVAL_RETURN], 2),
        }
        for line in lines
    ]


def draw(result: dict[str, Any], path: Path) -> None:
    """Return over seconds of training, one panel per task."""
    tasks = result["tasks"]
    size = (4.8 * len(tasks), 3.4)
    with new_picture(path, panels=len(tasks), size=size) as (_, panels):
        colours = {name: f"C{number}" for number, name in enumerate(TOPOLOGIES)}
        for panel, (name, task) in zip(panels, tasks.items(), strict=True):
            labelled: set[str] = set()
            for row in (row for row in result["runs"] if row["task"] == name):
                topology = row["topology"]
                panel.plot(
                    [point["seconds"] for point in row["curve"]],
                    [point["return"] for point in row["curve"]],
                    color=colours[topology],
                    marker=".",
                    lw=1,
                    label=None if topology in labelled else topology,
                )
                labelled.add(topology)
            panel.axhline(task["target"], color="gray", ls=":", lw=1)
            panel.set_title(f"{name}, {task['recipe']['num_envs']:,} environments", fontsize=10)
            panel.set_xlabel("seconds of training")
        panels[0].set_ylabel("evaluation return")
        panels[0].legend(frameon=False, loc="lower right")
