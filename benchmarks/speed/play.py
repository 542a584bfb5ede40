"""Pictures per second of `fleetfoot play`: robot, page and browser on the same cores, WebGL in software."""

from __future__ import annotations

import os
import shutil
import time
from importlib.util import find_spec
from typing import Any

from fleetfoot.errors import UserError
from fleetfoot.play.extra import check
from fleetfoot.play.run import open_session
from fleetfoot.play.session import RobotSession
from fleetfoot.play.source import open_source

BAR = 30.0  # pictures a second, or the control rate where that is lower
FLAGS = (
    *("--headless=new", "--no-sandbox", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
    *("--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"),
)
DRAWN = """(seconds) => new Promise((done) => {
  let count = 0; const begun = performance.now();
  const next = () => {
    count += 1;
    const passed = (performance.now() - begun) / 1000;
    if (passed < seconds) requestAnimationFrame(next); else done(count / passed);
  };
  requestAnimationFrame(next);
})"""


def bench_play(
    seconds: float = 10.0, browser: bool = True, width: int = 640, height: int = 480
) -> dict[str, Any]:
    """The shipped robot walks forward. `sent` are pictures that the server sends, `drawn` those that a headless
    Chromium without a GPU draws of them, `real_time` the share of the wall clock that the simulation keeps."""
    check("bench play")
    if browser and find_spec("playwright") is None:
        raise UserError("this needs Playwright: pip install playwright; or give --no-browser.")
    session = open_session(open_source([]), port=0)
    assert isinstance(session, RobotSession)
    try:
        session.simulation.steer([0.8, 0.0, 0.0])
        found = (
            _in_chromium(session, seconds, width, height) if browser else _count(session, seconds)
        )
    finally:
        session.close()
    return {
        "policy": session.simulation.current,
        "control_hz": 1.0 / session.simulation.period,
        "window": [width, height] if browser else None,
        "bar": min(BAR, 1.0 / session.simulation.period),
        "load_average": os.getloadavg()[0],
        "falls": session.simulation.falls,
        **found,
    }


def _count(session: RobotSession, seconds: float, meanwhile: Any = time.sleep) -> dict[str, float]:
    frames, steps, begun = session.scene.frames, session.simulation.steps, time.monotonic()
    meanwhile(seconds)
    took = time.monotonic() - begun
    sent = (session.scene.frames - frames) / took
    made = (session.simulation.steps - steps) / took
    return {"sent": sent, "control_steps": made, "real_time": made * session.simulation.period}


def _in_chromium(
    session: RobotSession, seconds: float, width: int, height: int
) -> dict[str, float]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=chromium_path(), args=list(FLAGS))
        page = chromium.new_page(viewport={"width": width, "height": height})
        page.goto(session.page.url)
        page.wait_for_selector("canvas", timeout=120_000)
        page.wait_for_timeout(3_000)
        drawn = 0.0

        def look(_: float) -> None:
            nonlocal drawn
            drawn = page.evaluate(DRAWN, seconds)

        found = _count(session, seconds, look)
        chromium.close()
    return found | {"drawn": drawn}


def chromium_path() -> str:
    program = shutil.which("chromium")
    if program is None:
        raise UserError("this needs Chromium: apt-get install chromium; or give --no-browser.")
    return program
