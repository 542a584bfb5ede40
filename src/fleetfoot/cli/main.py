"""`fleetfoot COMMAND ...`: finds the command, and turns what the user can put right into one line."""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from collections.abc import Sequence

from fleetfoot.errors import Notice, UserError, nearest

# command -> (module with `run(args, imports) -> exit code`, what it does)
COMMANDS = {
    "train": (
        "fleetfoot.cli.train",
        "train a recipe: fleetfoot train [RECIPE] [--field value ...]",
    ),
    "resume": ("fleetfoot.cli.resume", "go on with a stopped run: fleetfoot resume RUN"),
    "evaluate": ("fleetfoot.cli.evaluate", "measure a run's policy: fleetfoot evaluate RUN"),
    "record": ("fleetfoot.cli.record", "film a run's policy: fleetfoot record RUN"),
    "compare": (
        "fleetfoot.cli.compare",
        "weigh runs against each other: fleetfoot compare RUNS...",
    ),
    "scale": (
        "fleetfoot.cli.scale",
        "how data and compute scale with updates per step: fleetfoot scale run|fit|suggest",
    ),
    "list": ("fleetfoot.cli.listing", "the recipes and the environments there are"),
    "doctor": (
        "fleetfoot.cli.doctor",
        "what this machine has, what is missing and how to install it",
    ),
    "bench": (
        "fleetfoot.cli.bench",
        "measure speed and learning: fleetfoot bench NAME",
    ),
}

INTERRUPTED = 130
PLAIN_FORMAT = warnings.formatwarning


def main(argv: Sequence[str] | None = None) -> None:
    """The console script. Exit codes: 0 done, 2 the user's to put right, 130 interrupted."""
    if not speaks():
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    warnings.formatwarning = one_line
    try:
        code = dispatch(list(sys.argv[1:] if argv is None else argv))
    except UserError as error:
        code = complain(error)
    except KeyboardInterrupt:
        print("fleetfoot: interrupted.", file=sys.stderr)
        code = INTERRUPTED
    except BrokenPipeError:
        # `fleetfoot list | head`: the reader has gone; keep Python from complaining about it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    sys.exit(code)


def speaks() -> bool:
    """Of several processes that torchrun started, the first speaks for all."""
    return os.environ.get("RANK", "0") == "0" or os.environ.get("WORLD_SIZE", "1") == "1"


def complain(error: UserError) -> int:
    line: str | None = str(error)
    if os.environ.get("WORLD_SIZE", "1") != "1":
        from fleetfoot.run.ranks import error_line  # slow to import, and rarely needed

        line = error_line(error)
    if line is None:
        return (
            0  # a failure here would make torchrun end the process that is about to tell the user
        )
    print(f"fleetfoot: {line}", file=sys.stderr)
    return 2


def one_line(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    line: str | None = None,
) -> str:
    """A warning as it is printed. A notice is for the user, to whom its place in the source says nothing."""
    if issubclass(category, Notice):
        return f"fleetfoot: {message}\n"
    return PLAIN_FORMAT(message, category, filename, lineno, line)


def dispatch(args: list[str]) -> int:
    imports, args = take_imports(args)
    if not args or args[0] in ("-h", "--help", "help"):
        print(usage())
        return 0
    if args[0] == "--version":
        from fleetfoot import __version__

        print(f"fleetfoot {__version__}")
        return 0
    name, *rest = args
    if name not in COMMANDS:
        known = nearest(name, COMMANDS) or f" There are {', '.join(COMMANDS)}."
        raise UserError(f"there is no command {name!r}.{known}")
    for module in imports:
        import_own(module)
    return int(importlib.import_module(COMMANDS[name][0]).run(rest, imports))


def take_imports(args: list[str]) -> tuple[list[str], list[str]]:
    """The modules named by `--import`, wherever it stands, and the other arguments."""
    modules: list[str] = []
    left: list[str] = []
    words = iter(args)
    for word in words:
        if word == "--import":
            modules.append(next(words, ""))
        elif word.startswith("--import="):
            modules.append(word.removeprefix("--import="))
        else:
            left.append(word)
    if "" in modules:
        raise UserError("--import needs the name of a Python module, as in --import my_robot.")
    return modules, left


def import_own(module: str) -> object:
    """Import a user's module, with the current folder on the path."""
    if (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        # Only the module asked for: what is missing inside it is a different mistake, whose traceback helps.
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise UserError(
            f"there is no Python module {module!r} here or on the path; "
            "run from the folder that holds it, or set PYTHONPATH."
        ) from None


def usage() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {what}" for name, (_, what) in COMMANDS.items()]
    return "\n".join(
        [
            "usage: fleetfoot COMMAND [...]",
            "",
            "Train robots with massively parallel off-policy reinforcement learning.",
            "",
            *lines,
            "",
            "fleetfoot COMMAND --help says more; fleetfoot train RECIPE --help shows every value of that recipe.",
            "--import MODULE (anywhere, any number of times) loads your own parts first.",
        ]
    )
