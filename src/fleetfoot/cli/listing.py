"""`fleetfoot list`"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import tyro

from fleetfoot.cli.form import parse
from fleetfoot.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Options:
    """The available recipes and environments."""

    what: tyro.conf.Positional[
        Literal["all", "recipes", "environments", "playground", "envpool"]
    ] = "all"
    """What to list. The tasks of MuJoCo Playground (loading JAX takes seconds) and the 1,651 of EnvPool are listed only
    when asked for."""
    json: bool = False
    """As JSON: a list of recipes, environments or tasks; for `all`, an object with the first two."""


def run(args: list[str], imports: list[str]) -> int:
    options = parse(Options, args, "fleetfoot list")
    # After the arguments were understood: these import torch and the simulators.
    from fleetfoot.envs import envpool, playground

    makers: dict[str, Callable[[], list[Any]]] = {
        "recipes": recipe_rows,
        "environments": environment_rows,
        "playground": playground.names,
        "envpool": envpool.names,
    }
    asked = ("recipes", "environments") if options.what == "all" else (options.what,)
    listed = {name: makers[name]() for name in asked}
    if options.json:
        print(json.dumps(listed if options.what == "all" else listed[options.what], indent=2))
    else:
        show(listed)
    return 0


def recipe_rows() -> list[dict[str, Any]]:
    from fleetfoot import recipes
    from fleetfoot.config import to_json

    return [
        {
            "name": name,
            "description": recipes.describe(name),
            "environment": to_json(recipes.get(name).env),
        }
        for name in recipes.names()
    ]


def environment_rows() -> list[dict[str, Any]]:
    """The configs, the option that chooses a task, its values, and a note: where others are, or what is missing."""
    from fleetfoot.envs import atari, envpool, gym, humanoid_bench, mujoco, robot, tensor
    from fleetfoot.envs.lab import mjlab

    def row(part: str, option: str, names: Callable[[], Any], note: str = "") -> dict[str, Any]:
        try:
            values = list(names())
        except UserError as missing:
            values, note = [], str(missing)
        return {"part": part, "option": option, "values": values, "note": note}

    playground_tasks = (
        "T1JoystickFlatTerrain",
        "G1JoystickRoughTerrain",
        "Go1Getup",
        "CartpoleBalance",
    )
    envpool_tasks = (
        "WalkerRun-v1",
        "DogRun-v1",
        "MetaWorld/Reach-v3",
        "MuJoCoPlayground/T1JoystickFlatTerrain-v1",
    )
    return [
        row("RobotConfig", "--env.robot", robot.names, "each follows a joystick"),
        row("MuJoCoConfig", "--env.task", mujoco.names),
        row("TensorConfig", "--env.task", tensor.names),
        row("GymConfig", "--env.id", gym.names),
        row("AtariConfig", "--env.game", atari.names),
        row(
            "PlaygroundConfig",
            "--env.task",
            lambda: playground_tasks,
            "and more: fleetfoot list playground",
        ),
        row(
            "EnvPoolConfig", "--env.task", lambda: envpool_tasks, "and more: fleetfoot list envpool"
        ),
        row("EnvPoolTasksConfig", "--env.set", lambda: envpool.SETS),
        row(
            "HumanoidBenchConfig",
            "--env.task",
            lambda: (humanoid_bench.names()[0], "h1hand-walk"),
            "and other pairs of a robot and a task, where HumanoidBench is installed",
        ),
        row("MjlabConfig", "--env.task", mjlab.names),
        row(
            "IsaacLabConfig",
            "--env.id",
            tuple,
            "Isaac-..., where Isaac Lab is installed; only a running Isaac Sim knows them",
        ),
    ]


def show(listed: dict[str, list[Any]]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    if not console.is_terminal:
        console.width = 250  # one line each, for those who search in them
    for number, (what, rows) in enumerate(listed.items()):
        if number:
            console.print()
        if what == "recipes":
            table = Table(title="recipes (fleetfoot train NAME)", title_justify="left", box=None)
            table.add_column("name", no_wrap=True)
            table.add_column("what it is")
            for row in rows:
                table.add_row(row["name"], row["description"])
            console.print(table)
        elif what == "environments":
            table = Table(title="environments (--env PART)", title_justify="left", box=None)
            table.add_column("part", no_wrap=True)
            table.add_column("option", no_wrap=True)
            table.add_column("its values")
            for row in rows:
                values = ", ".join([*row["values"], *([row["note"]] if row["note"] else [])])
                table.add_row(row["part"], row["option"], escape(values))
            console.print(table)
        else:
            console.print("\n".join(rows), highlight=False)
