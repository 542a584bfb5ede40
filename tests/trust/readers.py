"""Everything that reads a folder which may be damaged or a stranger's. A new reader is a line in `READERS`."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fleetfoot import api, checkpoint, deploy, report, train
from fleetfoot.cli.sweep import GoOn, stored
from fleetfoot.compare import Ask, Bootstrap
from fleetfoot.compare import runs as compared
from fleetfoot.config import dumps, to_json
from fleetfoot.log import curve
from fleetfoot.play.source import SHIPPED
from fleetfoot.recipes import file
from fleetfoot.run.folder import write_recipe
from fleetfoot.run.provenance import read_provenance
from fleetfoot.scale import analysis
from fleetfoot.scale.report import write_tables
from fleetfoot.scale.suggest import Laws
from fleetfoot.scale.table import read_table
from fleetfoot.study.folder import open_study, read_study
from fleetfoot.study.search import Search
from fleetfoot.study.table import write_table
from support.planted_study import Planted, on_law
from support.report_runs import add_film, write_provenance
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


def reported(folder: Path) -> None:
    """Damaged lines of a log, films and a provenance are left out, so the page may differ."""
    page = report.build([folder], report.Wish(ask=Ask(bootstrap=Bootstrap(reps=100))))
    report.page_html(page, live=True)  # without Plotly's script, which no file changes


def make_filmed(folder: Path) -> None:
    make_run(folder)
    add_film(folder)
    write_provenance(folder, {"command": "fleetfoot train x", "versions": {"torch": "2.13"}})


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


def make_fit(folder: Path) -> None:
    """What `fleetfoot scale fit` writes."""
    planted = Planted(noise=0.02)
    table = planted.table(on_law(planted, (0.5, 1.0, 2.0, 4.0)), seeds=2, evaluations=60)
    write_tables(
        table, analysis.analyse(table, analysis.Ask(everywhere=(0.0, 1000.0), reps=2)), folder
    )


def suggested(folder: Path) -> list[Any]:
    """The options that the laws give for a budget of each kind."""
    laws = Laws.read(folder)
    found = [laws.for_budget(3e12), laws.for_seconds(100.0), laws.for_env_steps(60_000.0)]
    return [laws.options(one, task) for one in found for task in laws.recipes]


def make_export(folder: Path) -> None:
    shutil.copytree(SHIPPED, folder, dirs_exist_ok=True)


READERS = {
    "exported": Reader(make_export, lambda folder: deploy.load(folder).check() < 1e-4),
    "resume": Reader(make_run, resumed),
    "evaluate": Reader(make_run, evaluated),
    "load_policy": Reader(make_run, loaded_policy),
    "record": Reader(make_run, filmed),
    "compare": Reader(make_run, plotted, "*.json*"),
    "report": Reader(make_filmed, reported, "**/*[nl4]"),  # .json, .jsonl, .mp4
    "study": Reader(make_study, lambda folder: bool(read_study(folder)), "study.json"),
    "recipe file": Reader(make_recipes, read_recipes),
    "sweep": Reader(make_sweep, read_sweep, "**/*.json*"),
    "provenance": Reader(make_run, origin, "provenance.json"),
    "scale": Reader(make_study, lambda folder: bool(read_table(folder)), "**/*.json*"),
    "scale table": Reader(
        make_study, lambda folder: bool(read_table(folder / "table.csv")), "*.csv"
    ),
    "scale fit": Reader(make_fit, suggested, "fit.json"),
}
