"""Sliders and buttons of a robot that is played."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fleetfoot.play.scene import Scene
from fleetfoot.play.simulation import Simulation

DIRECTIONS = {
    "forward": (1.0, 0.0),
    "back": (-1.0, 0.0),
    "left": (0.0, 1.0),
    "right": (0.0, -1.0),
}
SPEEDS = ("1/10", "1/4", "1/2", "1", "2")
UNITS = {"forward": "m/s", "sideways": "m/s", "turning": "rad/s"}
DELAYS = 5  # control steps


class Controls:
    """The panel. Whatever it shows is read back from the simulation, which other hands move too."""

    def __init__(self, gui: Any, simulation: Simulation, scene: Scene) -> None:
        self.gui, self.simulation, self.scene = gui, simulation, scene
        self.random = np.random.default_rng(0)
        self.sliders: list[Any] = []
        self._shown: list[float] = []
        self._policies()
        self._run()
        if simulation.about.commands:
            self._commands()
        self._pushes()
        self._world()

    def _policies(self) -> None:
        sim = self.simulation
        self.chosen = self.gui.add_dropdown(
            "Policy", list(sim.policies), initial_value=sim.current, hint="Who drives the robot"
        )
        self.chosen.on_update(_told(self.chosen, sim.choose))

    def _run(self) -> None:
        sim, gui = self.simulation, self.gui
        with gui.add_folder("Time"):
            buttons = gui.add_button_group("", ("Pause", "Step", "Restart"))
            buttons.on_click(lambda event: self.press(str(event.target.value).lower()))
            speed = gui.add_dropdown("Speed", SPEEDS, initial_value="1")
            speed.on_update(lambda _: setattr(sim, "speed", fraction(speed.value)))
            again = gui.add_checkbox("Get up after a fall", sim.gets_up)
            again.on_update(_told(again, lambda value: setattr(sim, "gets_up", value)))
            follow = gui.add_checkbox("Camera follows", self.scene.follow)
            follow.on_update(_told(follow, lambda value: setattr(self.scene, "follow", value)))

    def _commands(self) -> None:
        sim = self.simulation
        with self.gui.add_folder("Command"):
            for value, (name, (low, high)) in zip(
                sim.command, sim.about.commands.items(), strict=True
            ):
                label = f"{name} ({UNITS[name]})" if name in UNITS else name
                slider = self.gui.add_slider(
                    label, low, high, step=(high - low) / 100 or 1.0, initial_value=float(value)
                )
                slider.on_update(self._slid)
                self.sliders.append(slider)
            self._shown = self._command()
            self.gui.add_button("Stop").on_click(lambda _: sim.steer([0.0] * len(self.sliders)))

    def _slid(self, event: Any) -> None:
        if event.client is None:  # we moved it ourselves
            return
        self.simulation.steer([slider.value for slider in self.sliders])
        self._shown = self._command()  # the slider shows it already

    def _pushes(self) -> None:
        with self.gui.add_folder("Push"):
            self.strength = self.gui.add_slider(
                "Strength (m/s)", 0.1, 3.0, step=0.1, initial_value=1.0
            )
            group = self.gui.add_button_group("", tuple(DIRECTIONS))
            group.on_click(lambda event: self._push(str(event.target.value)))
            self.gui.add_markdown("Or drag the robot with the mouse.")

    def _push(self, direction: str) -> None:
        forward, left = DIRECTIONS[direction]
        strength = float(self.strength.value)
        self.simulation.push((strength * forward, strength * left))

    def _world(self) -> None:
        world = self.simulation.robot.world
        milliseconds = 1e3 * self.simulation.period
        with self.gui.add_folder("World", expand_by_default=False):
            for label, field, high in (
                ("Friction", "friction", 2.0),
                ("Mass", "mass", 2.0),
                ("Sensor noise", "noise", 3.0),
            ):
                begin = getattr(world, field)
                slider = self.gui.add_slider(
                    f"{label} (x)",
                    0.0 if field == "noise" else 0.1,
                    high,
                    step=0.05,
                    initial_value=begin,
                )
                slider.on_update(_told(slider, _setter(world, field)))
            delay = self.gui.add_slider(
                f"Delay ({milliseconds:g} ms steps)", 0, DELAYS, step=1, initial_value=0
            )
            delay.on_update(_told(delay, _setter(world, "delay")))

    def press(self, name: str) -> None:
        """What keys, gamepads and buttons ask for."""
        sim = self.simulation
        if name == "pause":
            sim.pause(not sim.paused)
        elif name == "step":
            sim.single_step()
        elif name == "restart":
            sim.restart()
        elif name == "push":
            self._push(str(self.random.choice(list(DIRECTIONS))))

    def refresh(self) -> None:
        """Sliders follow the stick, keys and gamepads."""
        command = self._command()
        if command != self._shown and self.sliders:
            self._shown = command
            for slider, value in zip(self.sliders, command, strict=True):
                slider.value = value

    def _command(self) -> list[float]:
        return [round(float(value), 2) for value in self.simulation.command]


def _told(handle: Any, use: Callable[[Any], None]) -> Callable[[Any], None]:
    return lambda _: use(handle.value)


def _setter(target: object, field: str) -> Callable[[Any], None]:
    return lambda value: setattr(target, field, value)


def fraction(text: str) -> float:
    above, _, below = text.partition("/")
    return float(above) / float(below or 1)
