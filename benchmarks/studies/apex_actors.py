"""The actor-scaling study of Ape-X in small: 1, 2, 4, 8 actors at equal learner updates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.curves import draw_scaling, scaling_study
from fleetfoot import recipes
from fleetfoot.errors import UserError
from fleetfoot.recipe import Recipe
from fleetfoot.topologies.apex.loop import ActorLearnerConfig


def apex_actors(
    recipe: str = "apex_dqn/cartpole",
    actors: tuple[int, ...] = (1, 2, 4, 8),
    envs_per_actor: int = 4,
    vec_steps: int = 1_500,
    seeds: tuple[int, ...] = (0, 1, 2),
    runs: Path = Path("runs/apex_actors"),
    picture: Path | None = None,
) -> Iterator[dict[str, Any]]:
    """Greedy return for several numbers of actors.

    Every actor has the same number of environments, and the pace counts vec steps, so all runs make the same updates at
    the same batch size: more actors only means more, and more different, rows to learn from.

    :param recipe: A recipe under actor_learner.
    :param actors: Numbers of actors.
    :param envs_per_actor: Environments of each.
    :param vec_steps: Length of each run.
    :param seeds: Seeds of each number of actors.
    :param runs: Folder of the runs; one that is there already is read, not trained again.
    :param picture: PNG to draw (needs matplotlib).
    """
    base = replace(recipes.get(recipe), device="cpu", threads=1)
    topology = base.topology
    if not isinstance(topology, ActorLearnerConfig):
        raise UserError(f"{recipe} does not run under actor_learner.")

    def sized(count: int) -> Recipe:
        return replace(
            base,
            num_envs=count * envs_per_actor,
            total_vec_steps=vec_steps,
            topology=replace(topology, actors=count),
        )

    def facts(count: int, made: Recipe) -> dict[str, int]:
        updates = made.pace.updates_after(made.total_vec_steps)
        return {
            "actors": count,
            "updates": updates,
            "env_steps": made.total_vec_steps * made.num_envs,
        }

    result: dict[str, Any] = {}
    for result in scaling_study(base, actors, seeds, runs, sized, facts):
        yield result
    if picture is not None:
        label = "vec steps (4 updates each, whatever the number of actors)"
        draw_scaling(result["rows"], picture, "actors", label)
