"""Everything that reads a folder which may be damaged or a stranger's. A new reader is a line in `READERS`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fleetfoot import api, checkpoint, train
from fleetfoot.cli.sweep import GoOn, stored
from fleetfoot.compare import runs as compared
from fleetfoot.config import dumps, to_json
from fleetfoot.log import curve
from fleetfoot.recipes import file
from fleetfoot.run.folder import write_recipe
from fleetfoot.run.provenance import read_provenance
from fleetfoot.scale.table import read_table
from fleetfoot.study.folder import open_study, read_study
from fleetfoot.study.search import Search
from fleetfoot.study.table import write_table
from support.runs import tensors
from support.trust_recipes import tiny


@dataclass(frozen=True)
class Reader:
    """Makes a folder, and reads it: what it returns is compared with what it returns where nothing is damaged."""

    make: Callable[[Path], Any]
    read: Callable[[Path], Any]
    files: str = "**/*"  # those that it reads, or might


def digest(tree: Any) -> str:
    """Of all tensors of a tree."""
    found = hashlib.sha256()
    for name, tensor in sorted(tensors(tree).items()):
        found.update(
            name.encode() + tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        )
    return found.hexdigest()


def make_run(folder: Path) -> None:
    train(tiny(), folder)


def resumed(folder: Path) -> str:
    """The weights after some more steps."""
    api.resume(folder, total_vec_steps=24)
    return digest(checkpoint.load(folder).state["agent"])


def evaluated(folder: Path) -> list[float]:
    returns: list[float] = api.evaluate_run(folder, episodes=1).returns.tolist()
    return returns


def loaded_policy(folder: Path) -> str:
    return digest(api.load_policy(folder).policy.network.state_dict())


def filmed(folder: Path) -> str:
    return api.record_run(folder, seconds=0.2).name


def plotted(folder: Path) -> None:
    """Damaged lines of a log are left out, so its numbers may differ."""
    compared.read(folder)
    curve(folder)


def make_study(folder: Path) -> None:
    """What `fleetfoot scale` reads: a study with its runs, and a table of their evaluations."""
    open_study(folder, {"a": tiny()}, seeds=2)
    for seed in (0, 1):
        train(tiny(seed=seed), folder / "runs" / "a" / f"seed-{seed}")
    read_table(folder).write(folder / "table.csv")


def make_recipes(folder: Path) -> None:
    """A whole recipe as JSON and as YAML, one that starts from another, and that of a run."""
    folder.mkdir()
    (folder / "whole.json").write_text(dumps(tiny()))
    (folder / "whole.yaml").write_text(file.to_yaml(tiny()))
    (folder / "partial.yaml").write_text("recipe: fast_td3/pendulum\nagent: {tau: 1e-2}\n")
    write_recipe(folder, tiny())


def read_recipes(folder: Path) -> None:
    """What somebody wrote by hand has no digest, so that other numbers are just another recipe."""
    for path in sorted(folder.iterdir()):
        file.read_file(path)


def origin(folder: Path) -> None:
    """A damaged file counts as none."""
    read_provenance(folder)


def make_sweep(folder: Path) -> None:
    make_study(folder)
    sweep = {
        "base": to_json(tiny()),
        "over": ["gamma=0..1"],
        "search": True,
        "goal": {"metric": "eval/return", "minimize": False, "trials": 1, "prune": True},
        "trials": {"a": ["complete", 0]},
    }
    open_study(folder, {}, 2, (), {"a": {"gamma": "0.5"}}, sweep)


def read_sweep(folder: Path) -> bool:
    made = stored(GoOn(folder=folder))
    Search(made.study, made.axes, made.goal, made.point, made.whole())
    return bool(write_table(made.study, made.goal.metric))


READERS = {
    "resume": Reader(make_run, resumed),
    "evaluate": Reader(make_run, evaluated),
    "load_policy": Reader(make_run, loaded_policy),
    "record": Reader(make_run, filmed),
    "compare": Reader(make_run, plotted, "*.json*"),
    "study": Reader(make_study, lambda folder: bool(read_study(folder)), "study.json"),
    "recipe file": Reader(make_recipes, read_recipes),
    "sweep": Reader(make_sweep, read_sweep, "**/*.json*"),
    "provenance": Reader(make_run, origin, "provenance.json"),
    "scale": Reader(make_study, lambda folder: bool(read_table(folder)), "**/*.json*"),
    "scale table": Reader(
        make_study, lambda folder: bool(read_table(folder / "table.csv")), "*.csv"
    ),
}
