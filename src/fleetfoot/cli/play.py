"""`fleetfoot play [RUN|FOLDER|policy.onnx ...]`"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from fleetfoot.cli.form import parse
from fleetfoot.cli.run_folder import one_seed
from fleetfoot.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Options:
    """Play policies in the browser: runs, exported folders or policy.onnx files; without arguments, the
    bundled one."""

    policies: tyro.conf.Positional[tuple[Path, ...]] = ()
    """What to play. You can switch between several policies of one robot while it runs."""
    which: Literal["best", "last"] = "best"
    """Which checkpoint of a run."""
    viewer: Literal["browser", "native"] = "browser"
    """native: MuJoCo's own window, if there is a screen."""
    model: Path | None = None
    """MJCF of a robot that does not come with the package, with the site and the keyframe that it was trained with."""
    ground: Literal["flat", "rough", "heights"] | None = None
    """What a robot of the package walks on; by default the ground that the first policy was trained on."""
    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0: other computers can watch and steer too."""
    port: int | None = None
    """Port of the page; by default the first free one from 8080 on."""


def run(args: list[str], imports: list[str]) -> int:
    options: Options = parse(Options, args, "fleetfoot play")
    check_port(options.port)
    from fleetfoot.play import play

    with contextlib.suppress(KeyboardInterrupt):  # this is how it ends
        play(
            tuple(map(one_seed, options.policies)),
            which=options.which,
            model=options.model,
            ground=options.ground,
            native=options.viewer == "native",
            host=options.host,
            port=options.port,
            say=lambda line: print(line, flush=True),
        )
    return 0


def check_port(port: int | None) -> None:
    if port is not None and not 0 <= port < 65536:
        raise UserError(f"--port must be between 0 and 65535, not {port}.")
