"""`fleetfoot train ... --dry-run`: the whole recipe, what it needs, and what it would write."""

from __future__ import annotations

from pathlib import Path

from fleetfoot.config import dumps
from fleetfoot.log import LogConfig
from fleetfoot.recipe import Recipe
from fleetfoot.run.estimate import Estimate, estimate
from fleetfoot.run.folder import new_folder
from fleetfoot.system import free_bytes

WEIGHT_BYTES = 4


def describe(recipe: Recipe, folder: Path | None, seeds: int, video: bool) -> str:
    place, made = new_folder(recipe, folder), estimate(recipe)
    return "\n".join(
        [dumps(recipe), *needs(recipe, made, seeds), "", *files(recipe, place, seeds, video)]
    )


def needs(recipe: Recipe, made: Estimate, seeds: int) -> list[str]:
    spec, device = made.spec, recipe.torch_device()
    parts = made.parameters()
    each = " for each seed" if seeds > 1 else ""
    listed = ", ".join(f"{name} {count:,}" for name, count in parts.items())
    env_steps = recipe.total_vec_steps * recipe.num_envs
    return [
        f"task         {spec.name}: observations {spec.obs_shape}, actions {spec.action}",
        f"length       {recipe.total_vec_steps:,} vec steps of {recipe.num_envs:,} environments = {env_steps:,} env "
        f"steps, {recipe.total_updates():,} updates of {recipe.batch_size:,} rows{each}",
        f"parameters   {sum(parts.values()):,} ({listed}){each}",
        f"memory       replay {size(made.replay_bytes)}, weights {size(WEIGHT_BYTES * sum(parts.values()))}{each}; "
        f"{size(free_bytes(device))} are free on {device}",
    ]


def files(recipe: Recipe, place: Path, seeds: int, video: bool) -> list[str]:
    """What would be there at the end."""
    inside = f"{place}/seed-K" if seeds > 1 else str(place)
    log: LogConfig = recipe.log
    replay = ", replay included" if recipe.checkpoint.replay else ""
    lines = [
        f"would write to {inside}:",
        "  recipe.json, spec.json, provenance.json",
        f"  metrics.jsonl, a line every {log.every_vec_steps:,} vec steps",
        f"  checkpoints/ every {recipe.checkpoint.every_vec_steps:,} vec steps{replay}",
    ]
    if log.tensorboard:
        lines.append("  tensorboard/")
    if video and seeds == 1:
        lines.append("  videos/best.mp4")
    return [*lines, "nothing was trained or written."]


def size(count: int) -> str:
    return f"{count / 2**30:,.2f} GiB" if count >= 2**28 else f"{count / 2**20:,.1f} MiB"
