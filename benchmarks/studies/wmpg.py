"""WMPG beside AC and MAC: real episodes and steps until a task is solved."""

from __future__ import annotations

import json
import multiprocessing
import statistics
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fleetfoot import recipes
from fleetfoot.config import dumps
from fleetfoot.data import Transition
from fleetfoot.errors import UserError, writing
from fleetfoot.extras import check
from fleetfoot.log.timer import StepTimer
from fleetfoot.recipe import Recipe
from fleetfoot.rollout import rollout
from fleetfoot.run.build import Parts, build_parts
from fleetfoot.system import usable_cores

SOLVED = {"cartpole": 475.0, "lunarlander": 200.0, "pong": 18.0}
WINDOW = 20  # episodes whose mean return counts


def wmpg(
    task: str = "cartpole",
    agents: tuple[str, ...] = ("wmpg", "ac", "mac"),
    seeds: int = 10,
    first_seed: int = 0,
    total_vec_steps: int | None = None,
    processes: int = 0,
    runs: Path = Path("runs/wmpg"),
    picture: Path | None = None,
) -> Iterator[dict[str, Any]]:
    """Training returns over real episodes; a run ends where the mean of 20 solves the task, or its steps are over.

    :param task: cartpole, lunarlander or pong: the recipes AGENT/TASK.
    :param agents: Which recipes.
    :param seeds: Seeds of each.
    :param first_seed: The first of them.
    :param total_vec_steps: Length of a run that does not solve the task; None: as the recipe says.
    :param processes: Runs at the same time, one thread each; 0: one per core.
    :param runs: Folder of the results of the runs; one that is there already is read, not trained again.
    :param picture: PNG to draw (needs matplotlib).
    """
    if task not in SOLVED:
        raise UserError(f"task must be one of {', '.join(SOLVED)}, not {task!r}.")
    if picture is not None:
        check("a picture", ("matplotlib",), "plot")
    jobs = []
    for seed in range(first_seed, first_seed + seeds):
        for agent in agents:
            recipe = recipes.get(f"{agent}/{task}")
            length = total_vec_steps or recipe.total_vec_steps
            changes: dict[str, Any] = {"seed": seed, "device": "cpu", "threads": 1}
            job = replace(recipe, total_vec_steps=length, **changes)
            jobs.append((job, SOLVED[task], runs / f"{agent}-{task}-seed{seed}.json"))
    found: list[dict[str, Any]] = []
    with multiprocessing.get_context("spawn").Pool(processes or usable_cores()) as pool:
        for run in pool.imap_unordered(_run, jobs):
            found.append(run)
            found.sort(key=lambda run: (agents.index(run["agent"]), run["seed"]))
            yield {"task": task, "solved_at": SOLVED[task], **summary(found, agents), "runs": found}
    if picture is not None:
        draw(found, agents, SOLVED[task], picture)


def _run(job: tuple[Recipe, float, Path]) -> dict[str, Any]:
    recipe, solved, place = job
    torch.set_num_threads(1)
    if place.exists():
        known: dict[str, Any] = json.loads(place.read_text())
        if known["recipe"] == json.loads(dumps(recipe)):
            return known
    result = until_solved(recipe, solved)
    with writing(place):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(json.dumps(result))
    return result


def until_solved(recipe: Recipe, solved: float) -> dict[str, Any]:
    """Train on one core, and count episodes and steps of the real environments."""
    parts, begun = build_parts(recipe), time.perf_counter()
    returns: list[float] = []
    ends: list[int] = []  # env steps at the end of each episode
    window: deque[float] = deque(maxlen=WINDOW)
    trusted: list[float] = []
    reached, step, running = False, 0, torch.zeros(recipe.num_envs)
    try:
        for step, (fresh, metrics) in enumerate(training(parts), start=1):
            if "model/trusted" in metrics:
                trusted.append(float(metrics["model/trusted"]))
            running += fresh.reward
            ended = fresh.terminated | fresh.truncated
            for value in running[ended].tolist():
                returns.append(value)
                window.append(value)
                ends.append(step * recipe.num_envs)
                reached = reached or (len(window) == WINDOW and statistics.mean(window) >= solved)
            running[ended] = 0.0
            if reached or step == recipe.total_vec_steps:
                break
    finally:
        parts.close()
    return {
        "name": recipe.name,
        "agent": recipe.name.partition("/")[0],
        "seed": recipe.seed,
        "solved": reached,
        "episodes": len(returns),
        "env_steps": step * recipe.num_envs,
        "last_returns": round(statistics.mean(window), 1) if window else None,
        "imagination_trusted": round(statistics.mean(trusted), 3) if trusted else None,
        "seconds": round(time.perf_counter() - begun, 1),
        "recipe": json.loads(dumps(recipe)),
        "curve": {"returns": [round(value, 1) for value in returns], "env_steps": ends},
    }


