"""A robot in MuJoCo's own viewer, where there is a screen."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Mapping
from typing import Any

import mujoco
import numpy as np

from fleetfoot import deploy
from fleetfoot.envs.robot import Robot
from fleetfoot.errors import UserError, one_line
from fleetfoot.play.simulation import Simulation

# Codes of keys in GLFW -> change of the command, as a share of its range.
STEER = {
    265: (0.1, 0.0, 0.0),
    264: (-0.1, 0.0, 0.0),
    263: (0.0, 0.0, 0.1),
    262: (0.0, 0.0, -0.1),
    ord(","): (0.0, 0.1, 0.0),
    ord("."): (0.0, -0.1, 0.0),
}
HELP = "arrows: go and turn   , .: sideways   0: stop   space: pause   backspace: restart   P: push   N: next policy"


def play_native(policies: Mapping[str, deploy.Policy], robot: Robot, speed: float = 1.0) -> None:
    """Until its window is closed."""
    check_screen()
    from mujoco import viewer

    simulation = Simulation(policies, robot)
    simulation.speed = speed
    shown = mujoco.MjData(simulation.robot.model)
    try:
        window: Any = viewer.launch_passive(
            simulation.robot.model, shown, key_callback=lambda key: press(simulation, key)
        )
    except Exception as error:  # GLFW raises many kinds
        raise UserError(f"MuJoCo's viewer cannot start here: {one_line(error)}.") from None
    print(HELP)
    simulation.start()
    try:
        while window.is_running():
            with simulation.lock:
                shown.qpos[:] = simulation.robot.data.qpos
                shown.qvel[:] = simulation.robot.data.qvel
                mujoco.mj_forward(simulation.robot.model, shown)
            window.sync()
            time.sleep(1 / 60)
    finally:
        window.close()
        simulation.close()


def check_screen() -> None:
    """UserError where no window can be opened."""
    wanted = ("DISPLAY", "WAYLAND_DISPLAY")
    if platform.system() == "Linux" and not any(os.environ.get(name) for name in wanted):
        raise UserError(
            "there is no screen here (DISPLAY is not set); leave --viewer native out, and open the page in a browser."
        )


def press(simulation: Simulation, key: int) -> None:
    """A key of the window."""
    bounds = list(simulation.about.commands.values())
    if key in STEER and len(bounds) == 3:
        wide = np.array([high for _, high in bounds])
        simulation.steer((simulation.command + wide * STEER[key]).tolist())
    elif key == ord("0"):
        simulation.steer([0.0] * len(bounds))
    elif key == ord(" "):
        simulation.pause(not simulation.paused)
    elif key == 259:  # backspace
        simulation.restart()
    elif key == ord("P"):
        angle = simulation.robot.random.uniform(0.0, 2 * np.pi)
        simulation.push((float(np.cos(angle)), float(np.sin(angle))))
    elif key == ord("N"):
        names = list(simulation.policies)
        simulation.choose(names[(names.index(simulation.current) + 1) % len(names)])
