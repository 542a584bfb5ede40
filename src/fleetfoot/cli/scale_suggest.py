"""`fleetfoot scale suggest STUDY --seconds 600`"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro

from fleetfoot.cli.form import parse
from fleetfoot.errors import UserError
from fleetfoot.extras import typed


@dataclass(frozen=True, kw_only=True)
class Options:
    """The best settings within a budget according to a fitted study, as options of its recipe. Give one
    budget."""

    study: tyro.conf.Positional[Path | None] = None
    """Folder of a fitted study, or the output folder of a fit."""
    budget: float | None = None
    """FLOPs, including those that the env steps are worth (delta of the fit)."""
    seconds: float | None = None
    """Seconds of training on the machine of the study, for the same number of seeds together."""
    env_steps: float | None = None
    """Env steps, on an average task of the study."""


def run(args: list[str], imports: list[str]) -> int:
    options: Options = parse(Options, args, "fleetfoot scale suggest STUDY")
    if options.study is None:
        raise UserError("which study? fleetfoot scale suggest STUDY --seconds 600")
    given = {
        name: value
        for name in ("budget", "seconds", "env_steps")
        if (value := getattr(options, name)) is not None
    }
    if len(given) != 1:
        raise UserError("give one of --budget (FLOPs), --seconds and --env-steps.")
    from fleetfoot.scale.suggest import Laws

    laws = Laws.read(options.study)
    ((name, value),) = given.items()
    suggestion = getattr(laws, f"for_{name}")(value)
    print(
        f"update-to-data ratio {suggestion.sigma:.3g}: a score of {suggestion.score:.0f} or more after "
        f"{suggestion.env_steps:,.0f} env steps, {suggestion.flops:.3g} FLOPs and {suggestion.seconds:,.0f} s"
    )
    for task in laws.recipes:
        recipe, words = laws.options(suggestion, task)
        print("  " + typed("fleetfoot", "train", recipe, *words))
    return 0
