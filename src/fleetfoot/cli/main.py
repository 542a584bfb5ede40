"""`fleetfoot COMMAND ...`: finds the command, and turns what the user can put right into one line."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from fleetfoot.errors import Notice, Program, UserError, nearest, place, printable

# command -> (module with `run(args, imports) -> exit code`, what it does)
COMMANDS = {
    "train": (
        "fleetfoot.cli.train",
        "train a recipe, by name or from a file: fleetfoot train [RECIPE] [--field value ...]",
    ),
    "resume": ("fleetfoot.cli.resume", "continue a stopped run: fleetfoot resume RUN"),
    "evaluate": ("fleetfoot.cli.evaluate", "evaluate a run's policy: fleetfoot evaluate RUN"),
    "record": ("fleetfoot.cli.record", "record a video of a run's policy: fleetfoot record RUN"),
    "export": (
        "fleetfoot.cli.export",
        "write a run's policy as ONNX, with everything a robot needs: fleetfoot export RUN",
    ),
    "play": (
        "fleetfoot.cli.play",
        "drive a robot with its policy, in the browser: fleetfoot play [RUN|FOLDER|policy.onnx]",
    ),
    "watch": (
        "fleetfoot.cli.watch",
        "watch a run's newest policy while it trains: fleetfoot watch RUN",
    ),
    "compare": (
        "fleetfoot.cli.compare",
        "compare runs statistically: fleetfoot compare RUNS...",
    ),
    "sweep": (
        "fleetfoot.cli.sweep",
        "train many settings, by grid or search: fleetfoot sweep RECIPE --over agent.tau=0.005,0.05 --folder STUDY",
    ),
    "report": (
        "fleetfoot.cli.report",
        "make a self-contained HTML page about runs: fleetfoot report RUNS... --out report.html",
    ),
    "dashboard": (
        "fleetfoot.cli.dashboard",
        "show the same page live for a folder of runs: fleetfoot dashboard [runs/]",
    ),
    "push": (
        "fleetfoot.cli.push",
        "upload a run's best policy to Hugging Face: fleetfoot push RUN USER/NAME",
    ),
    "pull": (
        "fleetfoot.cli.pull",
        "download a policy from Hugging Face: fleetfoot pull USER/NAME",
    ),
    "scale": (
        "fleetfoot.cli.scale",
        "measure how data and compute scale with updates per step: fleetfoot scale run|fit|suggest",
    ),
    "recipe": (
        "fleetfoot.cli.recipe",
        "print a whole recipe, or how two differ: fleetfoot recipe show|diff",
    ),
    "list": ("fleetfoot.cli.listing", "list the available recipes and environments"),
    "doctor": (
        "fleetfoot.cli.doctor",
        "show what this machine has, what is missing and how to install it",
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
    warnings.formatwarning = as_printed
    out = Output(sys.stdout if speaks() else None)
    Program.is_ours = True
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(Output(sys.stderr)):
            args = list(sys.argv[1:] if argv is None else argv)
            code = run(args)
            out.flush()
            sys.stderr.flush()
            if out.lost is not None:
                reason = out.lost.strerror or out.lost
                print(f"fleetfoot: cannot write to standard output: {reason}.", file=sys.stderr)
                saved = args[:1] in (["train"], ["resume"])  # what counts is in the run folder
                code = code if saved else 2
    finally:
        Program.is_ours = False
    guard = sys.modules.get("fleetfoot.guard")
    if guard is not None and guard.WATCH.abandoned:
        os._exit(code)
    sys.exit(code)


def run(args: list[str]) -> int:
    try:
        return dispatch(args)
    except UserError as error:
        return complain(error)
    except KeyboardInterrupt:
        print("fleetfoot: interrupted.", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        system = sys.modules.get(
            "fleetfoot.system"
        )  # it imports torch; without it nothing was large
        if system is None or not system.out_of_memory(error):
            raise
        line = f"memory has run out{system.asked_for(error)}{place(error)}"
        if args[:1] in (["train"], ["resume"]):
            line += (
                ": use a smaller --batch-size, --num-envs or --replay.capacity, or smaller networks"
            )
        return complain(UserError(f"{line}."))


class Output(io.TextIOBase):
    """Standard output or error. If it cannot be written to (its reader is gone, its disk is full), the rest is dropped,
    and the command goes on: a run matters more than its console."""

    def __init__(self, stream: Any) -> None:
        """`stream` None, as Python has it where it was closed before: all of it goes nowhere."""
        self.stream = open(os.devnull, "w") if stream is None else stream  # noqa: SIM115
        if isinstance(self.stream, io.TextIOWrapper):
            self.stream.reconfigure(errors="replace")  # some encodings have no block characters
        self.lost: OSError | None = (
            None  # why something was dropped, if not because its reader is gone
        )

    def write(self, text: str) -> int:
        with self._guarded():
            self.stream.write(text)
        return len(text)

    def flush(self) -> None:
        # Python asks once more when this object ends, and since 3.13 tells of errors.
        if not self.stream.closed:
            with self._guarded():
                self.stream.flush()

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if not isinstance(error, BrokenPipeError):
                self.lost = self.lost or error
            # Its buffer still holds what could not be written. From now on all of it goes nowhere, also at exit.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.stream.fileno())
            os.close(nowhere)

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return bool(self.stream.isatty())

    def fileno(self) -> int:
        return int(self.stream.fileno())

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return str(self.stream.encoding)

    @property
    def buffer(self) -> Any:
        return self.stream.buffer


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


def as_printed(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    line: str | None = None,
) -> str:
    """A warning as it is printed. A notice is for the user, to whom its place in the source says nothing."""
    if issubclass(category, Notice):
        return f"fleetfoot: {printable(str(message))}\n"
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
            "For more, run fleetfoot COMMAND --help. fleetfoot train RECIPE --help shows every value of that recipe.",
            "--import MODULE (anywhere, may be repeated) loads your own parts first.",
        ]
    )
