"""`fleetfoot pull USER/NAME`"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro

from fleetfoot.cli.form import parse
from fleetfoot.cli.run_folder import command_line
from fleetfoot.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Options:
    """Download a policy from a Hugging Face repository as a run folder: fleetfoot pull USER/NAME [options]."""

    repo: tyro.conf.Positional[str] = ""
    """The repository, USER/NAME."""
    folder: Path | None = None
    """Folder for the run; by default runs/NAME."""
    revision: str | None = None
    """A branch, a tag or a commit; by default the newest."""


def run(args: list[str], imports: list[str]) -> int:
    options: Options = parse(Options, args, "fleetfoot pull USER/NAME")
    if not options.repo:
        raise UserError("from which repository? fleetfoot pull USER/NAME.")
    from fleetfoot import hub

    folder = hub.pull(options.repo, options.folder, revision=options.revision)
    print(f"pulled  {folder}\n")
    print("  " + command_line("evaluate", folder, imports=imports))
    print("  " + command_line("record", folder, imports=imports))
    return 0
