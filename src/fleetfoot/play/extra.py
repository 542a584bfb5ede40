"""What only the extra `play` brings, imported where it is needed."""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
from collections.abc import Iterator
from typing import Any

from fleetfoot import extras
from fleetfoot.errors import UserError, one_line
from fleetfoot.export.graph import PACKAGES as EXPORT

# trimesh makes hulls with scipy, and does not ask for it.
PAGE = ("viser", "trimesh", "scipy", "websockets", "onnxruntime")


def check(command: str, *, page: bool = True, exports: bool = False) -> None:
    """UserError where packages are missing: all that the command will need, so that one line installs them."""
    modules = {*(PAGE if page else ("onnxruntime",)), *(EXPORT if exports else ())}
    extras.check(command, sorted(modules), "play", *(("export",) if exports else ()))


def viser_module() -> Any:
    extras.check("the page", PAGE, "play")
    try:
        return importlib.import_module("viser")
    except ImportError as error:  # there, but broken
        raise UserError(
            f"the page cannot load viser ({one_line(error)}): {extras.install_line('play')}"
        ) from None


def start_viser(label: str) -> Any:
    """A viser server that only this computer can reach, on a port that the system chooses."""
    viser = viser_module()
    quiet = contextlib.redirect_stdout(io.StringIO())  # it prints an address that is not ours
    with quiet, no_browsers():
        server = viser.ViserServer("127.0.0.1", 0, label=label, verbose=False)
    # Any browser may ask for a tunnel through viser's host; ours stays on this computer.
    server.request_share_url = lambda verbose=True: None
    server.gui.configure_theme(show_logo=False, show_share_button=False, brand_color=(30, 136, 229))
    return server


@contextlib.contextmanager
def no_browsers() -> Iterator[None]:
    """WebSocket servers that start meanwhile take nobody who names an origin.

    Every browser does, for whatever page it is. Our page's relay does not. viser has no option for this.
    """
    module: Any = importlib.import_module("websockets.asyncio.server")
    usual = module.serve
    module.serve = functools.partial(usual, origins=[None])
    try:
        yield
    finally:
        module.serve = usual


def stop_viser(server: Any) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        server.stop()
