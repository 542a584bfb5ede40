"""What the commands that take a run folder share: finding it, and telling the user how to continue it."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fleetfoot.errors import UserError, nearest_run
from fleetfoot.extras import program


def run_and_options(
    form: type, args: list[str], command: str, usage: str = "RUN"
) -> tuple[Path, Any]:
    """The run folder that a command's arguments start with, and its options."""
    from fleetfoot.cli.form import parse

    folder, rest = (Path(), args) if args[:1] in (["-h"], ["--help"]) else take_run(args, command)
    return folder, parse(form, rest, f"fleetfoot {command} {usage}")  # `--help` ends here


def take_run(args: list[str], command: str) -> tuple[Path, list[str]]:
    """The run folder that a command's arguments start with, and the arguments after it."""
    if not args or args[0].startswith("-"):
        first = "It comes before the options: " if args else ""
        raise UserError(f"which run? {first}fleetfoot {command} RUN{_newest()}")
    folder = Path(args[0])
    if folder.is_file() and folder.name == "recipe.json":
        raise UserError(f"{folder} is the recipe of a run; give its folder, {folder.parent}.")
    if not folder.is_dir():
        near = nearest_run(folder, lambda path: os.path.isfile(path / "recipe.json"))
        raise UserError(f"there is no run folder {folder}.{near}")
    return folder, args[1:]


def one_seed(folder: Path) -> Path:
    """For a command that reads a policy: `folder`, or the best seed of several in it, which is said."""
    best = None if (folder / "recipe.json").exists() else best_seed(folder)
    if best is None:
        return folder
    print(
        f"fleetfoot: {folder} holds several seeds; this is {best.name}, which has the best evaluation of them.",
        file=sys.stderr,
    )
    return best


def best_seed(place: Path) -> Path | None:
    """Of the runs of several seeds, the one whose best evaluation is the highest; None before the first evaluation."""
    runs = sorted(path.parent for path in place.glob("seed-*/recipe.json"))
    if not runs:
        return None
    from fleetfoot.checkpoint.read import read_pointer  # slow to import, and rarely needed

    pointers = {run: read_pointer(run / "checkpoints", "best") for run in runs}
    scores = {run: pointer["score"] for run, pointer in pointers.items() if pointer is not None}
    known = {run: score for run, score in scores.items() if score is not None}
    return max(known, key=known.__getitem__, default=None)


def _newest() -> str:
    runs = [path.parent for path in Path("runs").glob("*/recipe.json")]
    if not runs:
        return " (there are none under runs/ yet)."
    return f", for instance {max(runs, key=lambda path: path.stat().st_mtime)}."


def command_line(command: str, folder: Path, *rest: str, imports: Sequence[str] = ()) -> str:
    """A command to copy, with the user's own modules where the run needs them."""
    words = [program("fleetfoot"), command, str(folder), *rest]
    count = os.environ.get("LOCAL_WORLD_SIZE", "1")
    if command == "resume" and count != "1":  # as it was started
        launcher = [program("torchrun"), "--standalone", "--nproc-per-node", count]
        words = [*launcher, "-m", "fleetfoot", *words[1:]]
    for module in imports:
        words += ["--import", module]
    tops = {module.partition(".")[0] for module in imports}
    path = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    path = [folder for folder in path if any(_holds(folder, top) for top in tops)]
    before = f"PYTHONPATH={shlex.quote(os.pathsep.join(path))} " if path else ""
    return before + shlex.join(words)


def _holds(folder: str, module: str) -> bool:
    place = os.path.join(folder, module)
    return os.path.isfile(f"{place}.py") or os.path.isdir(place)
