"""Headless Chromium for pages. It notes what a page complains of and what it asks the network for."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
LOCAL = ("file", "data", "blob", "about")


class Browser:
    """One window. `page` is Playwright's."""

    def __init__(self, page: Any):
        self.page = page
        self.complaints: list[str] = []  # errors and warnings of the console, and exceptions
        self.requests: list[str] = []  # addresses, but for those inside the page
        page.on("console", self._heard)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", self._asked)

    def _heard(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def _asked(self, request: Any) -> None:
        if urlsplit(request.url).scheme not in LOCAL:
            self.requests.append(request.url)

    def open(self, address: str | Path) -> None:
        """Go to a page, and wait until its script says that it is ready."""
        self.complaints.clear()
        self.requests.clear()
        self.page.goto(address.resolve().as_uri() if isinstance(address, Path) else address)
        self.wait("'ready' in document.documentElement.dataset")

    def wait(self, expression: str) -> Any:
        """The value of an expression, once it is true. Asked from here: a page may forbid to evaluate text in it."""
        for _ in range(600):
            if value := self.run(expression):
                return value
            self.page.wait_for_timeout(100)
        raise AssertionError(f"{expression} did not become true within a minute")

    def run(self, expression: str) -> Any:
        """The value of an expression, or of a function."""
        return self.page.evaluate(expression)


@contextmanager
def chromium(width: int = 1280, height: int = 900) -> Iterator[Browser]:
    """Skips the test where there is no Chromium. Playwright's own browsers are never downloaded."""
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("chromium is not installed (.ci/system-packages)")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        try:
            yield Browser(browser.new_page(viewport={"width": width, "height": height}))
        finally:
            browser.close()
