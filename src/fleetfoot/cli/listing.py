"""`fleetfoot list`"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import tyro

from fleetfoot.cli.form import parse
from fleetfoot.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Options:
    """The recipes and the environments there are."""

    what: tyro.conf.Positional[
        Literal["all", "recipes", "environments", "playground", "envpool"]
    ] = "all"
    """What to list. The tasks of MuJoCo Playground are apart: naming them takes seconds, for JAX has to load.
    So are the 1,651 of EnvPool."""


def run(args: list[str], imports: list[str]) -> int:
    options = parse(Options, args, "fleetfoot list")
    # After the arguments were understood: these import torch and the simulators.
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from fleetfoot import recipes
    from fleetfoot.envs import atari, envpool, gym, humanoid_bench, mujoco, playground, tensor
    from fleetfoot.envs.lab import mjlab

    console = Console()
    if options.what == "playground":
        console.print("\n".join(playground.names()), highlight=False)
        return 0
    if options.what == "envpool":
        console.print("\n".join(envpool.names()), highlight=False)
        return 0
    if options.what != "environments":
        table = Table(title="recipes (fleetfoot train NAME)", title_justify="left", box=None)
        table.add_column("name", no_wrap=True)
        table.add_column("what it is")
        for name in recipes.names():
            table.add_row(name, recipes.describe(name))
        console.print(table)
    if options.what == "all":
        console.print()
    if options.what != "recipes":
        table = Table(title="environments (--env PART)", title_justify="left", box=None)
        table.add_column("part", no_wrap=True)
        table.add_column("option", no_wrap=True)
        table.add_column("its values")
        table.add_row("MuJoCoConfig", "--env.task", ", ".join(mujoco.names()))
        table.add_row("TensorConfig", "--env.task", ", ".join(tensor.names()))
        # Before Atari's: ale-py enters some hundred ids of its own into Gymnasium's table.
        table.add_row("GymConfig", "--env.id", ", ".join(gym.names()))
        try:
            games = ", ".join(atari.names())
        except UserError as missing:
            games = escape(str(missing))
        table.add_row("AtariConfig", "--env.game", games)
        some = "T1JoystickFlatTerrain, G1JoystickRoughTerrain, Go1Getup, CartpoleBalance"
        table.add_row(
            "PlaygroundConfig", "--env.task", f"{some}, ... (fleetfoot list playground names all)"
        )
        some = (
            "WalkerRun-v1, DogRun-v1, MetaWorld/Reach-v3, MuJoCoPlayground/T1JoystickFlatTerrain-v1"
        )
        table.add_row(
            "EnvPoolConfig", "--env.task", f"{some}, ... (fleetfoot list envpool names all)"
        )
        table.add_row("EnvPoolTasksConfig", "--env.set", ", ".join(envpool.SETS))
        some = f"a robot and a task: {humanoid_bench.names()[0]}, h1hand-walk, ..."
        table.add_row("HumanoidBenchConfig", "--env.task", f"{some}, where it is installed")
        try:
            tasks = ", ".join(mjlab.names())
        except UserError as missing:
            tasks = escape(str(missing))
        table.add_row("MjlabConfig", "--env.task", tasks)
        # Its ids are known only to a running Isaac Sim.
        table.add_row("IsaacLabConfig", "--env.id", "Isaac-..., where Isaac Lab is installed")
        console.print(table)
    return 0
