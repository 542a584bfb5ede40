"""Find a benchmark by its name, measure, print the result as tables and write it as JSON with its provenance."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import time
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import tyro

from fleetfoot.cli.form import parse
from fleetfoot.errors import UserError, nearest

RESULTS = Path(__file__).parent / "results"

# A dictionary, or, where a measurement takes long, the same dictionary again and again while it grows.
Result = dict[str, Any] | Iterator[dict[str, Any]]

# name: (module and function, what it measures)
BENCHMARKS = {
    "env": (
        "speed.env:bench_env",
        "simulation: our environments, raw physics, Gymnasium's or Playground's own",
    ),
    "learner": (
        "speed.learner:bench_learner",
        "updates: eager, compiled and captured, against the rate of the card",
    ),
    "loop": (
        "speed.loop:bench_loop",
        "a whole training loop: vec steps per second and where their time goes",
    ),
    "replay": ("speed.replay:bench_replay", "replay: memory, sampling speed, priorities"),
    "atari": ("speed.atari:bench_atari", "Atari: our adapter and the bare ale-py"),
    "envpool": ("speed.envpool:bench_envpool", "EnvPool: our adapter and the bare EnvPool"),
    "processes": (
        "speed.processes:bench_processes",
        "Gymnasium environments in processes: ours and AsyncVectorEnv",
    ),
    "mjlab": ("speed.mjlab:bench_mjlab", "mjlab: our adapter and mjlab's own environment"),
    "robot": (
        "speed.robot:bench_robot",
        "robots: the vec step beside the bare physics, and captured against eager",
    ),
    "play": ("speed.play:bench_play", "pictures per second of fleetfoot play, with a browser"),
    "deploy": (
        "speed.deploy:bench_deploy",
        "an exported policy: one control step on one core, without torch",
    ),
    "playground-check": (
        "speed.playground_check:check_playground",
        "Playground on a GPU: contract, zero copies, final observations",
    ),
    "apex": ("speed.apex:bench_apex", "Ape-X: an actor and the bare ale-py on one core"),
    "bro": ("speed.bro:bench_bro", "BRO: updates per second, alone and with several seeds"),
    "peers": (
        "studies.peers:bench_peers",
        "learning: wall-clock and return beside Stable-Baselines3",
    ),
    "curves": ("studies.recipe_curves:recipe_curves", "learning curves of a recipe, several seeds"),
    "many-actions": (
        "studies.many_actions:many_actions",
        "DAA: gradient variance over the actions per state, and curves beside PPO",
    ),
    "mjlab-peers": (
        "studies.mjlab_peers:mjlab_peers",
        "mjlab velocity tasks: our runs beside rsl_rl's PPO at equal seconds of training",
    ),
    "own-tasks": (
        "studies.own_tasks:own_tasks",
        "a recipe for unknown tasks on several tasks of Gymnasium, nothing else changed",
    ),
    "pong": ("studies.pong:pong", "Pong: Ape-X and one process, until solved"),
    "apex-actors": ("studies.apex_actors:apex_actors", "Ape-X: 1 to 8 actors at equal updates"),
    "gorila-bundles": (
        "studies.gorila_bundles:gorila_bundles",
        "Gorila: 1 to 4 bundles at equal work of each",
    ),
    "deploy-return": (
        "studies.deploy_return:deploy_return",
        "an exported robot in plain MuJoCo under the deploy loop, beside evaluate",
    ),
    "wmpg": ("studies.wmpg:wmpg", "WMPG beside AC and MAC: real episodes until solved"),
    "wmpg-variance": (
        "studies.wmpg_variance:wmpg_variance",
        "WMPG: variance of its gradient estimators with a perfect model",
    ),
    "pql": ("studies.pql:pql_study", "PQL: the studies of its paper in small"),
    "reward-units": (
        "studies.reward_units:reward_units",
        "learning with rewards in other units: multiplied, and shifted",
    ),
    "split-learners": (
        "studies.split_learners:split_learners",
        "seconds to a return: split_learners, synchronous, overlap",
    ),
    "weekend": (
        "studies.weekend:weekend",
        "a run whose processes are killed every minute: memory, descriptors, counters",
    ),
}


def run(args: list[str]) -> int:
    """`fleetfoot bench` with these arguments; the exit code."""
    if not args or args[0] in ("-h", "--help"):
        width = max(map(len, BENCHMARKS))
        lines = [f"  {name:<{width}}  {what}" for name, (_, what) in BENCHMARKS.items()]
        print("\n".join(["usage: fleetfoot bench NAME [--out FILE] [options]", "", *lines]))
        return 0
    name, *rest = args
    if name not in BENCHMARKS:
        known = nearest(name, BENCHMARKS) or f" There are {', '.join(BENCHMARKS)}."
        raise UserError(f"there is no benchmark {name!r}.{known}")
    measure = _find(BENCHMARKS[name][0])
    given = parse(form_of_function(measure), rest, f"fleetfoot bench {name}")
    arguments = {f.name: getattr(given, f.name) for f in dataclasses.fields(given)}
    out = arguments.pop("out") or RESULTS / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}.json"

    from benchmarks.provenance import provenance, write_result  # imports torch

    made = provenance()
    result: dict[str, Any] = {}
    for result in _stages(measure(**arguments)):
        write_result(out, name, arguments, result, made)  # each time: what comes next may fail
    show(name, result)
    print(f"written to {out}")
    return 0


def _stages(result: Result) -> Iterator[dict[str, Any]]:
    return iter([result]) if isinstance(result, dict) else result


def form_of_function(function: Callable[..., Any]) -> type:
    """A function's parameters as a form for the command line, and `--out`."""
    hints = typing.get_type_hints(function, include_extras=True)
    fields: list[tuple[str, Any, Any]] = [
        (
            "out",
            Annotated[Path | None, tyro.conf.arg(help="JSON file to write.")],
            dataclasses.field(default=None),
        )
    ]
    for name, parameter in inspect.signature(function).parameters.items():
        default = parameter.default
        required = default is inspect.Parameter.empty
        field = dataclasses.field() if required else dataclasses.field(default=default)
        fields.append((name, hints[name], field))
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
            rows = [{k: v for k, v in row.items() if not _nested(v)} for row in rows]
            columns = list(dict.fromkeys(column for row in rows for column in row))
            table = Table(title=f"{name}: {key.replace('_', ' ')}", title_justify="left")
            for column in columns:
                table.add_column(column.replace("_", " "))
            for row in rows:
                table.add_row(*(_text(row.get(column, "")) for column in columns))
            console.print(table)
        else:
            console.print(f"{key.replace('_', ' ')}: {_text(value)}", markup=False)


def _nested(value: Any) -> bool:
    """Curves and recipes are in the JSON; a table has no room for them."""
    if isinstance(value, dict):
        return True
    return isinstance(value, list) and any(isinstance(item, dict) for item in value)


def _text(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_text, value))
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _find(place: str) -> Callable[..., Result]:
    module, _, function = place.partition(":")
    measure: Callable[..., Result] = getattr(
        importlib.import_module(f"benchmarks.{module}"), function
    )
    return measure
