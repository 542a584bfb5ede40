"""`play` and `watch` from Python: what the two commands call."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fleetfoot import deploy
from fleetfoot.envs.robot.config import Ground
from fleetfoot.errors import UserError
from fleetfoot.play.environment import EnvironmentSession
from fleetfoot.play.extra import check
from fleetfoot.play.native import play_native
from fleetfoot.play.page import LOOPBACK
from fleetfoot.play.session import RobotSession
from fleetfoot.play.source import Source, needs_export, open_source, robot_for
from fleetfoot.play.watcher import NEWEST, CurvesPanel, Watcher
from fleetfoot.run.folder import read_recipe

Say = Callable[[str], None]


def open_session(
    source: Source,
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    title: str = "fleetfoot play",
    extra: Callable[[Any], Callable[[], None]] | None = None,
) -> RobotSession | EnvironmentSession:
    """A page that plays, until its `close`. `extra` adds to its panel, and gives what refreshes that."""
    if source.robot is not None:
        return RobotSession(
            source.policies, source.robot, host=host, port=port, title=title, extra=extra
        )
    assert source.env is not None
    return EnvironmentSession(
        source.policies, source.env, host=host, port=port, title=title, extra=extra
    )


def play(
    places: Sequence[Path],
    *,
    which: Any = "best",
    model: Path | None = None,
    ground: Ground | None = None,
    native: bool = False,
    host: str = "127.0.0.1",
    port: int | None = None,
    say: Say = print,
) -> None:
    """Until Ctrl-C, or until the window is closed."""
    check("play", page=not native, exports=any(map(needs_export, places)))
    source = open_source(places, which, model, ground)
    if native:
        if source.robot is None:
            raise UserError("MuJoCo's viewer shows only robots; leave out --viewer native.")
        play_native(source.policies, source.robot)
        return
    session = open_session(source, host=host, port=port)
    _stay(session, say)


def watch(
    folder: Path,
    *,
    imports: Sequence[str] = (),
    host: str = "127.0.0.1",
    port: int | None = None,
    say: Say = print,
) -> None:
    """Until Ctrl-C."""
    check("watch", exports=True)
    watcher = Watcher(folder, imports)
    recipe = read_recipe(folder)
    policy = watcher.wait(say)
    source = watched(policy, recipe.env)

    def curves(gui: Any) -> Callable[[], None]:
        return CurvesPanel(gui, watcher).refresh

    title = f"watching {folder.resolve().name}"
    session = open_session(source, host=host, port=port, title=title, extra=curves)
    watcher.told = lambda newer: session.replace(NEWEST, newer)
    watcher.start()
    try:
        _stay(session, say)
    finally:
        watcher.close()


def watched(policy: deploy.Policy, env: Any) -> Source:
    body = robot_for(policy.about, env)
    return Source({NEWEST: policy}, body, None if body else env)


def _stay(session: RobotSession | EnvironmentSession, say: Say) -> None:
    try:
        page = session.page
        say(f"open {page.url}   (Ctrl-C ends it)")
        if page.host not in LOOPBACK:
            say(
                f"everybody who can reach {page.host}:{page.port} can see it and steer it; "
                "without --host it is for this computer alone"
            )
        while True:
            time.sleep(3600.0)
    finally:
        session.close()
