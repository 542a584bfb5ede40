"""Headless Chromium for tests of pages: the system's own, driven by Playwright. Nothing is downloaded."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or ""
FLAGS = (
    *("--headless=new", "--no-sandbox", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-gpu"),
    *("--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"),
)
PATIENCE = 90.0  # seconds: tests wait for what must happen, and fail where it never does
# viser says these of any page.
KNOWN = ("THREE.Clock", "WebGL", "GPU stall", "GL Driver Message", "passive event listener")


def needs_chromium() -> None:
    if not CHROMIUM:
        pytest.skip("needs Chromium: apt-get install chromium")
    pytest.importorskip("playwright", reason="needs Playwright: pip install playwright")


@contextmanager
def chromium() -> Iterator[Any]:
    """A running browser."""
    needs_chromium()
    from playwright.sync_api import sync_playwright

    os.environ.setdefault("PLAYWRIGHT_SKIP_BROWSER_DOWNLOAD", "1")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


class Tab:
    """A page that plays, and everything wrong that its console says."""

    def __init__(self, browser: Any, url: str, width: int = 480, height: int = 360) -> None:
        self.page = browser.new_page(viewport={"width": width, "height": height})
        self.page.set_default_timeout(1e3 * PATIENCE)
        self.wrong: list[str] = []
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("console", self._hear)
        self.page.goto(url)
        self.until("page.state && page.socket")

    def _hear(self, message: Any) -> None:
        if message.type in ("error", "warning") and not any(w in message.text for w in KNOWN):
            self.wrong.append(f"{message.type}: {message.text}")

    def until(self, what: str) -> None:
        """Wait until this is true of the `page` of play.js, and its `state`."""
        body = f"(() => {{ const page = window.fleetfoot, state = page && page.state; return {what}; }})()"
        self.page.wait_for_function(body)

    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = self.page.evaluate("window.fleetfoot.state")
        return found

    def hold_stick(self, right: float, up: float) -> None:
        """Press the stick and move it so many pixels from its middle."""
        box = self.page.locator("#ff-go").bounding_box()
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        self.page.mouse.move(x, y)
        self.page.mouse.down()
        self.page.mouse.move(x + right, y - up)

    def close(self) -> None:
        """Fails on any error that the console had."""
        self.page.close()
        assert not self.wrong, self.wrong


def wait_until(true: Callable[[], object]) -> None:
    """For what another thread does."""
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.01)
