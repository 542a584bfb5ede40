"""Ranges of returns: a score is 0 at the low end of a task's range and 1 at its high end."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TypeAlias

from fleetfoot.errors import UserError

Range: TypeAlias = tuple[float, float]

# Domains and tasks of the dm_control suite. Their rewards are in [0, 1] for 1,000 steps in every simulator
# (dm_control, EnvPool, MuJoCo Playground).
SUITE = {
    "acrobot": "swingup swingup_sparse",
    "ball_in_cup": "catch",
    "cartpole": "balance balance_sparse swingup swingup_sparse two_poles three_poles",
    "cheetah": "run",
    "dog": "stand walk trot run fetch",
    "finger": "spin turn_easy turn_hard",
    "fish": "upright swim",
    "hopper": "stand hop",
    "humanoid": "stand walk run run_pure_state",
    "humanoid_cmu": "stand walk run",
    "manipulator": "bring_ball bring_peg insert_ball insert_peg",
    "pendulum": "swingup",
    "point_mass": "easy hard",
    "quadruped": "walk run escape fetch",
    "reacher": "easy hard",
    "stacker": "stack_2 stack_4",
    "swimmer": "swimmer6 swimmer15",
    "walker": "stand walk run",
}
_SUITE = {"ballincup"} | {  # the name in Playground
    (domain + task).replace("_", "") for domain, tasks in SUITE.items() for task in tasks.split()
}


def known_range(task: str) -> Range | None:
    """The range of returns that follows from the definition of a task."""
    plain = re.sub(r"-v\d+$", "", task.rpartition("/")[2])
    compact = re.sub(r"[^a-z0-9]", "", plain.lower())
    return (0.0, 1000.0) if compact in _SUITE else None


def read_ranges(path: Path) -> dict[str, Range]:
    """A JSON file: {"task": [low, high], ...}."""
    try:
        tree = json.loads(path.read_text())
        ranges = {str(task): (float(low), float(high)) for task, (low, high) in tree.items()}
    except FileNotFoundError as error:
        raise UserError(f"there is no file {path}.") from error
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f'{path} must hold ranges as JSON, {{"task": [low, high], ...}}: {reason}.'
        ) from error
    for task, (low, high) in ranges.items():
        check_range(low, high, f"{path}: {task}")
    return ranges


def check_range(low: float, high: float, where: str) -> None:
    if not low < high:
        raise UserError(f"{where}: low ({low:g}) must be below high ({high:g}).")
