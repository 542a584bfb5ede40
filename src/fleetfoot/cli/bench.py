"""`fleetfoot bench NAME`: measure, print a table, keep the figures as JSON with their provenance."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import time
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import tyro

from fleetfoot.cli.form import parse
from fleetfoot.errors import UserError, nearest

# name -> (function, what it measures). Each function takes plain keyword arguments and returns a dictionary.
BENCHMARKS = {
    "env": (
        "fleetfoot.bench.env:bench_env",
        "simulation: our environments, raw physics, Gymnasium's or Playground's own",
    ),
    "learner": (
        "fleetfoot.bench.learner:bench_learner",
        "updates: eager, compiled and captured, against the rate of the card",
    ),
    "loop": (
        "fleetfoot.bench.loop:bench_loop",
        "a whole training loop: vec steps per second and where their time goes",
    ),
    "atari": ("fleetfoot.bench.atari:bench_atari", "Atari: our adapter and the bare ale-py"),
    "envpool": (
        "fleetfoot.bench.envpool:bench_envpool",
        "EnvPool: our adapter and the bare EnvPool",
    ),
    "mjlab": (
        "fleetfoot.bench.mjlab:bench_mjlab",
        "mjlab: our adapter and mjlab's own environment",
    ),
    "apex": ("fleetfoot.bench.apex:bench_apex", "Ape-X: an actor and the bare ale-py on one core"),
    "replay": ("fleetfoot.bench.replay:bench_replay", "replay: memory and sampling speed"),
    "peers": (
        "fleetfoot.bench.peers:bench_peers",
        "learning: wall-clock and return beside Stable-Baselines3",
    ),
}


def run(args: list[str], imports: list[str]) -> int:
    if not args or args[0] in ("-h", "--help"):
        lines = [f"  {name:<7}  {what}" for name, (_, what) in BENCHMARKS.items()]
        print("\n".join(["usage: fleetfoot bench NAME [--out FILE] [options]", "", *lines]))
        return 0
    name, *rest = args
    if name not in BENCHMARKS:
        known = nearest(name, BENCHMARKS) or f" There are {', '.join(BENCHMARKS)}."
        raise UserError(f"there is no benchmark {name!r}.{known}")
    measure = _find(BENCHMARKS[name][0])
    given = parse(form_of_function(measure), rest, f"fleetfoot bench {name}")
    arguments = {f.name: getattr(given, f.name) for f in dataclasses.fields(given)}
    out = (
        arguments.pop("out")
        or Path("benchmarks/results") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}.json"
    )
    from fleetfoot.bench.provenance import provenance, write_result

    made = provenance()
    result = measure(**arguments)
    show(name, result)
    print(f"written to {write_result(out, name, arguments, result, made)}")
    return 0


def form_of_function(function: Callable[..., Any]) -> type:
    """A function's parameters as a form for the command line, and `--out`."""
    hints = typing.get_type_hints(function)
    fields: list[tuple[str, Any, Any]] = [
        (
            "out",
            Annotated[Path | None, tyro.conf.arg(help="JSON file to write.")],
            dataclasses.field(default=None),
        )
    ]
    for name, parameter in inspect.signature(function).parameters.items():
        fields.append((name, hints[name], dataclasses.field(default=parameter.default)))
    form = dataclasses.make_dataclass("Benchmark", fields, kw_only=True, frozen=True)
    form.__doc__ = inspect.cleandoc(function.__doc__ or "")
    return form


def show(name: str, result: dict[str, Any]) -> None:
    """Dictionaries and lists of dictionaries become tables; everything else is a line."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    for key, value in result.items():
        rows = value
        if isinstance(value, dict):
            rows = [{"": name, "value": entry} for name, entry in value.items()]
        if isinstance(rows, list) and rows and all(isinstance(row, dict) for row in rows):
            columns = list(dict.fromkeys(column for row in rows for column in row))
            table = Table(title=f"{name}: {key.replace('_', ' ')}", title_justify="left")
            for column in columns:
                table.add_column(column.replace("_", " "))
            for row in rows:
                table.add_row(*(_text(row.get(column, "")) for column in columns))
            console.print(table)
        else:
            console.print(f"{key.replace('_', ' ')}: {_text(value)}", markup=False)


def _text(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_text, value))
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _find(place: str) -> Callable[..., dict[str, Any]]:
    module, _, function = place.partition(":")
    found: Callable[..., dict[str, Any]] = getattr(importlib.import_module(module), function)
    return found
