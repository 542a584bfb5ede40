"""A robot on the page: simulation, scene, controls, plots and the page itself, put together."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fleetfoot import deploy
from fleetfoot.envs.robot import Robot
from fleetfoot.play.controls import Controls
from fleetfoot.play.extra import start_viser, stop_viser
from fleetfoot.play.page import Json, Page
from fleetfoot.play.plots import Plots, tracking
from fleetfoot.play.robot import Array
from fleetfoot.play.scene import Scene
from fleetfoot.play.simulation import Simulation

FRAMES = 40.0  # pictures a second, at most the control rate
REFRESH = 0.1  # seconds between two updates of the sliders
PLOT = 0.25  # and of the plots
SECOND = 50  # control steps that figures on the page are means of
HINT = (
    "W S A D: go    Q E: turn    arrows: go and turn    space: pause    .: step    R: restart    P: push    "
    "or a gamepad"
)


class RobotSession:
    """Plays until `close`."""

    def __init__(
        self,
        policies: Mapping[str, deploy.Policy],
        robot: Robot,
        *,
        host: str,
        port: int | None,
        title: str = "fleetfoot play",
        extra: Callable[[Any], Callable[[], None]] | None = None,
    ) -> None:
        self.simulation = Simulation(policies, robot)
        self.server = start_viser(title)
        self.scene = Scene(self.server, self.simulation.robot, self._pulled)
        # What a watcher adds stands above the rest.
        self._more = extra(self.server.gui) if extra is not None else lambda: None
        self.controls = Controls(self.server.gui, self.simulation, self.scene)
        self.plots = Plots(self.server.gui, self.simulation)
        self.frame_rate = 0.0  # a browser may ask as soon as there is a page
        names = list(self.simulation.about.commands)
        config = {"kind": "robot", "title": title, "hint": HINT, "steers": len(names) == 3}
        try:
            self.page = Page(
                host,
                port,
                self.server.get_port(),
                config=config,
                state=self.state,
                hear=self.hear,
            )
        except BaseException:
            stop_viser(self.server)
            raise
        self._closed = threading.Event()
        self._drawer = threading.Thread(target=self._draw, name="draw", daemon=True)
        self.simulation.start()
        self._drawer.start()

    def _pulled(self, body: int, point: Array, goal: Array | None) -> None:
        self.simulation.robot.pull = None if goal is None else (body, point, goal)

    def replace(self, name: str, policy: deploy.Policy) -> None:
        """A newer version of a policy."""
        self.simulation.replace(name, policy)

    def hear(self, said: Json) -> None:
        """From a browser."""
        match said:
            case {"steer": [*wanted]} if all(isinstance(v, (int, float)) for v in wanted):
                ranges = list(self.simulation.about.commands.values())
                if len(wanted) == len(ranges):
                    pairs = zip(wanted, ranges, strict=True)
                    self.simulation.steer(
                        [high * v if v > 0 else -low * v for v, (low, high) in pairs]
                    )
            case {"press": str(name)}:
                self.controls.press(name)

    def state(self) -> Json:
        """What the page shows ten times a second."""
        sim = self.simulation
        command, measured = sim.command, sim.robot.measured()
        record = sim.history.record(last=SECOND)
        lines: list[tuple[str, str, str]] = [
            ("command", _numbers(command), "command"),
            ("measured", _numbers(measured[: len(command)]), "measured"),
        ]
        if record is not None:
            lines.append(("missed by", f"{tracking(record):.2f} m/s", ""))
            reward = record.terms.sum(1).mean() if record.terms.size else None
            if reward is not None:
                lines.append(("reward", f"{reward:.2f} per s", ""))
        lines.append(("speed", f"{sim.speed * sim.real_time:.2f} x real time", ""))
        if sim.paused:
            lines.append(("", sim.problem or "paused", "warn"))
        return {
            "policy": sim.current,
            "lines": lines,
            "command": command.tolist(),
            "measured": [_finite(value) for value in measured],
            "seconds": sim.robot.clock(),
            "steps": sim.steps,
            "restarts": sim.restarts,
            "falls": sim.falls,
            "paused": sim.paused,
            "pulling": sim.robot.pull is not None,
            "frames": self.scene.frames,
            "frame_rate": self.frame_rate,
        }

    def _draw(self) -> None:
        sim = self.simulation
        interval = max(1.0 / FRAMES, sim.period)
        due = next_refresh = next_plot = time.monotonic()
        counted, since = 0, time.monotonic()
        while not self._closed.is_set():
            due = max(due + interval, time.monotonic() - interval)
            with sim.lock:
                qpos, measured = sim.robot.data.qpos.copy(), sim.robot.measured()
            self.scene.update(qpos, sim.command, measured)
            now = time.monotonic()
            if now >= next_refresh:
                self.controls.refresh()
                self._more()
                next_refresh = now + REFRESH
            if now >= next_plot:
                self.plots.refresh()
                next_plot = now + PLOT
                if now - since > 2.0:
                    self.frame_rate = (self.scene.frames - counted) / (now - since)
                    counted, since = self.scene.frames, now
            self._closed.wait(max(0.0, due - time.monotonic()))

    def close(self) -> None:
        self._closed.set()
        self.simulation.close()
        self._drawer.join(5.0)
        self.page.close()
        stop_viser(self.server)


def _numbers(values: Array) -> str:
    return "  ".join(f"{value:+.2f}" for value in values)


def _finite(value: float) -> float:
    return float(value) if np.isfinite(value) else 0.0
