"""MuJoCo's own window: its keys, and, where there is Xvfb, the window itself on a screen that nobody sees."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
from numpy.typing import NDArray

from fleetfoot.play import native
from fleetfoot.play.simulation import Simulation
from fleetfoot.play.source import open_source
from support.tabs import PATIENCE, wait_until

# Tells what it sees, a line each time it has drawn.
CHILD = """
import json
from fleetfoot.play.native import NativeSession
from fleetfoot.play.source import open_source

class Telling(NativeSession):
    def _tell(self):
        super()._tell()
        sim = self.simulation
        seen = {"command": sim.command.tolist(), "measured": sim.robot.measured().tolist(), "falls": sim.falls,
                "paused": sim.paused, "policy": sim.current, "pulled": sim.robot.pull is not None}
        print(json.dumps(seen), flush=True)

source = open_source([])
session = Telling(source.policies, source.robot)
session.run()
session.close()
"""


@pytest.fixture
def simulation() -> Simulation:
    source = open_source([])
    assert source.robot is not None
    return Simulation(source.policies, source.robot)


def test_no_key_is_a_shortcut_of_the_viewer() -> None:
    """Those switch what is drawn: 0 hides the robot, a comma paints it by numbers."""
    taken = {ord(key) for _, _, key in (*mujoco.mjVISSTRING, *mujoco.mjRNDSTRING) if key}
    taken |= {ord(key) for key in "012345[]"}
    own = {*native.STEER, native.STOP, native.PAUSE, native.PUSH, native.ENTER, native.BACKSPACE}
    assert not own & taken


def test_keys(simulation: Simulation) -> None:
    for key in (native.UP, native.UP, native.LEFT, ord("9")):
        native.press(simulation, key)
    np.testing.assert_allclose(simulation.command, [0.2, -0.08, 0.1])
    native.press(simulation, native.STOP)
    assert not simulation.command.any()
    native.press(simulation, native.PAUSE)
    assert simulation.paused
    native.press(simulation, native.PUSH)
    assert np.linalg.norm(simulation.robot.data.qvel[:2]) == pytest.approx(1.0)
    before = simulation.current
    for _ in simulation.policies:
        native.press(simulation, native.ENTER)
    assert simulation.current == before
    native.press(simulation, native.ENTER)
    assert simulation.current == "stand (action 0)"


@pytest.fixture
def screen(tmp_path: Path) -> Iterator[str]:
    """A display without a screen, which keeps its picture in `tmp_path`."""
    for program in ("Xvfb", "xdotool"):
        if shutil.which(program) is None:
            pytest.skip(f"needs {program}: apt-get install xvfb xdotool")
    given, taken = os.pipe()
    words = ["Xvfb", "-displayfd", str(taken), "-screen", "0", "1280x800x24"]
    server = subprocess.Popen(
        [*words, "-fbdir", str(tmp_path), "-nolisten", "tcp"],
        pass_fds=(taken,),
        stderr=subprocess.DEVNULL,
    )
    os.close(taken)
    with os.fdopen(given) as number:
        display = number.readline().strip()
    try:
        if not display:
            pytest.skip("Xvfb does not start here")
        yield f":{display}"
    finally:
        server.terminate()
        server.wait(30)


class Window:
    """The window in a process of its own, and hands for it."""

    def __init__(self, display: str) -> None:
        self.env = {**os.environ, "DISPLAY": display}
        self.env.pop("MUJOCO_GL", None)  # the tests' own choice is one without a screen
        self.child = subprocess.Popen(
            [sys.executable, "-c", CHILD], env=self.env, stdout=subprocess.PIPE, text=True
        )
        self.told: dict[str, Any] = {}
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.child.stdout is not None
        for line in self.child.stdout:
            self.told = json.loads(line)

    def do(self, *words: str) -> None:
        subprocess.run(["xdotool", *words], env=self.env, check=True, timeout=PATIENCE)


def picture(folder: Path) -> NDArray[np.uint8]:
    """[height, width, 3] of the whole screen, from Xvfb's file of the format xwd."""
    content = (folder / "Xvfb_screen0").read_bytes()
    header = struct.unpack(">25I", content[:100])
    width, height, bits, row = header[4], header[5], header[11], header[12]
    begin = header[0] + 12 * header[19]  # after the colour map
    pixels = np.frombuffer(content, np.uint8, row * height, begin).reshape(height, row)
    return pixels[:, : width * bits // 8].reshape(height, width, bits // 8)[..., 2::-1]


@pytest.mark.slow
def test_the_robot_walks_in_the_window(screen: str, tmp_path: Path) -> None:
    window = Window(screen)
    try:
        wait_until(lambda: window.told or window.child.poll() is not None)
        assert window.told, "the window did not open"
        # The sky is above, in blue, and the robot in the middle, lit.
        wait_until(lambda: _blue(picture(tmp_path)[20:60, 400:500]))
        middle = picture(tmp_path)[150:250, 400:450].reshape(-1, 3)
        assert len(np.unique(middle, axis=0)) > 20
        for _ in range(6):
            window.do("key", "Up")
        wait_until(lambda: window.told["command"][0] > 0.5)
        wait_until(lambda: window.told["measured"][0] > 0.4)
        assert not window.told["falls"]
        window.do("key", "8")
        wait_until(lambda: not any(window.told["command"]))
        # A double click chooses a body; with Ctrl and the right button the mouse pulls it.
        window.do("mousemove", "425", "230", "click", "--repeat", "2", "--delay", "60", "1")
        window.do("keydown", "ctrl", "mousedown", "3", "mousemove_relative", "30", "0")
        wait_until(lambda: window.told["pulled"])
        window.do("mouseup", "3", "keyup", "ctrl")
        wait_until(lambda: not window.told["pulled"])
        window.do("key", "Return")
        wait_until(lambda: window.told["policy"] == "stand (action 0)")
        window.do("key", "space")
        wait_until(lambda: window.told["paused"])
        window.do("key", "ctrl+q")
        assert window.child.wait(PATIENCE) == 0
    finally:
        window.child.kill()
        window.child.wait()


def _blue(pixels: NDArray[np.uint8]) -> bool:
    red, _, blue = pixels.reshape(-1, 3).mean(0)
    return bool(blue > red + 20)
