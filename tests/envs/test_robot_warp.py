"""Robots in MuJoCo Warp, on Warp's CPU device: the other engine behind the same seam.

Slow: the first run compiles Warp's kernels, which takes minutes on a CPU; they are cached.
"""

from __future__ import annotations

import dataclasses
import importlib
import re
import sys
from pathlib import Path

import mujoco
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fleetfoot.envs.check import check_env
from fleetfoot.envs.robot import (
    ConditionsConfig,
    PhysicsConfig,
    RandomiseConfig,
    RobotConfig,
    RobotEnv,
)
from fleetfoot.envs.robot.config import Ground, on_ground
from fleetfoot.envs.robot.joystick import Joystick
from fleetfoot.envs.robot.physics import WARP_DEVICES, EngineName
from fleetfoot.envs.robot.robot import Robot
from fleetfoot.envs.robot.robots import G1, GO1, T1
from fleetfoot.envs.robot.terms import SPECS
from fleetfoot.envs.robot.warp import WarpEngine
from fleetfoot.errors import UserError
from support.extras import needs

needs("mujoco_warp")
pytestmark = pytest.mark.slow
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def warp_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleetfoot.envs.robot.physics.WARP_DEVICES", WARP_DEVICES | {"cpu"})


def both(**fields: object) -> tuple[RobotEnv, RobotEnv]:
    made = [
        RobotConfig(engine=engine, threads=1, **fields).build(3, 0, CPU)  # type: ignore[arg-type]
        for engine in ("cpu", "warp")
    ]
    return made[0], made[1]


def actions(env: RobotEnv, steps: int) -> torch.Tensor:
    drawn = torch.rand(steps, *env._given.shape, generator=torch.Generator().manual_seed(1))
    return 0.4 * drawn - 0.2


def test_contract() -> None:
    config = RobotConfig(engine="warp", episode_length=9)
    report = check_env(config, vec_steps=20, render=False)
    assert report.truncations > 0
    assert report.saves_state


def test_starts_and_draws_are_those_of_the_cpu_engine() -> None:
    cpu, warp = both(episode_length=1)
    assert torch.equal(cpu.reset().critic, warp.reset().critic)
    zero = torch.zeros_like(cpu._given)
    assert torch.equal(cpu.step(zero).obs.critic, warp.step(zero).obs.critic)  # a new episode
    assert torch.equal(cpu._packed, warp._packed)


def converging(robot: Robot, conditions: ConditionsConfig) -> tuple[RobotEnv, RobotEnv]:
    """Both engines with a solver that converges; that of the stock tasks stops after one iteration or three."""
    with open(robot.model) as file:
        text = re.sub(r' iterations="\d+" ls_iterations="5"', ' iterations="50"', file.read())
    assert 'iterations="50"' in text
    made = []
    engines: tuple[EngineName, ...] = ("cpu", "warp")
    for engine in engines:
        physics = PhysicsConfig(timestep=0.002, substeps=10, engine=engine, threads=1)
        task = Joystick(SPECS[robot.name])
        changed = dataclasses.replace(robot, model=text)
        env = RobotEnv(changed, task, 3, 0, CPU, physics=physics, conditions=conditions)
        env.reset()
        made.append(env)
    return made[0], made[1]


RANDOMISED = ConditionsConfig(
    noise=0.0,
    randomise=RandomiseConfig(mass=(0.8, 1.2), kp=(0.8, 1.2), base_com=(-0.05, 0.05)),
)


BY_EPISODE = ConditionsConfig(
    noise=0.0,
    randomise=RandomiseConfig(
        friction=(0.2, 1.0), kp=(0.8, 1.2), kd=(0.5, 1.0), strength=(0.5, 1.0), every_episode=True
    ),
)


