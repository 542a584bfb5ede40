"""The runs of a study as a table: one row for each evaluation of each run, as a CSV file.

The whole analysis starts from this table, so a study can be kept, and fitted again, without its run folders.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fleetfoot.compare.groups import IGNORED_FIELDS
from fleetfoot.compare.runs import Floats, find, task_of
from fleetfoot.config import flat_fields, to_json
from fleetfoot.errors import UserError, one_line, writing
from fleetfoot.files import MOST_LOG, read_bytes
from fleetfoot.log.meter import EVAL_RETURN
from fleetfoot.log.sinks import read_lines
from fleetfoot.recipe import Recipe
from fleetfoot.run.folder import read_recipe, read_spec
from fleetfoot.scale.grid import lr_of, utd_of

OVERFITTING = "diagnose/newest_overfitting_difference"
PARAMETER_NORM = "diagnose/critic/parameter_norm"

CONFIG_COLUMNS = ("task", "recipe", "utd", "batch", "lr", "params", "num_envs", "seed")
EVALUATION_COLUMNS = {  # column -> name in a run's log
    "env_steps": "env_steps",
    "updates": "updates",
    "train_seconds": "train_seconds",
    "return": EVAL_RETURN,
    "overfitting": OVERFITTING,
    "parameter_norm": PARAMETER_NORM,
}

# Fields of a recipe in which the runs of one task may differ: what a study varies, and where and how it runs.
VARIED = (*IGNORED_FIELDS, "pace.updates_per_vec_step", "batch_size")
VARIED_ENDINGS = ("_optim.lr", "_optim.lr_end", "optim.lr", "optim.lr_end")
VARIED_NETS = ("agent.critic_net.hidden", "agent.critic_net.width")


@dataclass(frozen=True)
class Key:
    """One configuration."""

    task: str
    utd: float
    batch: int
    lr: float  # of the critic; 0 where the agent names none
    params: int  # of the critic (N)

    def __str__(self) -> str:
        return (
            f"{self.task}, ratio {self.utd:g}, batch {self.batch}, learning rate {self.lr:g}, "
            f"{self.params:,} parameters"
        )


@dataclass(frozen=True)
class RunRow:
    """One run: a configuration, a seed and its evaluations, [T] each."""

    key: Key
    seed: int
    recipe: str
    num_envs: int
    columns: dict[str, Floats] = field(default_factory=dict)  # those of EVALUATION_COLUMNS

    @property
    def env_steps(self) -> Floats:
        return self.columns["env_steps"]

    @property
    def returns(self) -> Floats:
        return self.columns["return"]


@dataclass(frozen=True)
class RunTable:
    """All runs of a study that were evaluated."""

    runs: list[RunRow]
    notes: list[str] = field(default_factory=list)

    @property
    def tasks(self) -> list[str]:
        return list(dict.fromkeys(run.key.task for run in self.runs))

    def groups(self) -> dict[Key, list[RunRow]]:
        """The seeds of each configuration."""
        groups: dict[Key, list[RunRow]] = {}
        for run in self.runs:
            groups.setdefault(run.key, []).append(run)
        return groups

    def write(self, path: Path) -> Path:
        with writing(path), path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow([*CONFIG_COLUMNS, *EVALUATION_COLUMNS])
            for run in self.runs:
                key = run.key
                head = [key.task, run.recipe, key.utd, key.batch, key.lr, key.params, run.num_envs]
                for values in zip(*(run.columns[name] for name in EVALUATION_COLUMNS), strict=True):
                    writer.writerow([*head, run.seed, *(f"{value:.8g}" for value in values)])
        return path


def read_table(place: Path) -> RunTable:
    """From a study, any folder with runs, or a CSV file that `RunTable.write` made."""
    if place.is_file():
        return checked(_read_csv(place))
    if place.is_dir() and not any(place.rglob("recipe.json")):
        raise UserError(
            f"{place} is empty: there is no run in it; fleetfoot scale run trains some."
        )
    folders = find([str(place)])
    recipes = [read_recipe(folder) for folder in folders]
    check_mixture(recipes)
    sizes = CriticSizes()
    notes: list[str] = []
    runs = []
    for folder, recipe in zip(folders, recipes, strict=True):
        run, done = _read_run(folder, recipe, sizes)
        if done < 1.0:
            notes.append(f"{folder} has made {done:.0%} of its steps.")
        if len(run.env_steps) > 0:
            runs.append(run)
    if not runs:
        raise UserError(f"no run in {place} has been evaluated yet; fleetfoot scale run continues.")
    if len(notes) > 1:
        notes = [f"{len(notes)} runs have not made all their steps, {notes[0]}"]
    return checked(RunTable(runs, notes))


def checked(table: RunTable) -> RunTable:
    """Several seeds of each configuration, each once."""
    for key, runs in table.groups().items():
        seeds = [run.seed for run in runs]
        if len(set(seeds)) < len(seeds):
            raise UserError(f"there are two runs of the same seed: {key}.")
        if len(seeds) == 1:
            raise UserError(
                f"a law needs at least 2 seeds of each configuration, 8 are usual; there is one: {key}."
            )
    return table


def check_mixture(recipes: Sequence[Recipe]) -> None:
    """UserError where these are not runs of one study."""
    first: dict[str, tuple[Recipe, dict[str, Any]]] = {}
    for recipe in recipes:
        other = next(iter(first.values()), (recipe, {}))[0]
        mine, its = type(recipe.agent).__name__, type(other.agent).__name__
        if mine != its:
            raise UserError(
                f"these are recipes of several algorithms, {its} ({other.name}) and {mine} ({recipe.name}); "
                "fit one study at a time."
            )
        tree = to_json(recipe)
        fields = {k: v for k, v in flat_fields(tree) if not may_vary(k)}
        known, expected = first.setdefault(task_of(tree["env"]), (recipe, fields))
        for name in sorted({*fields, *expected}):
            if fields.get(name) != expected.get(name):
                raise UserError(
                    f"these are mixed recipes: {known.name} and {recipe.name} differ in {name} "
                    f"({expected.get(name)} and {fields.get(name)}), which is not an axis of a study."
                )


def may_vary(name: str) -> bool:
    if name.startswith("topology.ray") or name in VARIED_NETS or name.endswith(VARIED_ENDINGS):
        return True
    return any(name == varied or name.startswith(f"{varied}.") for varied in VARIED)


class CriticSizes:
    """The parameters of a recipe's critics, which only the agent itself knows."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}

    def __call__(self, recipe: Recipe, folder: Path) -> int:
        spec = read_spec(folder)
        key = json.dumps([to_json(recipe.agent), str(spec.obs_shape), str(spec.critic_shape)])
        if key not in self.known:
            import torch

            spec = replace(spec, device=torch.device("cpu"))
            agent: Any = recipe.build_agent(spec, spec.device)
            critic = getattr(agent, "critic", agent.policy)
            self.known[key] = sum(p.numel() for p in critic.parameters() if p.requires_grad)
        return self.known[key]


