"""`fleetfoot record RUN`"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fleetfoot.cli.run_folder import one_seed, run_and_options


@dataclass(frozen=True, kw_only=True)
class Options:
    """Record a video of a run's policy: fleetfoot record RUN [options]."""

    out: Path | None = None
    """The video to write, .mp4 or .gif; by default an MP4 in the run's videos/."""
    seconds: float = 10.0
    """Simulated seconds to record."""
    which: Literal["best", "last"] = "best"
    """Which checkpoint."""
    seed: int | None = None
    """Seed of the environment; by default the run's own evaluation seed."""
    strip: Path | None = None
    """Also write four frames side by side to this PNG."""


def run(args: list[str], imports: list[str]) -> int:
    folder, options = run_and_options(Options, args, "record")
    folder = one_seed(folder)
    from fleetfoot import api

    path = api.record_run(
        folder,
        options.out,
        seconds=options.seconds,
        which=options.which,
        seed=options.seed,
        strip=options.strip,
    )
    print(f"video  {path}")
    if options.strip is not None:
        print(f"strip  {options.strip}")
    return 0
