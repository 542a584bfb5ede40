"""What the commands that take a run folder share: finding it, and telling the user how to continue it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from fleetfoot.errors import UserError, nearest_run
from fleetfoot.extras import program


def take_run(args: list[str], command: str) -> tuple[Path | None, list[str]]:
    """The run folder that a command's arguments start with, and the arguments after it; None before `--help`."""
    if args and args[0] in ("-h", "--help"):
        return None, args
    if not args or args[0].startswith("-"):
        raise UserError(f"which run? fleetfoot {command} RUN{_newest()}")
    folder = Path(args[0])
    if not folder.is_dir():
        near = nearest_run(folder, lambda path: os.path.isfile(path / "recipe.json"))
        raise UserError(f"there is no run folder {folder}.{near}")
    return folder, args[1:]


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
    return shlex.join(words)
