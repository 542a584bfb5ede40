"""Several seeds of one recipe in processes of their own: what `fleetfoot train --seeds 5 --jobs 2` does where the seeds
cannot learn as one batched computation. The folders are those of `api.train_seeds`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fleetfoot.agents.contract import why_not_stacked
from fleetfoot.errors import UserError
from fleetfoot.explore import ActsInTwoHalves
from fleetfoot.recipe import Recipe
from fleetfoot.run.estimate import estimate
from fleetfoot.run.folder import (
    check_changes,
    folder_lock,
    new_folder,
    read_recipe,
    seed_folders,
    write_recipe,
)
from fleetfoot.study.folder import check_no_cluster
from fleetfoot.study.jobs import Job, Listed
from fleetfoot.study.progress import Progress
from fleetfoot.study.runner import Runner, default_workers, workers_in_memory
from fleetfoot.system import usable_cores
from fleetfoot.topologies.multi_seed.loop import why_not_batched
from fleetfoot.topologies.multi_seed.seeds import make_folders, not_beyond


def wants_processes(recipe: Recipe) -> bool:
    """Can the seeds of this recipe not be batched? Builds an agent where the recipe alone does not tell."""
    if why_not_batched(recipe) is not None:
        return True
    made = estimate(recipe)
    return why_not_stacked(made.agent) is not None or not isinstance(made.explorer, ActsInTwoHalves)


def threads_of(recipe: Recipe, jobs: int) -> Recipe:
    """Without a number of threads, those of all processes together are as many as the cores."""
    if recipe.threads or recipe.torch_device().type != "cpu":
        return recipe
    return replace(recipe, threads=max(1, usable_cores() // max(1, jobs)))


def train_seeds(
    recipe: Recipe, count: int, folder: Path | None, jobs: int, imports: Sequence[str]
) -> tuple[Path, bool]:
    """The folder of all seeds; and False where the user stopped them."""
    recipe.check()
    check_no_cluster(recipe)
    recipe = threads_of(recipe, min(jobs, count) if jobs else count)
    place = new_folder(recipe, folder)
    make_folders(place, recipe, range(recipe.seed, recipe.seed + count))
    return place, resume_seeds(place, jobs, imports)


def resume_seeds(
    place: Path, jobs: int, imports: Sequence[str], changed: Recipe | None = None
) -> bool:
    """Go on with the seeds in a folder; False where the user stopped them. `jobs`: 0 is as many as fit; `changed`: the
    recipe of the first seed, changed in what may change."""
    with folder_lock(place):
        runs = [(run, read_recipe(run)) for run in seed_folders(place)]
        if changed is not None:
            check_changes(runs[0][1], changed)
            going_on = not_beyond([run for run, _ in runs], changed.total_vec_steps)
            runs = [
                (run, replace(changed, seed=before.seed)) for run, before in runs if run in going_on
            ]
            for run, recipe in runs:
                write_recipe(run, recipe)
        plan = Listed([Job(run.name, recipe, (run,)) for run, recipe in runs])
        if not plan.waiting:
            raise UserError(f"all seeds in {place} are finished.")
        recipes = [recipe for _, recipe in runs]
        workers = jobs or min(default_workers(recipes), workers_in_memory(recipes[0], 1))
        return Runner(plan, workers, Progress(plan, "seeds"), place / "logs", imports).run()
