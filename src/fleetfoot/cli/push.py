"""`fleetfoot push RUN USER/NAME`"""

from __future__ import annotations

from dataclasses import dataclass

import tyro

from fleetfoot.cli.run_folder import run_and_options
from fleetfoot.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Options:
    """Upload a run's best policy to a Hugging Face repository: fleetfoot push RUN USER/NAME [options]."""

    repo: tyro.conf.Positional[str] = ""
    """The repository, USER/NAME; created if it does not exist."""
    public: bool = False
    """Make a new repository public; by default it is private."""
    message: str = ""
    """Commit message."""


def run(args: list[str], imports: list[str]) -> int:
    folder, options = run_and_options(Options, args, "push", "RUN USER/NAME")
    if not options.repo:
        raise UserError("to which repository? fleetfoot push RUN USER/NAME.")
    from fleetfoot import hub

    done = hub.push(folder, options.repo, public=options.public, message=options.message)
    print(f"pushed  {done.address} ({done.files} files, {done.bytes / 1e6:.1f} MB)")
    return 0