def _read_run(folder: Path, recipe: Recipe, sizes: CriticSizes) -> tuple[RunRow, float]:
    """A run, and the share of its steps that it has made."""
    path = folder / "metrics.jsonl"
    lines = read_lines(path) if path.exists() else []
    steps = max((line["vec_steps"] for line in lines), default=0)
    lines = [line for line in lines if isinstance(line.get(EVAL_RETURN), (int, float))]
    columns = {
        name: np.array([float(line.get(logged, math.nan)) for line in lines])
        for name, logged in EVALUATION_COLUMNS.items()
    }
    lr = lr_of(recipe)
    key = Key(
        task=task_of(to_json(recipe.env)),
        utd=utd_of(recipe),
        batch=recipe.batch_size,
        lr=0.0 if lr is None else lr,
        params=sizes(recipe, folder) if lines else 0,
    )
    run = RunRow(key, recipe.seed, recipe.name, recipe.num_envs, columns)
    return run, min(1.0, steps / recipe.total_vec_steps)


def _read_csv(path: Path) -> RunTable:
    try:
        with io.StringIO(read_bytes(path, most=MOST_LOG).decode(), newline="") as file:
            reader = csv.DictReader(file)
            wanted = [*CONFIG_COLUMNS, *EVALUATION_COLUMNS]
            if missing := [name for name in wanted if name not in (reader.fieldnames or [])]:
                raise UserError(f"{path} is not a table of a study: it has no column {missing[0]}.")
            runs = list(_runs_of(reader))
    except (ValueError, TypeError, OverflowError, csv.Error) as error:  # a line is cut short, say
        raise UserError(f"{path} cannot be read: {one_line(error)}.") from error
    if not runs:
        raise UserError(f"{path} is empty: it holds no evaluation.")
    return RunTable(runs)


def _runs_of(rows: csv.DictReader[str]) -> Iterator[RunRow]:
    found: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for row in rows:
        found.setdefault(tuple(row[name] for name in CONFIG_COLUMNS), []).append(row)
    for head, lines in found.items():
        task, recipe, utd, batch, lr, params, num_envs, seed = head
        key = Key(task, float(utd), int(batch), float(lr), int(params))
        columns = {
            name: np.array([float(line[name]) for line in lines]) for name in EVALUATION_COLUMNS
        }
        yield RunRow(key, int(seed), recipe, int(num_envs), columns)
