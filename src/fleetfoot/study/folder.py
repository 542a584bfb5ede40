"""The folder of a study: its configurations, and what they were chosen for."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fleetfoot.config import to_json
from fleetfoot.errors import UserError, one_line, writing
from fleetfoot.files import read_json, write_text
from fleetfoot.recipe import Recipe
from fleetfoot.run.folder import differences, from_stored, look_up
from fleetfoot.study.jobs import Job
from fleetfoot.topologies.multi_seed.loop import why_not_batched
from fleetfoot.topologies.multi_seed.seeds import make_folders

MOST_SEEDS = 100_000
Settings = Mapping[str, str]  # field of the recipe -> its value, as on the command line


@dataclass(frozen=True)
class Study:
    """Configurations and the seeds that each is trained with: `seeds` of them, from the recipe's own seed on."""

    folder: Path
    seeds: int
    points: Mapping[str, Recipe]  # by name, which is also a folder's
    imports: Sequence[str] = ()  # modules with parts that the recipes need
    settings: Mapping[str, Settings] = field(default_factory=dict)  # what a point changes, by name
    sweep: Mapping[str, Any] = field(default_factory=dict)  # how `fleetfoot sweep` goes on with it

    def point_folder(self, name: str) -> Path:
        return self.folder / "runs" / name

    def seed_folders(self, name: str) -> list[Path]:
        first = self.points[name].seed
        return [
            self.point_folder(name) / f"seed-{seed}" for seed in range(first, first + self.seeds)
        ]

    def job(self, name: str) -> Job:
        """One process for all seeds of a configuration."""
        return Job(name, self.points[name], tuple(self.seed_folders(name)))

    def jobs(self) -> list[Job]:
        """Seeds that cannot learn as one batched computation have a process each. Makes all run folders."""
        made = []
        for name, recipe in self.points.items():
            self.make_folders(name)
            if why_not_batched(recipe) is None:
                made.append(self.job(name))
            else:
                made += [
                    Job(f"{name}-{run.name}", replace(recipe, seed=recipe.seed + number), (run,))
                    for number, run in enumerate(self.seed_folders(name))
                ]
        return made

    def make_folders(self, name: str) -> None:
        """UserError where one of them is a link: a study trains in its own folder, whoever made it."""
        recipe, place = self.points[name], self.point_folder(name)
        for folder in (place.parent, place, *self.seed_folders(name)):
            if folder.is_symlink():
                raise UserError(f"{folder} is a link, which is not followed.")
        if not place.exists():
            with writing(place):
                place.parent.mkdir(parents=True, exist_ok=True)
            make_folders(place, recipe, range(recipe.seed, recipe.seed + self.seeds))

    def write(self) -> None:
        tree = {
            "seeds": self.seeds,
            "imports": list(self.imports),
            "points": {name: to_json(recipe) for name, recipe in self.points.items()},
            "settings": {name: dict(values) for name, values in self.settings.items()},
            "sweep": dict(self.sweep),
        }
        write_text(self.folder / "study.json", json.dumps(tree, indent=1) + "\n")


def open_study(
    folder: Path,
    points: Mapping[str, Recipe],
    seeds: int,
    imports: Sequence[str] = (),
    settings: Mapping[str, Settings] | None = None,
    sweep: Mapping[str, Any] | None = None,
) -> Study:
    """A new study, or the one in `folder` with those of the `points` added that it does not have yet."""
    if seeds < 1:
        raise UserError(f"--seeds must be at least 1, not {seeds}.")
    stored = Study(folder, seeds, {})
    if not is_study(folder):
        with writing(folder):
            # What is hidden a kill may have left, before there was a study.
            if folder.exists() and (
                folder.is_file() or any(p.name[0] != "." for p in folder.iterdir())
            ):
                raise UserError(f"{folder} exists and is not a study; give another --folder.")
    else:
        stored = read_study(folder)
        if stored.seeds != seeds:
            raise UserError(
                f"{folder} has {stored.seeds} seeds of each configuration, not {seeds}; give --seeds "
                f"{stored.seeds}, or another --folder."
            )
        check_imports(stored)
    for name, recipe in points.items():
        check_no_cluster(recipe)
        known = stored.points.get(name, recipe)
        if path := next(differences(known, recipe), None):
            raise UserError(
                f"{folder} has {name} with {path} {look_up(known, path)}, not {look_up(recipe, path)}; "
                "give another --folder."
            )
    study = Study(
        folder,
        seeds,
        {**stored.points, **points},
        tuple(dict.fromkeys([*stored.imports, *imports])),
        {**stored.settings, **(settings or {})},
        {**stored.sweep, **(sweep or {})},
    )
    study.write()
    return study


def check_imports(study: Study) -> None:
    """The processes of a study import its modules, so the command line must have named them."""
    for module in study.imports:
        if module not in sys.modules:
            raise UserError(
                f"{study.folder} needs the module {module!r:.80}; if you trust it, name it: --import {module:.80}"
            )


def check_no_cluster(recipe: Recipe) -> None:
    """UserError for a recipe that joins a Ray cluster: a process of a study reads its recipe from disk, and an address
    that was read from disk is not believed."""
    if getattr(getattr(recipe.topology, "ray", None), "address", ""):
        raise UserError(
            "a run in a separate process cannot join a Ray cluster: leave out --topology.ray.address."
        )


def is_study(folder: Path) -> bool:
    return os.path.lexists(folder / "study.json")


def read_study(folder: Path) -> Study:
    if not is_study(folder):
        raise UserError(f"{folder} is not a study: it has no study.json.")
    path = folder / "study.json"
    tree = read_json(path)
    if not isinstance(tree, dict):
        raise UserError(f"{path} holds no study.")
    try:
        points = {
            _folder_name(name): from_stored(one, path) for name, one in tree["points"].items()
        }
        seeds = int(tree["seeds"])
        imports = tuple(map(str, list(tree.get("imports", []))))
        settings = {
            str(name): {str(key): str(value) for key, value in values.items()}
            for name, values in dict(tree.get("settings", {})).items()
        }
        sweep = {str(key): value for key, value in dict(tree.get("sweep", {})).items()}
    except (KeyError, ValueError, TypeError, AttributeError, OverflowError) as error:
        raise UserError(f"{path} cannot be read: {one_line(error)}.") from error
    if not 1 <= seeds <= MOST_SEEDS:
        raise UserError(f"{path} cannot be read: it has {seeds} seeds.")
    return Study(folder, seeds, points, imports, settings, sweep)


def _folder_name(name: str) -> str:
    """A study trains in its own folder, whatever it calls its configurations."""
    if name.startswith(".") or not name.isprintable() or set(name) & set("/\\:") or not name:
        raise ValueError(f"{name!r:.80} cannot be the name of a configuration")
    return name
