"""The loop of `deploy` in a thread, with hands on it: steer, push, pause, restart, another policy."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest

from fleetfoot import UserError, deploy
from fleetfoot.envs.robot import robots
from fleetfoot.play import robot as playing
from fleetfoot.play.controls import Controls
from fleetfoot.play.simulation import Simulation
from fleetfoot.play.source import SHIPPED
from support.tabs import wait_until


@pytest.fixture
def simulation() -> Iterator[Simulation]:
    policy = deploy.load(SHIPPED)
    made = Simulation({"walk": policy}, playing.find(policy.about))
    made.speed = math.inf
    yield made
    made.close()


def after(simulation: Simulation, steps: int) -> None:
    begun = simulation.steps
    wait_until(lambda: simulation.steps >= begun + steps)


def test_steered_it_follows_and_its_reward_is_plotted(simulation: Simulation) -> None:
    simulation.steer([0.5, 0.0, 0.0])
    simulation.start()
    after(simulation, 200)
    record = simulation.history.record()
    assert record is not None
    assert record.seconds[-1] > 3.9
    assert record.measured[-50:, 0].mean() > 0.25
    assert record.terms.shape[1] == len(simulation.history.terms) > 10
    tracking = simulation.history.terms.index("tracking_lin_vel")
    assert record.terms[-50:, tracking].mean() > 0.5
    assert (record.power > 0).any()
    assert simulation.falls == 0


def test_commands_stay_within_the_policys_ranges(simulation: Simulation) -> None:
    simulation.steer([9.0, -9.0, 0.3])
    np.testing.assert_allclose(simulation.command, [1.0, -0.8, 0.3])
    for nonsense in ([1.0], [math.nan, 0.0, 0.0], []):
        simulation.steer(nonsense)
    np.testing.assert_allclose(simulation.command, [1.0, -0.8, 0.3])


def test_pause_step_and_restart(simulation: Simulation) -> None:
    simulation.start()
    after(simulation, 5)
    simulation.single_step()
    wait_until(lambda: not simulation._single)
    with simulation.lock:
        paused = simulation.paused
    assert paused
    seen = simulation.steps
    simulation.single_step()
    wait_until(lambda: simulation.steps >= seen + 1)
    simulation.restart()
    wait_until(lambda: simulation.restarts == 1)
    wait_until(lambda: simulation.robot.clock() == 0.0)  # it stands, still paused
    simulation.pause(False)
    after(simulation, 5)


def test_a_policy_is_chosen_and_falls_and_gets_up(simulation: Simulation) -> None:
    simulation.start()
    simulation.choose("random actions")
    wait_until(lambda: simulation.falls >= 1 and simulation.restarts >= 2)
    simulation.choose("no such policy")
    assert simulation.current == "random actions"


def test_a_newer_version_takes_over_without_a_restart(simulation: Simulation) -> None:
    simulation.start()
    newer = deploy.load(SHIPPED)
    simulation.replace("walk", newer)
    wait_until(lambda: simulation.controller.policy is newer)
    assert simulation.restarts == 0


def test_an_exploded_robot_is_put_back(simulation: Simulation) -> None:
    simulation.start()
    after(simulation, 2)
    with simulation.lock:
        simulation.robot.data.qvel[0] = math.nan
        simulation.robot.data.qpos[0] = math.nan
    wait_until(lambda: simulation.restarts >= 1)
    after(simulation, 5)
    assert np.isfinite(simulation.robot.data.qpos).all()


def test_a_command_that_cannot_be_0_begins_within_its_range() -> None:
    policy = deploy.load(SHIPPED)
    commands = policy.about.commands | {"forward": (0.5, 1.0)}
    policy.about = dataclasses.replace(policy.about, commands=commands)
    simulation = Simulation({"walk": policy}, playing.find(policy.about))
    assert simulation.command.tolist() == [0.5, 0.0, 0.0]
    gui: Any = MagicMock()
    Controls(gui, simulation, MagicMock())
    begin = [call.kwargs["initial_value"] for call in gui.add_slider.call_args_list[:3]]
    assert begin == [0.5, 0.0, 0.0]


def test_a_model_with_other_joints_is_refused() -> None:
    policy = deploy.load(SHIPPED)
    with pytest.raises(UserError, match="other joints"):
        Simulation({"walk": policy}, robots.find("go1"))


def test_a_policy_of_another_robot_is_refused(simulation: Simulation) -> None:
    other = deploy.load(SHIPPED)
    joints = other.about.joints[::-1]
    other.about = dataclasses.replace(other.about, joints=joints)
    with pytest.raises(UserError, match="another order"):
        simulation.replace("walk", other)
