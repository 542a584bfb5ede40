"""`fleetfoot export RUN`"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fleetfoot.cli.run_folder import one_seed, run_and_options


@dataclass(frozen=True, kw_only=True)
class Options:
    """Write a run's policy as ONNX with everything a robot needs: fleetfoot export RUN [options]."""

    out: Path | None = None
    """The folder to write; by default the folder export inside the run."""
    which: Literal["best", "last"] = "best"
    """Which checkpoint."""
    draw: bool = False
    """Check with observations sampled from the statistics of the normaliser, without building an environment."""


def run(args: list[str], imports: list[str]) -> int:
    folder, options = run_and_options(Options, args, "export")
    folder = one_seed(folder)
    from fleetfoot.export import export_run

    done = export_run(folder, options.out, which=options.which, draw=options.draw)
    print(f"written  {done.folder}: policy.onnx, policy.pt2, policy.json")
    print(f"checked  {done.observations:,} observations, {done.source}")
    for program, difference in done.differences.items():
        print(f"         {program}: largest difference {difference:.2g}")
    for what in done.missing:
        print(f"missing  {what}: not described by the environment")
    return 0
