"""The page in a real browser: headless Chromium with WebGL in software. Any error in its console fails a test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fleetfoot import train
from fleetfoot.play.run import open_session
from fleetfoot.play.session import RobotSession
from fleetfoot.play.source import Source, open_source
from fleetfoot.play.watcher import NEWEST, CurvesPanel, Watcher
from support.tabs import Tab, chromium, needs_chromium
from support.trust_recipes import tiny


@pytest.fixture
def session() -> Iterator[RobotSession]:
    needs_chromium()
    pytest.importorskip("viser", reason="needs viser, of the extra play")
    made = open_session(open_source([]), port=0)
    assert isinstance(made, RobotSession)
    yield made
    made.close()


def test_the_stick_steers_and_the_robot_follows(session: RobotSession) -> None:
    with chromium() as browser:
        tab = Tab(browser, session.page.url)
        tab.hold_stick(0, 30)
        tab.until("state.command[0] > 0.5")
        tab.until("state.measured[0] > 0.3")
        tab.page.mouse.up()
        tab.until("state.command.every((v) => v === 0)")
        tab.page.wait_for_selector("canvas")
        tab.until("state.frames > 20")
        tab.close()


@pytest.mark.slow
def test_everything_else_on_the_page(session: RobotSession) -> None:
    """Keys, buttons, pushes, restart, other policies, a gamepad, a drag."""
    with chromium() as browser:
        tab = Tab(browser, session.page.url, 900, 700)
        page = tab.page
        page.get_by_text("Get up after a fall").wait_for()
        page.keyboard.down("KeyW")
        page.keyboard.down("KeyA")
        tab.until("state.command[0] === 1 && state.command[1] > 0.7")
        page.keyboard.up("KeyA")
        page.keyboard.up("KeyW")
        tab.until("state.command[0] === 0")

        page.keyboard.press("Space")
        tab.until("state.paused")
        steps = tab.state()["steps"]
        page.keyboard.press("Period")
        tab.until(f"state.steps === {steps + 1}")
        page.keyboard.press("Space")
        tab.until(f"state.steps > {steps + 5}")

        page.get_by_role("button", name="left", exact=True).click()
        tab.until("Math.abs(state.measured[1]) > 0.2")
        page.keyboard.press("KeyR")
        tab.until("state.restarts >= 1")

        page.get_by_label("Policy").first.click()
        page.get_by_role("option", name="random actions").click()
        tab.until("state.policy === 'random actions'")
        tab.until("state.falls >= 1")

        # A gamepad of the standard layout, as browsers show one.
        page.evaluate(
            """() => {
              const button = { pressed: false };
              window.pad = { index: 0, axes: [0, -1, 0, 0], buttons: Array(17).fill(button) };
              navigator.getGamepads = () => [window.pad];
            }"""
        )
        tab.until("state.command[0] === 1")
        page.evaluate("window.pad.axes = [0, 0, -1, 0]")
        tab.until("state.command[0] === 0 && state.command[2] === 1")
        page.evaluate("window.pad.axes = [0, 0, 0, 0]")
        tab.until("state.command[2] === 0")
        tab.close()


@pytest.mark.slow
def test_the_robot_is_dragged_by_the_mouse(session: RobotSession) -> None:
    with chromium() as browser:
        tab = Tab(browser, session.page.url, 1000, 560)  # the panel does not cover the robot
        tab.page.wait_for_selector("canvas")
        tab.until("state.frames > 40")
        box = tab.page.locator("canvas").first.bounding_box()
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] * 0.45
        for _ in range(20):  # until the browser, which draws in software, has drawn the robot
            tab.page.mouse.move(x, y)
            tab.page.wait_for_timeout(500)
            tab.page.mouse.down()
            for k in range(8):
                tab.page.mouse.move(x + 5 * k, y)
                tab.page.wait_for_timeout(250)
            if tab.state()["pulling"]:
                break
            tab.page.mouse.up()
        assert tab.state()["pulling"]
        tab.page.mouse.up()
        tab.until("!state.pulling")
        tab.close()


@pytest.mark.slow
def test_two_browsers_and_one_that_leaves(session: RobotSession) -> None:
    with chromium() as browser:
        one, two = (Tab(browser, session.page.url) for _ in range(2))
        one.page.keyboard.down("ArrowUp")
        two.until("state.command[0] === 1")
        one.close()  # while it holds the key
        two.until("state.command[0] === 0")  # nobody holds it any more
        steps = two.state()["steps"]
        two.until(f"state.steps > {steps + 20}")
        two.page.reload()
        two.until("page.state && page.socket")
        two.close()


@pytest.mark.slow
def test_watching_a_run(tmp_path: Path) -> None:
    needs_chromium()
    folder = tmp_path / "run"
    train(tiny(), folder)
    watcher = Watcher(folder)
    policy = watcher.wait(print)
    source = open_source([folder])

    def curves(gui: Any) -> Callable[[], None]:
        return CurvesPanel(gui, watcher).refresh

    session = open_session(
        Source({NEWEST: policy}, None, source.env), port=0, title="watching", extra=curves
    )
    try:
        with chromium() as browser:
            tab = Tab(browser, session.page.url, 900, 700)
            tab.until("page.pictures > 5 && state.steps > 5")
            tab.page.get_by_text("return over env steps").wait_for()
            tab.page.keyboard.down("ArrowRight")
            tab.until("state.policy === 'you'")
            tab.close()
    finally:
        session.close()
