"""The folder of a study: its configurations, and how far each has come."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fleetfoot.config import to_json
from fleetfoot.errors import UserError, one_line, writing
from fleetfoot.files import read_json, write_text
from fleetfoot.recipe import Recipe
from fleetfoot.run.folder import differences, from_stored, look_up
from fleetfoot.topologies.multi_seed.seeds import is_finished, saved_steps

TAIL_BYTES = 65_536  # of a log; one line of it is far shorter


@dataclass(frozen=True)
class Study:
    """Configurations and the seeds that each is trained with: `seeds` of them, from the recipe's own seed on."""

    folder: Path
    seeds: int
    points: Mapping[str, Recipe]  # by name, which is also a folder's
    imports: Sequence[str] = field(
        default_factory=tuple
    )  # modules with parts that the recipes need

    def point_folder(self, name: str) -> Path:
        return self.folder / "runs" / name

    def seed_folders(self, name: str) -> list[Path]:
        first = self.points[name].seed
        return [
            self.point_folder(name) / f"seed-{seed}" for seed in range(first, first + self.seeds)
        ]

    def finished(self, name: str) -> bool:
        return all(is_finished(folder, self.points[name]) for folder in self.seed_folders(name))

    def done(self, name: str) -> float:
        """The share of a configuration's vec steps that its seeds have made, 0 to 1."""
        total = self.points[name].total_vec_steps
        steps = [min(total, _vec_steps(folder)) for folder in self.seed_folders(name)]
        return sum(steps) / (total * self.seeds)

    def work(self, name: str) -> float:
        """How much there is to do for a configuration, in units that are comparable within a study."""
        recipe = self.points[name]
        return float(recipe.total_vec_steps + recipe.total_updates())

    def write(self) -> None:
        tree = {
            "seeds": self.seeds,
            "imports": list(self.imports),
            "points": {name: to_json(recipe) for name, recipe in self.points.items()},
        }
        write_text(self.folder / "study.json", json.dumps(tree, indent=1) + "\n")


def open_study(
    folder: Path, points: Mapping[str, Recipe], seeds: int, imports: Sequence[str] = ()
) -> Study:
    """A new study, or the one in `folder` with those of the `points` added that it does not have yet."""
    if seeds < 1:
        raise UserError(f"--seeds must be at least 1, not {seeds}.")
    if not is_study(folder):
        with writing(folder):
            if folder.exists() and (folder.is_file() or any(folder.iterdir())):
                raise UserError(f"{folder} exists and is no study; give another --folder.")
        known: dict[str, Recipe] = {}
    else:
        stored = read_study(folder)
        if stored.seeds != seeds:
            raise UserError(
                f"{folder} has {stored.seeds} seeds of each configuration, not {seeds}; give --seeds "
                f"{stored.seeds}, or another --folder."
            )
        for module in stored.imports:  # they are imported when it is trained
            if module not in sys.modules:
                raise UserError(
                    f"{folder} needs the module {module!r:.80}; if you trust it, name it: --import {module:.80}"
                )
        known, imports = dict(stored.points), list(dict.fromkeys([*stored.imports, *imports]))
    for name, recipe in points.items():
        if path := next(differences(known.get(name, recipe), recipe), None):
            raise UserError(
                f"{folder} has {name} with {path} {look_up(known[name], path)}, not {look_up(recipe, path)}; "
                "give another --folder."
            )
    study = Study(folder, seeds, known | dict(points), tuple(imports))
    study.write()
    return study


def is_study(folder: Path) -> bool:
    return os.path.lexists(folder / "study.json")


def stored_imports(folder: Path) -> list[str]:
    """The modules to import before the study can be read."""
    names = _tree(folder).get("imports", [])
    return [str(name) for name in names] if isinstance(names, list) else []


def read_study(folder: Path) -> Study:
    tree = _tree(folder)
    try:
        path = folder / "study.json"
        points = {str(name): from_stored(one, path) for name, one in tree["points"].items()}
        seeds = int(tree["seeds"])
    except (KeyError, ValueError, TypeError, AttributeError, OverflowError) as error:
        raise _unreadable(folder, error) from error
    return Study(folder, seeds, points, tuple(stored_imports(folder)))


def _tree(folder: Path) -> dict[str, Any]:
    if not is_study(folder):
        raise UserError(f"{folder} is no study: it has no study.json.")
    tree = read_json(folder / "study.json")
    if not isinstance(tree, dict):
        raise UserError(f"{folder / 'study.json'} holds no study.")
    return tree


def _unreadable(folder: Path, error: Exception) -> UserError:
    return UserError(f"{folder / 'study.json'} cannot be read: {one_line(error)}.")


def _vec_steps(run: Path) -> int:
    """The vec steps in the last whole line of a run's log, or of its last checkpoint if there is more."""
    saved = max(saved_steps(run), default=0)
    try:
        with (run / "metrics.jsonl").open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            lines = file.read().splitlines()
    except OSError:
        return saved
    for line in reversed(lines):
        try:
            return max(saved, int(json.loads(line)["vec_steps"]))
        except (ValueError, KeyError, TypeError):  # the last line may be half written
            continue
    return saved
