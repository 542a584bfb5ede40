"""The studies of PQL's paper in small: batch size, environments and ratios, exploration noise, replay size."""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import tyro

from benchmarks.curves import draw_variants, finished, points, trained
from fleetfoot import recipes
from fleetfoot.agents.ddpg import DDPGConfig
from fleetfoot.checkpoint import CheckpointConfig
from fleetfoot.config import to_json
from fleetfoot.errors import UserError
from fleetfoot.explore import NoiseLadderConfig
from fleetfoot.log import LogConfig
from fleetfoot.log.sinks import read_lines
from fleetfoot.recipe import Recipe

Variants = dict[str, Recipe]


def batch(base: Recipe) -> Variants:
    """A quarter of the recipe's batch size, itself, and four times it."""
    sizes = (base.batch_size // 4, base.batch_size, 4 * base.batch_size)
    return {f"batch {rows:,}": replace(base, batch_size=rows) for rows in sizes}


def envs(base: Recipe) -> Variants:
    """Ratios are written as in the paper: vec steps to critic updates, then policy updates to critic updates."""
    variants: Variants = {}
    for num_envs in (base.num_envs // 4, base.num_envs, 4 * base.num_envs):
        for updates in (2, 8):
            pace = replace(base.pace, updates_per_vec_step=float(updates))
            recipe = replace(base, num_envs=num_envs, pace=pace)
            variants[f"{num_envs:,} envs, a:v 1:{updates}, p:v 1:2"] = recipe
    if not isinstance(base.agent, DDPGConfig):
        raise UserError(f"{base.name} has another agent than DDPG.")
    for every in (1, 4):
        agent = replace(base.agent, policy_every=every)
        variants[f"{base.num_envs:,} envs, a:v 1:8, p:v 1:{every}"] = replace(base, agent=agent)
    return variants


def noise(base: Recipe) -> Variants:
    """The recipe's own mixture of strengths, and four constant ones."""
    ladder = base.explorer
    if not isinstance(ladder, NoiseLadderConfig):
        raise UserError(f"{base.name} does not explore with NoiseLadderConfig.")
    variants = {f"mixed {ladder.std_min:g} to {ladder.std_max:g}": base}
    for std in (0.2, 0.4, 0.6, 0.8):
        constant = replace(ladder, std_min=std, std_max=std)
        variants[f"constant {std:g}"] = replace(base, explorer=constant)
    return variants


def buffer(base: Recipe) -> Variants:
    """A fortieth of the recipe's replay, an eighth, and all of it."""
    replay = base.off_policy_replay()
    sizes = (replay.capacity // 40, replay.capacity // 8, replay.capacity)
    return {
        f"{rows:,} transitions": replace(base, replay=replace(replay, capacity=rows))
        for rows in sizes
    }


STUDIES: dict[str, Callable[[Recipe], Variants]] = {
    "batch": batch,
    "envs": envs,
    "noise": noise,
    "buffer": buffer,
}


def pql_study(
    study: tyro.conf.Positional[Literal["batch", "envs", "noise", "buffer"]],
    recipe: str = "pql/pendulum",
    seeds: tuple[int, ...] = (0, 1, 2),
    vec_steps: int = 600,
    evaluations: int = 10,
    device: str = "auto",
    runs: Path = Path("runs/pql_studies"),
    picture: Path | None = None,
    redraw: Path | None = None,
) -> Iterator[dict[str, Any]]:
    """Learning curves of the variants of one study.

    Values are multiples of those of the recipe, so that a larger recipe is a larger study.

    :param study: batch, envs, noise or buffer.
    :param recipe: A recipe of DDPG under split_learners.
    :param seeds: Seeds of each variant.
    :param vec_steps: Length of each run.
    :param evaluations: Points of each curve.
    :param device: auto, cpu, cuda or cuda:K.
    :param runs: Folder of the runs; one that is there already is read, not trained again.
    :param picture: PNG to draw (needs matplotlib).
    :param redraw: A JSON to draw as it is; nothing is run.
    """
    rows: list[dict[str, Any]] = []
    if redraw is not None:
        rows = json.loads(redraw.read_text())["result"]["rows"]
        yield {"study": study, "rows": rows}
    else:
        for label, variant in STUDIES[study](
            shortened(recipe, vec_steps, evaluations, device)
        ).items():
            rows.append(row(label, variant, seeds, runs))
            yield {"study": study, "rows": rows}
    if picture is not None:
        draw_variants({row["variant"]: [*row["by_seed"].values()] for row in rows}, picture)


def shortened(name: str, vec_steps: int, evaluations: int, device: str) -> Recipe:
    """The named recipe, at the length of a study."""
    every = max(1, vec_steps // evaluations)
    recipe = recipes.get(name)
    return replace(
        recipe,
        total_vec_steps=vec_steps,
        evaluation=replace(recipe.evaluation, every_vec_steps=every),
        log=LogConfig(every_vec_steps=every, tensorboard=False, console=False),
        checkpoint=CheckpointConfig(every_vec_steps=0, replay=False),
        device=device,
    )


def row(label: str, recipe: Recipe, seeds: tuple[int, ...], runs: Path) -> dict[str, Any]:
    """The curves of one variant. Folders are named by their recipes, so studies share the runs they have in common."""
    by_seed: dict[str, dict[str, Any]] = {}
    for seed in seeds:
        seeded = replace(recipe, seed=seed)
        text = json.dumps(to_json(seeded), sort_keys=True)
        folder = trained(seeded, runs / hashlib.sha256(text.encode()).hexdigest()[:12])
        columns = points(finished(folder))
        last = read_lines(folder / "metrics.jsonl")[-1]
        ratios = ("critic_updates_per_vec_step", "policy_updates_per_critic_update")
        by_seed[str(seed)] = {
            **columns,
            "updates": [recipe.pace.updates_after(int(step)) for step in columns["vec_steps"]],
            **{name: last.get(f"split/{name}") for name in ratios},
        }
        print(label, seed, columns["return"], flush=True)
    final = [columns["return"][-1] for columns in by_seed.values()]
    return {
        "variant": label,
        "final_returns": final,
        "final_return_mean": statistics.mean(final),
        "train_seconds": [columns["train_seconds"][-1] for columns in by_seed.values()],
        "recipe": to_json(recipe),
        "by_seed": by_seed,
    }
