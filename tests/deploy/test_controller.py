"""The controller: what it remembers, its limits, and what it does when something is wrong. Time is made up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fleetfoot import UserError, deploy
from fleetfoot.export.run import Package
from support.exported import leg_package, write

SENSES: dict[str, Any] = {"joint_pos": [0.2, -0.9], "joint_vel": [1.0, -2.0]}


@pytest.fixture(scope="module")
def made() -> Package:
    return leg_package(history=3)


@pytest.fixture
def policy(made: Package, tmp_path: Path) -> deploy.Policy:
    return deploy.load(write(tmp_path / "leg", made.files))


def test_history_and_last_actions_are_kept(policy: deploy.Policy) -> None:
    """Frames oldest first; the first one fills the history. Actions are one step late here."""
    controller = deploy.Controller(policy)
    assert controller.senses == ("joint_pos", "joint_vel")
    actions, frames = [np.zeros(2), np.zeros(2)], []
    for t in range(6):
        senses = {"joint_pos": [0.01 * t, -1.0], "joint_vel": [0.1 * t, 0.3]}
        frame = np.concatenate([*senses.values(), actions[t], [0.1 * t]])
        frames.append(frame)
        recent = [frames[max(0, k)] for k in (t - 2, t - 1, t)]
        expected = policy(np.concatenate(recent))
        order = controller.step(senses, [0.1 * t])
        assert order.mode == "policy"
        assert expected.target is not None
        low, high = controller.low, controller.high
        assert np.allclose(order.target, expected.target.clip(low, high), atol=1e-6)
        actions.append(expected.action)
    controller.reset()
    again = controller.step({"joint_pos": [0.0, -1.0], "joint_vel": [0.0, 0.3]}, [0.0])
    first = np.concatenate([[0.0, -1.0, 0.0, 0.3], np.zeros(3)])
    target = policy(np.tile(first, 3)).target
    assert target is not None
    assert np.allclose(again.target, target.clip(controller.low, controller.high), atol=1e-6)


class Answers(deploy.Policy):
    """The same file, but it answers what it is told to."""

    def __init__(self, policy: deploy.Policy) -> None:
        self.about, self.answer, self.seen = policy.about, np.zeros(2, np.float32), np.zeros(0)

    def __call__(self, obs: Any, task: Any = None) -> deploy.Output:
        self.seen = np.asarray(obs)
        return deploy.Output(np.zeros(2, np.float32), target=self.answer)


def test_targets_stay_within_the_limits_of_the_joints(policy: deploy.Policy) -> None:
    told = Answers(policy)
    controller = deploy.Controller(told)
    for target, order in (([9.0, 9.0], [0.4, 9.0]), ([-9.0, -9.0], [-0.3, -9.0])):
        told.answer = np.array(target, np.float32)
        assert np.allclose(controller.step(SENSES, [0.0]).target, order)


def test_a_joint_that_is_told_a_force_gets_none_where_it_damps(policy: deploy.Policy) -> None:
    told = Answers(policy)
    hip = replace(policy.about.joints[0], servo=False, target_low=-3.0, target_high=3.0, kp=0.0)
    told.about = replace(policy.about, joints=(hip, policy.about.joints[1]))
    controller = deploy.Controller(told, patience=0)
    assert controller.step({}, [0.0]).target.tolist() == [0.0, -1.0]
    controller.reset()
    told.answer = np.array(
        [9.0, 0.5], np.float32
    )  # beyond the joint's position, which is not meant
    assert controller.step(SENSES, [0.0]).target.tolist() == [3.0, 0.5]
    assert controller.step({}, [0.0]).target.tolist() == [0.0, 0.5]


def test_commands_stay_within_their_ranges(policy: deploy.Policy) -> None:
    told = Answers(policy)
    deploy.Controller(told).step(SENSES, [5.0])
    assert told.seen[6] == told.seen[-1] == 1.0


BAD: dict[str, tuple[Mapping[str, Any], Any, float, str]] = {
    "nan": (SENSES | {"joint_vel": [0.0, np.nan]}, [0.0], 0.0, "joint_vel is not finite"),
    "infinite": (SENSES | {"joint_pos": [np.inf, 0.0]}, [0.0], 0.0, "joint_pos is not finite"),
    "missing": ({"joint_pos": [0, 0]}, [0.0], 0.0, "joint_vel is missing"),
    "size": (SENSES | {"joint_pos": [0.0]}, [0.0], 0.0, "joint_pos has 1 numbers, not 2"),
    "command": (SENSES, [0.0, 0.0], 0.0, "the command has 2 numbers, not 1"),
    "command nan": (SENSES, [np.nan], 0.0, "command is not finite"),
    "late": (SENSES, [0.0], 0.021, "the step came 0.021 s late"),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_step_holds_and_then_damps(what: str, policy: deploy.Policy) -> None:
    senses, command, late, why = BAD[what]
    controller = deploy.Controller(policy, patience=2)
    assert np.allclose(controller.step(senses, command, late=late).target, [0.1, -1.0])  # standing
    good = controller.step(SENSES, [0.0])
    assert good.mode == "policy"
    modes = []
    for _ in range(4):
        order = controller.step(senses, command, late=late)
        assert order.why == why
        assert np.array_equal(order.target, good.target)
        assert order.kp is not None
        assert order.kd is not None
        assert order.kp.tolist() == ([0.0, 0.0] if order.mode == "damp" else [30.0, 30.0])
        assert order.kd.tolist() == [1.0, 1.0]
        modes.append(order.mode)
    assert modes == ["hold", "hold", "damp", "damp"]
    assert controller.bad_steps == 5
    after = controller.step(SENSES, [0.0])  # until it is reset
    assert (after.mode, after.why) == ("damp", "it damps until reset")
    assert np.array_equal(after.target, good.target)
    controller.reset()
    assert controller.step(SENSES, [0.0]).mode == "policy"


def test_good_steps_in_between_keep_it_from_damping(policy: deploy.Policy) -> None:
    controller = deploy.Controller(policy, patience=1)
    for _ in range(5):
        assert controller.step({}, [0.0]).mode == "hold"
        assert controller.step(SENSES, [0.0]).mode == "policy"


def test_the_fallback_may_be_to_damp_at_once(policy: deploy.Policy) -> None:
    controller = deploy.Controller(policy, fallback="damp")
    assert controller.step(SENSES, [0.0]).mode == "policy"
    assert controller.step({}, [0.0]).mode == "damp"
    assert controller.step(SENSES, [0.0]).mode == "damp"
    with pytest.raises(UserError, match="fallback must be hold or damp, not 'fly'"):
        deploy.Controller(policy, fallback="fly")  # type: ignore[arg-type]


def test_an_answer_that_is_not_finite_is_not_sent(policy: deploy.Policy) -> None:
    told = Answers(policy)
    controller = deploy.Controller(told)
    told.answer = np.array([0.1, np.nan], np.float32)
    order = controller.step(SENSES, [0.0])
    assert (order.mode, order.why) == ("hold", "the policy's answer is not finite")
    assert np.isfinite(order.target).all()


class Leg:
    """A robot whose time passes as told: `takes[k]` seconds in step k."""

    def __init__(self, names: tuple[str, ...] = ("hip", "knee"), **takes: float) -> None:
        self.names, self.time = names, 0.0
        self.takes = {int(key[1:]): seconds for key, seconds in takes.items()}
        self.begun: list[float] = []
        self.modes: list[str] = []

    def joints(self) -> tuple[str, ...]:
        return self.names

    def read(self) -> Mapping[str, Any]:
        self.begun.append(round(self.time, 6))
        self.time += self.takes.get(len(self.begun) - 1, 0.001)
        return SENSES

    def command(self) -> list[float]:
        return [0.3]

    def write(self, order: deploy.Order) -> None:
        self.modes.append(order.mode)

    def drive(self, policy: deploy.Policy, seconds: float) -> deploy.Drive:
        return deploy.drive(
            self,
            deploy.Controller(policy),
            seconds=seconds,
            clock=lambda: self.time,
            wait=self.wait,
        )

    def wait(self, seconds: float) -> None:
        assert seconds >= 0.0
        self.time += seconds


def test_the_loop_keeps_the_control_rate(policy: deploy.Policy) -> None:
    robot = Leg()
    assert robot.drive(policy, 0.1) == deploy.Drive(5, 0, 0, False)
    assert robot.begun == [0.0, 0.02, 0.04, 0.06, 0.08]
    assert robot.time == pytest.approx(0.1)


def test_a_slow_step_is_not_made_up_for(policy: deploy.Policy) -> None:
    """A little late: the next is on time. Periods that were missed are skipped, and the step after them is bad."""
    robot = Leg(t1=0.025, t4=0.05)
    done = robot.drive(policy, 0.2)
    assert robot.begun == [0.0, 0.02, 0.045, 0.06, 0.08, 0.13, 0.14, 0.16, 0.18]
    assert robot.modes == [*["policy"] * 5, "hold", *["policy"] * 3]
    assert done == deploy.Drive(9, 1, 1, False)


def test_other_joints_are_refused(policy: deploy.Policy) -> None:
    for names, says in (
        (
            ("knee", "hip"),
            "joints in another order than the policy: joint 0 is 'knee' there and 'hip'",
        ),
        (
            ("hip", "ankle"),
            "other joints than the policy: joint 1 is 'ankle' there and 'knee' here",
        ),
        (("hip",), "other joints than the policy: joint 1 is None there"),
    ):
        with pytest.raises(UserError, match=says):
            Leg(names).drive(policy, 1.0)
