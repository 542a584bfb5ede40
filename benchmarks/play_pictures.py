"""Makes the pictures of `fleetfoot play` and `fleetfoot watch` in the docs, in headless Chromium.

    python -m benchmarks.play_pictures docs/images                    # play-t1.jpg: the policy that ships
    python -m benchmarks.play_pictures docs/images --watch runs/RUN   # watch.jpg: a run of a robot
    python -m benchmarks.play_pictures docs/images --pong runs/RUN    # play-pong.jpg

The browser draws in software, about two pictures a second on two cores, so each picture takes half a minute or more.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.speed.play import FLAGS, chromium_path
from fleetfoot.errors import UserError
from fleetfoot.play.run import open_session, watched
from fleetfoot.play.source import Source, open_source
from fleetfoot.play.watcher import CurvesPanel, Watcher
from fleetfoot.run.folder import read_recipe

WIDTH, HEIGHT = 1280, 800
PATIENCE = 300_000  # milliseconds
WALKED = 300  # control steps under a command; the plots show the last 400
PLAYED = 12  # steps of Pong
STATE = "window.fleetfoot && window.fleetfoot.state"


def picture(source: Source, path: Path, hands: Callable[[Any], None], **options: Any) -> None:
    """The page while these `hands` are on it."""
    from playwright.sync_api import sync_playwright

    session = open_session(source, port=0, **options)
    try:
        with sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=chromium_path(), args=list(FLAGS))
            page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
            page.set_default_timeout(PATIENCE)
            page.goto(session.page.url)
            page.locator(".mantine-Notification-closeButton").click()  # WebGL is in software: known
            hands(page)
            page.screenshot(path=str(path), type="jpeg", quality=88, timeout=PATIENCE)
            fell = page.evaluate(f"{STATE}.falls || 0")
            browser.close()
    finally:
        session.close()
    if fell:
        raise UserError(f"the robot fell; {path} shows no walk.")
    print(f"{path}  {path.stat().st_size:,} bytes")


def walk(page: Any) -> None:
    """The stick is held forward and a little to the left."""
    page.get_by_text("Get up after a fall").wait_for()
    page.wait_for_function(f"{STATE}.frames > 20")
    box = page.locator("#ff-go").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x - 6, y - 36)
    begun = page.evaluate(f"{STATE}.steps")
    page.wait_for_function(f"{STATE}.steps > {begun + WALKED}")


def hold_up(page: Any) -> None:
    page.get_by_text("Who plays").wait_for()
    page.keyboard.down("ArrowUp")
    page.wait_for_function(f"{STATE}.policy === 'you'")
    begun = page.evaluate(f"{STATE}.steps")
    page.wait_for_function(f"{STATE}.steps > {begun + PLAYED}")


def watch(run: Path, path: Path) -> None:
    watcher = Watcher(run)
    policy = watcher.wait(print)

    def curves(gui: Any) -> Callable[[], None]:
        return CurvesPanel(gui, watcher).refresh

    source = watched(policy, read_recipe(run).env)
    picture(source, path, walk, title=f"watching {run.resolve().name}", extra=curves)


def main() -> int:
    options = argparse.ArgumentParser(description="Make the pictures of play and watch.")
    options.add_argument("folder", type=Path)
    options.add_argument("--watch", type=Path, help="a run of a robot of the package")
    options.add_argument("--pong", type=Path, help="a run of Pong")
    given = options.parse_args()
    try:
        if given.watch is not None:
            watch(given.watch, given.folder / "watch.jpg")
        if given.pong is not None:
            picture(open_source([given.pong]), given.folder / "play-pong.jpg", hold_up)
        if given.watch is None and given.pong is None:
            picture(open_source([]), given.folder / "play-t1.jpg", walk)
    except UserError as error:
        print(f"fleetfoot: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