@pytest.mark.parametrize("conditions", [ConditionsConfig(noise=0.0), RANDOMISED, BY_EPISODE])
def test_both_engines_agree_in_the_air(conditions: ConditionsConfig) -> None:
    cpu, warp = converging(T1, conditions)
    cpu.engine.sim.state[:, 3] += 1.0  # type: ignore[attr-defined]
    warp.engine.qpos[:, 2] += 1.0
    action = actions(cpu, 1)[0]
    one, other = cpu.step(action), warp.step(action)
    torch.testing.assert_close(cpu.engine.qpos, warp.engine.qpos, rtol=0, atol=1e-4)
    torch.testing.assert_close(one.reward, other.reward, rtol=0, atol=1e-4)


@pytest.mark.parametrize("robot", [GO1, T1])
def test_both_engines_agree_on_the_ground(robot: Robot) -> None:
    cpu, warp = converging(robot, ConditionsConfig(noise=0.0))
    for action in actions(cpu, 2):
        one, other = cpu.step(action), warp.step(action)
    torch.testing.assert_close(cpu.engine.qpos, warp.engine.qpos, rtol=0, atol=1e-3)
    torch.testing.assert_close(one.reward, other.reward, rtol=0, atol=1e-3)


def test_both_engines_agree_on_heights() -> None:
    """For one control step: then the few contacts that differ (below) begin to show."""
    cpu, warp = converging(on_ground("heights", GO1), ConditionsConfig(noise=0.0))
    action = actions(cpu, 1)[0]
    one, other = cpu.step(action), warp.step(action)
    for env in (cpu, warp):
        assert (env.engine.sensor[:, env.built.sensors["foot_contact"]] > 0).any(1).all()
    torch.testing.assert_close(cpu.engine.qpos, warp.engine.qpos, rtol=0, atol=1e-3)
    torch.testing.assert_close(one.reward, other.reward, rtol=0, atol=1e-3)


@pytest.mark.parametrize(("robot", "share"), [(GO1, 0.98), (T1, 0.95), (G1, 0.75)])
def test_contacts_with_heights_are_those_of_mujoco(robot: Robot, share: float) -> None:
    """Most of them: in float32 Warp also finds some that are not there, above all between boxes and a field. Of several
    contacts of a geom it keeps four. Robots are lowered until a foot is up to 3 mm deep."""
    built = on_ground("heights", robot).build(0.002)
    model, count = built.model, 64
    rng = np.random.default_rng(1)
    qpos = np.tile(built.qpos, (count, 1))
    qpos[:, :2] = rng.uniform(-8, 8, (count, 2))
    rows = [lowered(model, row, rng.uniform(0.0002, 0.003)) for row in qpos]
    mjw, wp = importlib.import_module("mujoco_warp"), importlib.import_module("warp")
    theirs = mjw.make_data(model, nworld=count, nconmax=64, njmax=400)
    wp.to_torch(theirs.qpos).copy_(torch.tensor(np.stack([data.qpos for data in rows])))
    put = mjw.put_model(model)
    put.opt.warn_overflow = 0
    mjw.forward(put, theirs)
    found = range(int(theirs.nacon.numpy()[0]))
    world, geom, dist = (
        getattr(theirs.contact, name).numpy() for name in ("worldid", "geom", "dist")
    )
    known = [
        any(
            c.geom[1] == geom[j, 1] and abs(c.dist - dist[j]) < 1e-4 for c in rows[world[j]].contact
        )
        for j in found
    ]
    assert len(found) >= count
    assert np.mean(known) > share
    assert np.bincount(world[: len(found)]).max() <= on_ground("heights", robot).max_contacts


def lowered(model: mujoco.MjModel, qpos: NDArray[np.float64], depth: float) -> mujoco.MjData:
    """A robot whose deepest contact is this deep, in metres."""
    data, low, high = mujoco.MjData(model), -0.05, 0.05
    for _ in range(15):
        middle = (low + high) / 2
        data.qpos[:] = qpos
        data.qpos[2] += middle
        mujoco.mj_kinematics(model, data)
        mujoco.mj_collision(model, data)
        deep = min((c.dist for c in data.contact), default=1.0) < -depth
        low, high = (middle, high) if deep else (low, middle)
    return data


