"""Headless Chromium for pages. It notes what a page complains of and what it asks the network for."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)
LOCAL = ("file", "data", "blob", "about", "chrome", "devtools")


class Browser:
    """One window. `driver` is Selenium's."""

    def __init__(self, driver: Any):
        self.driver = driver

    def open(self, address: str | Path) -> None:
        """Go to a page, and wait until its script says that it is ready."""
        self.driver.get(address.resolve().as_uri() if isinstance(address, Path) else address)
        self.wait("return 'ready' in document.documentElement.dataset")

    def wait(self, script: str) -> Any:
        from selenium.webdriver.support.ui import WebDriverWait

        return WebDriverWait(self.driver, 60).until(lambda driver: driver.execute_script(script))

    def run(self, script: str) -> Any:
        return self.driver.execute_script(script)

    def complaints(self) -> list[str]:
        """Errors and warnings of the console since the last call."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self, allowed: str = "") -> list[str]:
        """Addresses asked for over a network since the last call, but for those of the server `allowed`."""
        events = [
            json.loads(row["message"])["message"] for row in self.driver.get_log("performance")
        ]
        sent = [e["params"] for e in events if e["method"] == "Network.requestWillBeSent"]
        addresses = [event["request"]["url"] for event in sent]
        return [
            address
            for address in addresses
            if urlsplit(address).scheme not in LOCAL
            and not (allowed and address.startswith(allowed))
        ]

    def media(self, **features: str) -> None:
        """Pretend what CSS may ask for, such as prefers-color-scheme."""
        pairs = [{"name": k.replace("_", "-"), "value": v} for k, v in features.items()]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": pairs})

    def picture(self, path: Path) -> Path:
        """The whole page as PNG."""
        size = self.driver.execute_cdp_cmd("Page.getLayoutMetrics", {})["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        wish = {"captureBeyondViewport": True, "clip": clip}
        shot = self.driver.execute_cdp_cmd("Page.captureScreenshot", wish)
        path.write_bytes(base64.b64decode(shot["data"]))
        return path

    def pdf(self, path: Path) -> Path:
        wish = {"printBackground": True, "preferCSSPageSize": True}
        printed = self.driver.execute_cdp_cmd("Page.printToPDF", wish)
        path.write_bytes(base64.b64decode(printed["data"]))
        return path


@contextmanager
def chromium(width: int = 1280, height: int = 900) -> Iterator[Browser]:
    """Skips the test where there is no Chromium."""
    webdriver = pytest.importorskip("selenium.webdriver")
    if CHROMIUM is None or DRIVER is None:
        pytest.skip("chromium and chromedriver are not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--window-size={width},{height}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    try:
        yield Browser(driver)
    finally:
        driver.quit()