def training(parts: Parts) -> Iterator[tuple[Transition, dict[str, Tensor]]]:
    """Vec steps, with the metrics of the update that followed each, if one did."""
    timer = StepTimer(parts.device)
    steps = rollout(parts.env.step, parts.agent.behaviour, parts.explorer, parts.obs, timer)
    for fresh in steps:
        parts.append(fresh)
        metrics: dict[str, Tensor] = {}
        for _ in range(parts.owed):
            metrics = parts.agent.update(parts.replay.gather(*parts.replay.draw(0))).metrics
            parts.replay.trim(1)
        parts.owed = 0
        yield fresh, metrics


def summary(runs: list[dict[str, Any]], agents: tuple[str, ...]) -> dict[str, Any]:
    """A row per agent, and how often the first one needs fewer episodes and steps than each other one."""
    rows, duels = [], []
    for agent in agents:
        own = [run for run in runs if run["agent"] == agent]
        done = [run for run in own if run["solved"]]
        rows.append(
            {
                "agent": agent,
                "runs": len(own),
                "solved": len(done),
                "median_episodes": _median(own, "episodes"),
                "median_env_steps": _median(own, "env_steps"),
                "mean_seconds": statistics.mean(run["seconds"] for run in own) if own else None,
            }
        )
    first = {run["seed"]: run for run in runs if run["agent"] == agents[0]}
    for agent in agents[1:]:
        other = {run["seed"]: run for run in runs if run["agent"] == agent}
        both = sorted(first.keys() & other.keys())
        duels.append(
            {
                "pair": f"{agents[0]} and {agent}",
                "seeds": len(both),
                "fewer_episodes": sum(_before(first[s], other[s], "episodes") for s in both),
                "fewer_env_steps": sum(_before(first[s], other[s], "env_steps") for s in both),
            }
        )
    return {"agents": rows, "pairs": duels}


def _median(runs: list[dict[str, Any]], what: str) -> float | None:
    """None where fewer than half of the runs solved the task."""
    values = sorted(run[what] if run["solved"] else float("inf") for run in runs)
    middle = statistics.median(values) if values else float("inf")
    return None if middle == float("inf") else middle


def _before(one: dict[str, Any], other: dict[str, Any], what: str) -> bool:
    return bool(one["solved"] and (not other["solved"] or one[what] < other[what]))


def draw(runs: list[dict[str, Any]], agents: tuple[str, ...], solved: float, place: Path) -> None:
    """Mean returns of the last 20 episodes over real episodes and over real steps; thin lines are seeds."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, 2, figsize=(10, 3.6), sharey=True)
    for colour, agent in zip(("C0", "C1", "C2", "C3"), agents, strict=False):
        for number, run in enumerate(run for run in runs if run["agent"] == agent):
            returns, ends = run["curve"]["returns"], run["curve"]["env_steps"]
            means = [
                statistics.mean(returns[max(0, i - WINDOW + 1) : i + 1])
                for i in range(len(returns))
            ]
            label = agent.upper() if number == 0 else None
            for panel, x in zip(panels, (range(1, len(returns) + 1), ends), strict=True):
                panel.plot(list(x), means, color=colour, lw=1.0, alpha=0.7, label=label)
    for panel, name in zip(panels, ("real episodes", "real steps"), strict=True):
        panel.axhline(solved, color="0.6", lw=0.8, ls="--")
        panel.set_xlabel(name)
        panel.locator_params(axis="x", nbins=5)
        panel.xaxis.set_major_formatter("{x:,.0f}")
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel(f"return, mean of {WINDOW} episodes")
    panels[0].legend(frameon=False)
    figure.tight_layout()
    place.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(place, dpi=150)
    plt.close(figure)
