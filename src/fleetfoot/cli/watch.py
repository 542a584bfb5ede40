"""`fleetfoot watch RUN`"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from fleetfoot.cli.play import check_port
from fleetfoot.cli.run_folder import run_and_options


@dataclass(frozen=True, kw_only=True)
class Options:
    """Watch the newest policy of a run while it trains, next to its curves: fleetfoot watch RUN [options]."""

    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0: other computers can watch and steer too."""
    port: int | None = None
    """Port of the page; by default the first free one from 8080 on."""


def run(args: list[str], imports: list[str]) -> int:
    folder, options = run_and_options(Options, args, "watch")
    check_port(options.port)
    from fleetfoot.play import watch

    with contextlib.suppress(KeyboardInterrupt):  # this is how it ends
        watch(
            folder,
            imports=imports,
            host=options.host,
            port=options.port,
            say=lambda line: print(line, flush=True),
        )
    return 0
