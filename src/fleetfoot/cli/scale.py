"""`fleetfoot scale run|fit|suggest`"""

from __future__ import annotations

import importlib

from fleetfoot.errors import UserError, nearest

# command -> (module with `run(args, imports) -> exit code`, what it does)
COMMANDS = {
    "run": (
        "fleetfoot.cli.scale_run",
        "train a grid: fleetfoot scale run RECIPE... --utd 0.5 1 2 4 --seeds 8 --folder STUDY",
    ),
    "fit": (
        "fleetfoot.cli.scale_fit",
        "fit the laws: fleetfoot scale fit STUDY",
    ),
    "suggest": (
        "fleetfoot.cli.scale_suggest",
        "options for a budget: fleetfoot scale suggest STUDY --seconds 600",
    ),
}


def run(args: list[str], imports: list[str]) -> int:
    if not args or args[0] in ("-h", "--help"):
        print(usage())
        return 0
    name, *rest = args
    if name not in COMMANDS:
        known = nearest(name, COMMANDS) or f" There are {', '.join(COMMANDS)}."
        raise UserError(f"there is no command scale {name}.{known}")
    return int(importlib.import_module(COMMANDS[name][0]).run(rest, imports))


def usage() -> str:
    lines = [f"  {name:<8} {what}" for name, (_, what) in COMMANDS.items()]
    return "\n".join(
        [
            "usage: fleetfoot scale COMMAND [...]",
            "",
            "Measure how data and compute depend on the update-to-data ratio, and find the best ratio for a budget.",
            "",
            *lines,
            "",
            "For more, run fleetfoot scale COMMAND --help.",
        ]
    )
