"""The control loop: read, decide, write, at the control rate of the policy, on any robot with four methods."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from numpy.typing import ArrayLike

from fleetfoot.deploy.controller import Controller, Order
from fleetfoot.errors import UserError


class Robot(Protocol):
    """What a robot, real or simulated, must offer."""

    def joints(self) -> Sequence[str]:
        """Its joints, in the order of its senses and orders."""
        ...

    def read(self) -> Mapping[str, ArrayLike]:
        """What it senses now, by the names of the policy's terms (`Controller.senses`), in physical units."""
        ...

    def command(self) -> ArrayLike:
        """What it is to do: a joystick's position, in the order of `About.commands`."""
        ...

    def write(self, order: Order) -> None:
        """Hand targets and gains to the joints. They hold until the next call."""
        ...


@dataclass(frozen=True)
class Drive:
    """How a drive went."""

    steps: int
    bad_steps: int
    skipped: int  # control periods that had no step, because the one before took too long
    damped: bool


def drive(
    robot: Robot,
    controller: Controller,
    *,
    seconds: float = math.inf,
    clock: Callable[[], float] = time.monotonic,
    wait: Callable[[float], None] = time.sleep,
) -> Drive:
    """Steps at the control rate for so many seconds. A period that was missed is skipped, never made up for by a faster
    step. `clock` and `wait`: those of a simulation, where time is its own."""
    period = controller.period
    if period is None:
        raise UserError(f"{controller.about.name} does not give its control rate.")
    controller.check_joints(robot.joints())
    controller.reset()
    begun, tick, skipped, missed = clock(), 0, 0, 0
    while tick * period < seconds:
        late = clock() - (begun + tick * period)
        if late < 0.0:
            wait(-late)
            late = 0.0
        # Counted from the first period that was missed.
        robot.write(controller.step(robot.read(), robot.command(), late=late + missed * period))
        missed = max(0, math.floor((clock() - begun) / period) - tick - 1)
        skipped += missed
        tick += 1 + missed
    wait(max(0.0, begun + tick * period - clock()))  # the last order is carried out too
    return Drive(controller.steps, controller.bad_steps, skipped, controller.damping)
