"""`fleetfoot evaluate RUN`"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Literal

from fleetfoot.cli.run_folder import one_seed, run_and_options


@dataclass(frozen=True, kw_only=True)
class Options:
    """Run whole greedy episodes of a run's policy: fleetfoot evaluate RUN [options]."""

    episodes: int = 20
    """Whole episodes to run."""
    which: Literal["best", "last"] = "best"
    """Which checkpoint."""
    seed: int | None = None
    """Seed of the environments; by default the run's own evaluation seed."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:K."""
    env_of: str = ""
    """A recipe, by name or file: evaluate in its environment instead of the run's own."""


def run(args: list[str], imports: list[str]) -> int:
    folder, options = run_and_options(Options, args, "evaluate")
    folder = one_seed(folder)
    from fleetfoot import api
    from fleetfoot.cli.which_recipe import find_recipe
    from fleetfoot.log.console import readable
    from fleetfoot.run.folder import run_of

    done = api.evaluate_run(
        folder,
        episodes=options.episodes,
        which=options.which,
        seed=options.seed,
        device=options.device,
        env=find_recipe(options.env_of).env if options.env_of else None,
    )
    of = str(folder)
    if run_of(folder) == folder:  # a run, not one of its checkpoints
        of = f"{api.which_there_is(folder, options.which)} checkpoint of {folder}"
    if options.env_of:
        of += f", in the environment of {options.env_of}"
    returns = [float(value) for value in done.returns]
    spread = statistics.stdev(returns) if len(returns) > 1 else 0.0
    print(
        f"return {done.mean_return:,.1f} ± {spread:,.1f} over {len(returns)} episode{'s' * (len(returns) > 1)} "
        f"(from {min(returns):,.1f} to {max(returns):,.1f}; {of})"
    )
    for name, value in done.metrics().items():
        if name not in ("eval/return", "eval/return_std"):
            print(f"  {name.removeprefix('eval/'):24} {readable(value)}")
    return 0