@pytest.mark.parametrize(
    ("robot", "ground", "apart"),
    # On heights feet tilt, and rest differently where one engine finds a contact more.
    [("go1", "rough", 3e-3), ("g1", "rough", 3e-3)]
    + [(robot, "heights", 0.015) for robot in ("go1", "t1", "g1")],
)
def test_both_engines_stand_on_the_same_ground(robot: str, ground: Ground, apart: float) -> None:
    """Feet of one robot land at the same height in both, and nothing runs out of room."""
    cpu, warp = both(robot=robot, ground=ground, conditions=ConditionsConfig(noise=0.0))
    cpu.reset()
    warp.reset()
    for _ in range(10):
        cpu.step(torch.zeros_like(cpu._given))
        warp.step(torch.zeros_like(warp._given))
    contact, height = cpu.built.sensors["foot_contact"], cpu.built.sensors["foot_pos"]
    standing = (cpu.engine.sensor[:, contact] > 0) & (warp.engine.sensor[:, contact] > 0)
    assert standing.any()
    one, other = (env.engine.sensor[:, height][:, 2::3] for env in (cpu, warp))
    torch.testing.assert_close(one[standing], other[standing], rtol=0, atol=apart)
    assert isinstance(warp.engine, WarpEngine)
    assert not (warp.engine._overflow & warp.engine._serious).any()


def test_captured_is_eager() -> None:
    eager, captured = (
        RobotConfig(engine="warp", episode_length=4).build(3, 0, CPU) for _ in range(2)
    )
    eager.reset()
    captured.reset()
    script = actions(eager, 8)
    for env in (eager, captured):
        env.step(script[0])
    captured.engine.capture()  # type: ignore[attr-defined]
    state = eager.state_dict()  # a capture runs nothing, but may leave its mark on a CPU
    captured.load_state_dict(state)
    for action in script[1:]:
        one, other = eager.step(action), captured.step(action)
        assert torch.equal(one.next_obs.critic, other.next_obs.critic)
        assert torch.equal(one.reward, other.reward)
        assert torch.equal(one.obs.critic, other.obs.critic)


def test_too_little_room_stops_the_run_with_one_line() -> None:
    robot = dataclasses.replace(T1, max_rows=30)
    env = RobotEnv(robot, Joystick(SPECS["t1"]), 2, 0, CPU, physics=PhysicsConfig(engine="warp"))
    env.reset()
    script = actions(env, 200)
    for action in script[:-1]:
        env.step(action)  # the mask is on its way
    with pytest.raises(UserError, match="max_rows of the robot above 30") as seen:
        env.step(script[-1])
    assert "\n" not in str(seen.value)


def test_what_warp_cannot_do_is_said_before_training() -> None:
    with open(GO1.model) as file:
        text = file.read().replace("<option ", '<option solver="PGS" ')
    robot = dataclasses.replace(GO1, model=text)
    with pytest.raises(UserError, match="no PGS solver"):
        RobotEnv(robot, Joystick(SPECS["go1"]), 2, 0, CPU, physics=PhysicsConfig(engine="warp"))


def test_states_of_one_engine_are_not_those_of_the_other() -> None:
    cpu, warp = both()
    cpu.reset()
    warp.reset()
    with pytest.raises(UserError, match="engine 'cpu'"):
        warp.load_state_dict(cpu.state_dict())
    with pytest.raises(UserError, match="engine 'warp'"):
        cpu.load_state_dict(warp.state_dict())


def test_the_robot_of_the_guide_in_both_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but `engine` changes."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples"))
    monkeypatch.delitem(sys.modules, "own_robot", raising=False)
    wheel = importlib.import_module("own_robot").WheelConfig
    cpu, warp = (wheel(engine=engine).build(4, 0, CPU) for engine in ("cpu", "warp"))
    assert torch.equal(cpu.reset().actor, warp.reset().actor)
    for action in actions(cpu, 10):
        one, other = cpu.step(action), warp.step(action)
    torch.testing.assert_close(one.next_obs.actor, other.next_obs.actor, rtol=0, atol=1e-2)
    torch.testing.assert_close(one.reward, other.reward, rtol=0, atol=1e-2)
