"""A policy on a robot: history, last actions, the clock of the gait, limits, and what happens when something is wrong.

One control step:

    senses, command -> observation -> policy -> target, within the limits of the joint -> order for the robot

A step is *bad* where a sense is missing, of another size or not finite, where the policy's answer is not finite, or
where the step comes later than a whole control period. What a bad step does is the *fallback*:

    hold   the last target once more. After `patience` bad steps in a row the controller changes to damp
    damp   no stiffness (kp = 0), no force, damping as given: the robot sinks instead of falling

Once it damps, it damps until `reset`, whatever the senses say.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fleetfoot.deploy.about import Term
from fleetfoot.deploy.policy import Policy
from fleetfoot.errors import UserError

Numbers: TypeAlias = NDArray[np.float32]
Fallback: TypeAlias = Literal["hold", "damp"]
STILL = 0.01  # a command shorter than this asks the robot to stand


@dataclass(frozen=True)
class Order:
    """What the robot is to do until the next control step, joint by joint in the order of the policy."""

    target: Numbers  # positions of the joints, or what else the policy was trained to give
    kp: (
        Numbers | None
    )  # stiffness and damping to hold it with; None where the file does not know them
    kd: Numbers | None
    mode: Literal["policy", "hold", "damp"]
    why: str = ""  # of a bad step: what was wrong


class Controller:
    """Gives orders at the control rate. Call `reset` before the first step, and to go on after it has damped."""

    def __init__(
        self,
        policy: Policy,
        *,
        task: int | str | None = None,
        fallback: Fallback = "hold",
        patience: int = 5,
    ) -> None:
        about = policy.about
        if about.discrete or about.obs_dtype != np.float32:
            raise UserError(f"{about.name} is not a robot's policy; call the policy itself.")
        if fallback not in ("hold", "damp"):
            raise UserError(f"fallback must be hold or damp, not {fallback!r}.")
        self.policy, self.about, self.task = policy, about, task
        self.fallback, self.patience = fallback, patience
        self.period = None if about.control_hz is None else 1.0 / about.control_hz
        self.terms = about.terms or (Term("obs", math.prod(about.obs_shape) // about.history),)
        self.senses = tuple(term.name for term in self.terms if term.source == "sensor")
        self.command_size = sum(term.size for term in self.terms if term.source == "command")
        joint = about.joints
        self.low = _column([j.target_low for j in joint], -math.inf, about.action_size)
        self.high = _column([j.target_high for j in joint], math.inf, about.action_size)
        # What a joint is told before the first good step: its standing position, or no force.
        self.standing = _column([j.standing * j.servo for j in joint], 0.0, about.action_size)
        self.servo = np.array([j.servo for j in joint] or [True] * about.action_size)
        known = bool(joint) and all(j.kp is not None and j.kd is not None for j in joint)
        self.kp = _column([j.kp for j in joint], 0.0, about.action_size) if known else None
        self.kd = _column([j.kd for j in joint], 0.0, about.action_size) if known else None
        oldest = max([term.late for term in self.terms if term.source == "action"], default=0)
        self._actions: deque[Numbers] = deque(maxlen=1 + oldest)
        self._frames: deque[Numbers] = deque(maxlen=about.history)
        self.reset()

    def check_joints(self, robot: Sequence[str]) -> None:
        """UserError where the robot has other joints than the policy, or has them in another order."""
        policy = [joint.name for joint in self.about.joints]
        if not policy:
            raise UserError(f"{self.about.name} names no joints, so nothing says which is which.")
        for place, (theirs, ours) in enumerate(zip_longest(robot, policy)):
            if theirs == ours:
                continue
            if sorted(robot) == sorted(policy):
                raise UserError(
                    f"the robot has its joints in another order than the policy: joint {place} is {theirs!r} there and "
                    f"{ours!r} here."
                )
            raise UserError(
                f"the robot has other joints than the policy: joint {place} is {theirs!r} there and {ours!r} here."
            )

    def reset(self) -> None:
        """As at the beginning of an episode. The first order of a bad step is the standing pose."""
        self._frames.clear()
        self._actions.clear()
        for _ in range(self._actions.maxlen or 0):
            self._actions.append(np.zeros(self.about.action_size, np.float32))
        self._phases: dict[str, NDArray[np.float64]] = {
            term.name: np.array(term.gait["start"], np.float64) for term in self.terms if term.gait
        }
        self._target = self.standing
        self.steps = self.bad_steps = self._bad_in_a_row = 0
        self.damping = False

    @property
    def last_action(self) -> Numbers:
        """In [-1, 1], as the policy gave it."""
        return self._actions[-1]

    def step(
        self, senses: Mapping[str, ArrayLike], command: ArrayLike = (), *, late: float = 0.0
    ) -> Order:
        """One control step. `late`: seconds after the time at which it was due."""
        why = self._late(late)
        frame = None
        if not why:
            frame, why = self._frame(senses, command)
        if frame is not None:
            why = self._act(frame)
            self._advance_gait(command)
        self.steps += 1
        if not why:
            self._bad_in_a_row = 0
            mode: Literal["policy", "damp"] = "damp" if self.damping else "policy"
            return self._order(mode, "it damps until reset" if self.damping else "")
        self.bad_steps += 1
        self._bad_in_a_row += 1
        if self.fallback == "damp" or self._bad_in_a_row > self.patience:
            self.damping = True
        return self._order("damp" if self.damping else "hold", why)

    def _order(self, mode: Literal["policy", "hold", "damp"], why: str) -> Order:
        if mode != "damp":
            return Order(self._target, self.kp, self.kd, mode, why)
        kp = None if self.kp is None else np.zeros_like(self.kp)
        return Order(np.where(self.servo, self._target, 0.0), kp, self.kd, mode, why)

    def _late(self, late: float) -> str:
        if self.period is not None and late > self.period:
            return f"the step came {late:.3f} s late"
        return ""

    def _frame(
        self, senses: Mapping[str, ArrayLike], command: ArrayLike
    ) -> tuple[Numbers | None, str]:
        """What the policy sees of this moment, or what is wrong with it."""
        wanted = np.asarray(command, np.float32).reshape(-1)
        if wanted.size != self.command_size:
            return None, f"the command has {wanted.size} numbers, not {self.command_size}"
        parts: list[Numbers] = []
        for term in self.terms:
            if term.source == "action":
                part = self._actions[-1 - term.late]
            elif term.source == "command":
                part = self._within(wanted)
            elif term.source == "gait":
                phase = self._phases[term.name]
                part = np.concatenate([np.cos(phase), np.sin(phase)]).astype(np.float32)
            elif term.name not in senses:
                return None, f"{term.name} is missing"
            else:
                part = np.asarray(senses[term.name], np.float32).reshape(-1)
            if part.size != term.size:
                return None, f"{term.name} has {part.size} numbers, not {term.size}"
            parts.append(part)
        frame = np.concatenate(parts)
        if not np.isfinite(frame).all():
            where = int(np.flatnonzero(~np.isfinite(frame))[0])
            return None, f"{self._name_of(where)} is not finite"
        return frame, ""

    def _act(self, frame: Numbers) -> str:
        if not self._frames:  # as if it had been seen for a while
            self._frames.extend([frame] * (self.about.history - 1))
        self._frames.append(frame)
        obs = np.concatenate(self._frames).reshape(self.about.obs_shape)
        answer = self.policy(obs, self.task)
        target = answer.action if answer.target is None else answer.target
        if not np.isfinite(target).all():
            return "the policy's answer is not finite"
        self._actions.append(np.clip(answer.action, -1.0, 1.0))
        if not self.damping:
            self._target = np.clip(target, self.low, self.high)
        return ""

    def _advance_gait(self, command: ArrayLike) -> None:
        """The phase moves on by its frequency, and rests at pi while the robot is to stand."""
        for term in self.terms:
            if not term.gait or self.period is None or self.steps < term.late:
                continue
            turn = 2 * math.pi * float(term.gait["frequency"]) * self.period
            phase = np.fmod(self._phases[term.name] + turn + math.pi, 2 * math.pi) - math.pi
            if term.gait["stands"] and float(np.linalg.norm(np.asarray(command))) <= STILL:
                phase = np.full_like(phase, math.pi)
            self._phases[term.name] = phase

    def _within(self, command: Numbers) -> Numbers:
        """The command, within the ranges that the policy was trained with."""
        if len(self.about.commands) != command.size:
            return command
        low, high = np.array([*self.about.commands.values()], np.float32).reshape(-1, 2).T
        return np.clip(command, low, high)

    def _name_of(self, place: int) -> str:
        for term in self.terms:
            if place < term.size:
                return term.name
            place -= term.size
        raise AssertionError


def _column(values: Sequence[float | None], default: float, size: int) -> Numbers:
    if not values:
        return np.full(size, default, np.float32)
    return np.array([default if value is None else value for value in values], np.float32)
