"""A robot that is driven by `deploy.drive`, the very loop of a real robot, on the clock of the simulation.

The loop runs in a thread of its own. What it calls to wait (`_wait`) moves the physics on, keeps pace with the wall
clock, holds while paused, and measures. To restart, or to change the policy, it is left by an exception and begins
anew, as it would on a robot that was switched off and on.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping, Sequence

import numpy as np

from fleetfoot import deploy
from fleetfoot.envs.robot import Robot
from fleetfoot.errors import UserError
from fleetfoot.play.baselines import RandomPolicy, ZeroPolicy
from fleetfoot.play.history import History
from fleetfoot.play.reward import RewardMeter
from fleetfoot.play.robot import Array, SimulatedRobot

LATEST = 0.1  # seconds behind the wall clock that are still made up for
LYING = 1.5  # seconds a fallen robot lies before it is put back on its feet


class Left(Exception):  # noqa: N818
    """The loop is left: restart, another policy, or the end."""


class Simulation:
    """One robot, several policies for it, one of which drives. Methods may be called from any thread."""

    def __init__(self, policies: Mapping[str, deploy.Policy], robot: Robot, seed: int = 0) -> None:
        first = next(iter(policies.values()))
        self.about = first.about
        self.robot = SimulatedRobot(self.about, robot)
        for policy in policies.values():
            deploy.Controller(policy).check_joints(self.robot.names)
        baselines = {
            "stand (action 0)": ZeroPolicy(self.about),
            "random actions": RandomPolicy(self.about, seed),
        }
        self.policies: dict[str, deploy.Policy] = {**policies, **baselines}
        self.current = next(iter(policies))
        self.steer(self.command.tolist())  # a range need not hold 0
        known = RewardMeter.knows(self.robot, self.about)
        self.reward = RewardMeter(self.robot, self.about) if known else None
        assert self.about.control_hz is not None
        self.period = 1.0 / self.about.control_hz
        self.history = History(self.reward.names if self.reward else (), self.robot.names)
        self.lock = threading.RLock()  # held while the physics moves
        self.speed, self.paused, self.gets_up = 1.0, False, True
        self.steps = self.falls = self.restarts = 0
        self.real_time = 1.0  # share of the wall clock's pace that is reached
        self.problem = ""  # why it holds
        self.controller = deploy.Controller(first)
        self._single = self._leave = self._closed = False
        self._swap: deploy.Policy | None = None  # takes over at the next step
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None

    @property
    def command(self) -> Array:
        return self.robot.velocity.copy()

    def steer(self, command: Sequence[float]) -> None:
        """The new command, clipped to what the policy was trained with."""
        bounds = np.array(list(self.about.commands.values())).reshape(-1, 2)
        if len(command) == len(bounds) and np.isfinite(command).all():
            self.robot.velocity = np.clip(np.asarray(command, np.float64), *bounds.T)

    def push(self, velocity: Sequence[float]) -> None:
        with self.lock:
            self.robot.push(velocity)

    def restart(self) -> None:
        self._leave = True
        self._notify()

    def choose(self, name: str) -> None:
        """From now on this policy drives, from the standing pose."""
        if name in self.policies and name != self.current:
            self.current = name
            self.restart()

    def replace(self, name: str, policy: deploy.Policy) -> None:
        """A newer version of a policy; the robot goes on from where it is, where it drives at the moment."""
        deploy.Controller(policy).check_joints(self.robot.names)
        self.policies[name] = policy
        if name == self.current:
            self._swap = policy

    def pause(self, paused: bool) -> None:
        self.paused = paused
        self._notify()

    def single_step(self) -> None:
        """One control step, and then it holds."""
        self.paused = self._single = True
        self._notify()

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="simulation", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed = True
        self._notify()
        if self._thread is not None:
            self._thread.join(5.0)

    def _notify(self) -> None:
        with self._wake:
            self._wake.notify_all()

    def _run(self) -> None:
        while not self._closed:
            with self.lock:
                self._leave, self._swap, self.problem = False, None, ""
                self.robot.begin()
                if self.reward is not None:
                    self.reward.begin()
            self.controller = deploy.Controller(self.policies[self.current])
            self._due = self._paced = time.monotonic()
            self._down = 0.0
            try:
                deploy.drive(self.robot, self.controller, clock=self.robot.clock, wait=self._wait)
            except Left:
                self.restarts += 1
            except (
                UserError
            ) as error:  # of the policy: it stays as it is, and says why, until a restart
                self.problem, self.paused = str(error), True
                with contextlib.suppress(Left):
                    self._hold()

    def _wait(self, seconds: float) -> None:
        """What `drive` does between two control steps."""
        if seconds < self.period / 2:  # rounding of the clock
            return
        self._hold()
        with self.lock:
            self.robot.advance(seconds)
            self._measure()
        if self._swap is not None:
            self.controller.policy, self._swap = self._swap, None
        self.steps += 1
        self._fall(seconds)
        self._pace(seconds)
        if self._leave or self._closed:
            raise Left

    def _hold(self) -> None:
        """While paused, until somebody asks for a step, a restart, or to go on."""
        held = False
        with self._wake:
            while self.paused and not (self._single or self._leave or self._closed):
                held = True
                self._wake.wait(0.5)
        self._single = False
        if held:
            self._due = self._paced = time.monotonic()
        if self._leave or self._closed:
            raise Left

    def _measure(self) -> None:
        robot, order = self.robot, self.controller
        terms = [] if self.reward is None else self.reward.step(order.last_action)
        self.history.add(
            robot.clock(),
            robot.velocity,
            robot.measured(),
            robot.power(),
            terms,
            robot.data.ctrl,
            robot.data.qpos[robot.built.q],
        )

    def _fall(self, seconds: float) -> None:
        if not self.robot.fallen():
            self._down = 0.0
            return
        if self._down == 0.0:
            self.falls += 1
        self._down += seconds
        exploded = not np.isfinite(self.robot.data.qpos).all()
        if exploded or (self.gets_up and self._down > LYING):
            self._leave = True

    def _pace(self, seconds: float) -> None:
        """Keep to the wall clock; what cannot be kept is given up, not made up for."""
        wanted = seconds / self.speed
        self._due += wanted
        late = time.monotonic() - self._due
        if late < 0.0:
            time.sleep(-late)
        elif late > LATEST:
            self._due += late
        now = time.monotonic()
        share = min(1.0, wanted / max(now - self._paced, 1e-9))
        self._paced = now
        self.real_time += 0.05 * (share - self.real_time)
