"""Live plots of a robot that is played: what it is asked for and does, its reward, a joint, its power."""

from __future__ import annotations

from typing import Any

import numpy as np

from fleetfoot.play.history import Record
from fleetfoot.play.simulation import Simulation

EVERY = 2  # control steps per point
COLORS = (
    *("#1e88e5", "#43a047", "#e53935", "#fb8c00", "#8e24aa", "#00acc1", "#6d4c41", "#c0ca33"),
    *("#3949ab", "#d81b60", "#00897b", "#fdd835", "#5e35b1", "#757575", "#f4511e", "#7cb342"),
)


class Plots:
    """Four charts of the last seconds."""

    def __init__(self, gui: Any, simulation: Simulation) -> None:
        self.simulation = simulation
        with gui.add_folder("Plots"):
            self.on = gui.add_checkbox("Update", True)
            self.speed = _plot(gui, "forward speed, m/s", ("asked", "is", "missed by"), 130)
            names = simulation.history.terms
            self.terms = _plot(gui, "reward per second", names, 190) if names else None
            joints = simulation.history.joints
            self.joint = gui.add_dropdown("Joint", joints, initial_value=joints[_knee(joints)])
            self.target = _plot(gui, "joint, rad", ("target", "is"), 120)
            self.power = _plot(gui, "power, W", ("power",), 110)

    def refresh(self) -> None:
        if not self.on.value:
            return
        record = self.simulation.history.record(EVERY)
        if record is None:
            return
        x = record.seconds
        asked = record.command[:, 0] if record.command.shape[1] else np.zeros_like(x)
        self.speed.data = (x, asked, record.measured[:, 0], record.error)
        if self.terms is not None:
            self.terms.data = (x, *record.terms.T)
        joint = self.simulation.history.joints.index(self.joint.value)
        self.target.data = (x, record.target[:, joint], record.position[:, joint])
        self.power.data = (x, record.power)


def tracking(record: Record) -> float:
    """The mean by which the speed is missed (m/s)."""
    return float(record.error.mean())


def _plot(gui: Any, title: str, names: tuple[str, ...], height: int) -> Any:
    series: list[dict[str, Any]] = [{"label": "s"}]
    series += [
        {"label": name, "stroke": COLORS[i % len(COLORS)], "width": 1.5}
        for i, name in enumerate(names)
    ]
    empty = np.zeros(2)
    return gui.add_uplot(
        (np.arange(2.0), *(empty for _ in names)),
        tuple(series),
        title=title,
        scales={"x": {"time": False}},
        height=height,
        legend={"show": len(names) > 1, "live": False},
        axes=({"size": 26}, {"size": 44}),
    )


def _knee(joints: tuple[str, ...]) -> int:
    """A joint that moves while a robot walks."""
    return next((i for i, name in enumerate(joints) if "knee" in name.lower()), 0)
