"""A robot in MuJoCo's own viewer, where there is a screen.

The viewer has shortcuts of its own for every letter, for the digits up to 5 and for some signs: they switch what is
drawn. Keys here are those that are left.
"""

from __future__ import annotations

import os
import platform
import threading
import time
from collections.abc import Mapping
from typing import Any

import mujoco
import numpy as np

from fleetfoot import deploy
from fleetfoot.envs.render import camera_of
from fleetfoot.envs.robot import Robot
from fleetfoot.errors import UserError, one_line
from fleetfoot.play.simulation import Simulation

# Codes of keys in GLFW.
UP, DOWN, LEFT, RIGHT, ENTER, BACKSPACE = 265, 264, 263, 262, 257, 259
# Change of the command, as a share of its range.
STEER = {
    UP: (0.1, 0.0, 0.0),
    DOWN: (-0.1, 0.0, 0.0),
    LEFT: (0.0, 0.0, 0.1),
    RIGHT: (0.0, 0.0, -0.1),
    ord("7"): (0.0, 0.1, 0.0),
    ord("9"): (0.0, -0.1, 0.0),
}
STOP, PAUSE, PUSH = ord("8"), ord(" "), ord(".")
KEYS = (
    ("up, down", "faster, slower"),
    ("left, right", "turn"),
    ("7, 9", "go left, right"),
    ("8", "stop"),
    (".", "push"),
    ("space", "pause"),
    ("backspace", "restart"),
    ("enter", "next policy"),
    ("double click", "choose a body"),
    ("Ctrl + right drag", "pull it"),
    ("tab", "MuJoCo's panels"),
)
HELP = "   ".join(f"{key}: {what}" for key, what in KEYS)
FRAMES = 60.0  # pictures a second
PATIENCE = 5.0  # seconds for the viewer to take its window down


class NativeSession:
    """The window is open from the beginning to `close`, or until somebody closes it."""

    def __init__(self, policies: Mapping[str, deploy.Policy], robot: Robot) -> None:
        check_screen()
        from mujoco import viewer

        self.simulation = Simulation(policies, robot)
        self.model = robot.pictured()
        self.data = mujoco.MjData(self.model)
        self._show()
        camera = camera_of(self.model, robot.view)
        others = set(threading.enumerate())
        try:
            self.window: Any = viewer.launch_passive(
                self.model,
                self.data,
                key_callback=lambda key: press(self.simulation, key),
                show_left_ui=False,
                show_right_ui=False,
            )
        except Exception as error:  # GLFW raises many kinds
            raise UserError(f"MuJoCo's viewer cannot start here: {one_line(error)}.") from None
        self.drawing = set(threading.enumerate()) - others
        self._look_through(camera)
        self.simulation.start()

    def run(self) -> None:
        """Draw until the window is closed."""
        while self.window.is_running():
            self._pull()
            self._show()
            self._tell()
            self.window.sync()
            time.sleep(1 / FRAMES)

    def _show(self) -> None:
        with self.simulation.lock:
            self.data.qpos[:] = self.simulation.robot.data.qpos
            self.data.qvel[:] = self.simulation.robot.data.qvel
        mujoco.mj_forward(self.model, self.data)

    def _look_through(self, camera: mujoco.MjvCamera) -> None:
        names = ("type", "fixedcamid", "trackbodyid", "lookat", "distance", "azimuth", "elevation")
        with self.window.lock():
            for name in names:
                setattr(self.window.cam, name, getattr(camera, name))

    def _pull(self) -> None:
        """By the mouse, as the viewer has it: a body is chosen by a double click."""
        hand, robot = self.window.perturb, self.simulation.robot
        if hand.active & mujoco.mjtPertBit.mjPERT_TRANSLATE.value and hand.select > 0:
            body = robot.body_named(self.model.body(hand.select).name)
            robot.pull = (body, hand.localpos.copy(), hand.refselpos.copy())
        else:
            robot.pull = None

    def _tell(self) -> None:
        sim, place = self.simulation, mujoco.mjtGridPos
        small = mujoco.mjtFontScale.mjFONTSCALE_100.value
        rows = [("policy", sim.current)]
        for name, values in (("command", sim.command), ("measured", sim.robot.measured())):
            rows.append((name, "  ".join(f"{v:+.2f}" for v in values[: len(sim.command)])))
        if sim.paused:
            rows.append(("paused", sim.problem))
        self.window.set_texts(
            [
                (small, place.mjGRID_TOPLEFT.value, *_columns(rows)),
                (small, place.mjGRID_BOTTOMLEFT.value, *_columns(KEYS)),
            ]
        )

    def close(self) -> None:
        self.window.close()
        self.simulation.close()
        # The viewer's thread takes its window down by itself. If Python ends meanwhile, OpenGL goes away under it.
        for thread in self.drawing:
            thread.join(PATIENCE)


def play_native(policies: Mapping[str, deploy.Policy], robot: Robot) -> None:
    """Until its window is closed."""
    session = NativeSession(policies, robot)
    print(HELP, flush=True)
    try:
        session.run()
    finally:
        session.close()


def check_screen() -> None:
    """UserError where no window can be opened."""
    wanted = ("DISPLAY", "WAYLAND_DISPLAY")
    if platform.system() == "Linux" and not any(os.environ.get(name) for name in wanted):
        raise UserError(
            "there is no screen here (DISPLAY is not set); leave out --viewer native, and open the page in a browser."
        )


def press(simulation: Simulation, key: int) -> None:
    """A key of the window."""
    bounds = list(simulation.about.commands.values())
    if key in STEER and len(bounds) == 3:
        wide = np.array([high for _, high in bounds])
        simulation.steer((simulation.command + wide * STEER[key]).tolist())
    elif key == STOP:
        simulation.steer([0.0] * len(bounds))
    elif key == PAUSE:
        simulation.pause(not simulation.paused)
    elif key == BACKSPACE:
        simulation.restart()
    elif key == PUSH:
        angle = simulation.robot.random.uniform(0.0, 2 * np.pi)
        simulation.push((float(np.cos(angle)), float(np.sin(angle))))
    elif key == ENTER:
        names = list(simulation.policies)
        simulation.choose(names[(names.index(simulation.current) + 1) % len(names)])


def _columns(rows: Any) -> tuple[str, str]:
    """As the viewer takes them."""
    left, right = zip(*rows, strict=True)
    return "\n".join(left), "\n".join(right)
