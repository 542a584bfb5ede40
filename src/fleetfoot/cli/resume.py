"""`fleetfoot resume RUN [--total-vec-steps ...]`"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from fleetfoot import api
from fleetfoot.cli.form import parse_recipe
from fleetfoot.cli.run_folder import take_run
from fleetfoot.cli.train import check_jobs, finish, finish_seeds
from fleetfoot.run import folder as folders
from fleetfoot.study import seeds as in_processes


@dataclass(frozen=True, kw_only=True)
class Options:
    """What `fleetfoot resume` takes besides the fields of the recipe that may change."""

    restart: bool = False
    """Train from the start, for a run that was stopped before its first checkpoint."""
    delete_checkpoints: bool = False
    """With --restart: also if last.json is lost and there are complete checkpoints, which are deleted."""
    video: bool = True
    """Record a video of the best policy at the end."""
    jobs: int = 1
    """Number of processes for seeds that cannot be batched; 0: as many as cores and memory allow."""


def run(args: list[str], imports: list[str]) -> int:
    if args[:1] in (["-h"], ["--help"]):
        print(
            "usage: fleetfoot resume RUN [--total-vec-steps ...] [--restart] [--no-video]\n\n"
            "Continue from a run's last checkpoint. Fields that may change: "
            f"{', '.join(folders.RESUMABLE)}; fleetfoot resume RUN --help shows their values."
        )
        return 0
    folder, rest = take_run(args, "resume")
    seeds = folders.seed_folders(folder)
    stored = folders.read_recipe(seeds[0] if seeds else folder)
    # Every field is understood, so that one that may not change gets its reason; the help shows those that may.
    fixed = ["name"]
    if {"-h", "--help"} & set(rest):
        fixed = [f.name for f in dataclasses.fields(stored) if f.name not in folders.RESUMABLE]
    recipe, options = parse_recipe(stored, Options, rest, f"fleetfoot resume {folder}", fixed)
    restart = {"restart": options.restart, "delete_checkpoints": options.delete_checkpoints}
    check_jobs(options.jobs, bool(seeds))
    if seeds and options.jobs != 1 and in_processes.wants_processes(recipe):
        done = in_processes.resume_seeds(folder, options.jobs, imports, recipe)
        return finish_seeds(folder, done, imports)
    if seeds:
        results = api.resume_seeds_as(folder, recipe, **restart)
        return finish_seeds(folder, all(result.finished for result in results), imports)
    return finish(api.resume_as(folder, recipe, **restart), options.video, imports)
