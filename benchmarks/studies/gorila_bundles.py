"""What more bundles bring to Gorila: 1, 2 and 4 of them, with the same work for each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.curves import draw_scaling, scaling_study
from fleetfoot import recipes
from fleetfoot.checkpoint import CheckpointConfig
from fleetfoot.errors import UserError
from fleetfoot.explore import EpsilonAnnealConfig
from fleetfoot.recipe import Recipe
from fleetfoot.topologies.gorila.bundle import total_updates
from fleetfoot.topologies.gorila.loop import ParameterServerConfig


def gorila_bundles(
    recipe: str = "gorila_dqn/cartpole",
    bundles: tuple[int, ...] = (1, 2, 4),
    vec_steps: int = 1_000,
    evaluate_every: int = 125,
    seeds: tuple[int, ...] = (0, 1, 2),
    runs: Path = Path("runs/gorila_bundles"),
    picture: Path | None = None,
) -> Iterator[dict[str, Any]]:
    """Greedy return for several numbers of bundles.

    Every bundle makes the same number of vec steps and of gradients, so k bundles make k times the updates of the
    server. On free cores that takes the same time; whether it did is in `train_seconds`, beside the load of the
    machine. Exploration ends after the same number of vec steps of each bundle.

    :param recipe: A recipe under parameter_server.
    :param bundles: Numbers of bundles.
    :param vec_steps: Vec steps of each bundle.
    :param evaluate_every: Vec steps of each bundle between two evaluations.
    :param seeds: Seeds of each number of bundles.
    :param runs: Folder of the runs; one that is there already is read, not trained again.
    :param picture: PNG to draw (needs matplotlib).
    """
    base = replace(recipes.get(recipe), device="cpu", threads=1)
    topology, explorer = base.topology, base.explorer
    if not isinstance(topology, ParameterServerConfig):
        raise UserError(f"{recipe} does not run under parameter_server.")
    if not isinstance(explorer, EpsilonAnnealConfig):
        raise UserError(f"{recipe} does not explore with EpsilonAnnealConfig.")
    explored_by_each = explorer.over_vec_steps // topology.bundles

    def sized(count: int) -> Recipe:
        return replace(
            base,
            total_vec_steps=count * vec_steps,
            topology=replace(topology, bundles=count),
            explorer=replace(explorer, over_vec_steps=count * explored_by_each),
            evaluation=replace(base.evaluation, every_vec_steps=count * evaluate_every),
            checkpoint=CheckpointConfig(every_vec_steps=0, replay=False),
        )

    def facts(count: int, made: Recipe) -> dict[str, int]:
        """`updates`: those of the server, if no gradient is rejected."""
        return {
            "bundles": count,
            "updates": total_updates(made, count),
            "env_steps": made.total_vec_steps * made.num_envs,
        }

    result: dict[str, Any] = {}
    for result in scaling_study(base, bundles, seeds, runs, sized, facts):
        yield result
    if picture is not None:
        label = "vec steps of each bundle (2 gradients each)"
        draw_scaling(result["rows"], picture, "bundles", label, of_each=True)
