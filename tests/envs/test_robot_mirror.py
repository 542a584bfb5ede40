"""The mirror images of robots: the physics itself says that they are right."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import mujoco
import numpy as np
import pytest
import torch
from torch import Tensor

from fleetfoot.data import Reflection
from fleetfoot.envs.check import check_env
from fleetfoot.envs.robot import ConditionsConfig, PhysicsConfig, Robot, RobotConfig, RobotEnv
from fleetfoot.envs.robot.config import stock_of
from fleetfoot.envs.robot.cpu import CpuEngine
from fleetfoot.envs.robot.joystick import Joystick
from fleetfoot.envs.robot.mirror import Kind, _block, _feet, _joints
from fleetfoot.envs.robot.robots import GO1, ROBOTS
from fleetfoot.envs.robot.task import Task
from fleetfoot.envs.robot.terms import GO1_TROT, SPECS
from fleetfoot.errors import UserError
from fleetfoot.replay.mirror import problem_of
from support.symmetric import symmetric

CPU = torch.device("cpu")
QUIET = ConditionsConfig(noise=0.0)
# Of the state, what the task's own table does not name.
STATE: dict[str, Kind] = {"peak": "feet", "first_contact": "feet", "phase": "feet"}


def build(robot: Robot, conditions: ConditionsConfig = QUIET, num_envs: int = 2) -> RobotEnv:
    physics = PhysicsConfig(timestep=0.002, substeps=10, engine="cpu", threads=1)
    return RobotEnv(
        robot, task_of(robot.name), num_envs, 0, CPU, physics=physics, conditions=conditions
    )


def task_of(name: str) -> Joystick:
    """Go1 trots: it has what the stock task has, a clock, and the reward for keeping to it."""
    if name == "go1":
        return Joystick(GO1_TROT)
    return Joystick(SPECS[name])


def image(reflection: Reflection, rows: Tensor) -> Tensor:
    return rows[..., list(reflection.index)] * torch.tensor(reflection.sign, dtype=rows.dtype)


def mirror_robot(env: RobotEnv) -> None:
    """Robot 1 becomes the mirror image of robot 0: its physics, and the state of its task."""
    engine = env.engine
    assert isinstance(engine, CpuEngine)
    sim, joints, feet = engine.sim, _joints(env.built), _feet(env.built)
    qpos, qvel = slice(1, 1 + sim.nq), slice(1 + sim.nq, 1 + sim.nq + sim.nv)
    order, sign = list(joints.index), np.array(joints.sign)

    def turned(velocity: np.ndarray) -> np.ndarray:
        found = velocity * 1.0
        found[[1, 3, 5]] *= -1.0  # sideways; rolling and turning
        found[env.built.v] = velocity[env.built.v][order] * sign
        return found

    place = sim.state[0, qpos].copy()
    place[[1, 4, 6]] *= -1.0  # y; x and z of the quaternion
    place[env.built.q] = sim.state[0, qpos][env.built.q][order] * sign
    sim.state[1] = sim.state[0]
    sim.state[1, qpos], sim.state[1, qvel] = place, turned(sim.state[0, qvel])
    sim.warmstart[1] = turned(sim.warmstart[0])
    engine._read_state()
    state = {name: value.clone() for name, value in env._state.items()}
    state["command"][0] = torch.tensor([0.7, 0.4, -0.8])
    if "wait" in state:
        state["wait"][:] = 1e6  # a command that is drawn anew is not the mirror image of the other
    for name, value in state.items():
        kind = {**env.task.mirror, **STATE}.get(name, "same")
        value[1] = image(_block(name, kind, value.shape[1], joints, feet), value[0])
    env._packed.copy_(env._columns.pack(state))


@pytest.mark.parametrize(
    ("name", "privileged"), [("go1", ()), ("t1", ()), ("t1", ("linvel", "last_action")), ("g1", ())]
)
def test_mirrored_physics_is_the_physics_of_the_mirror_image(
    name: str, privileged: tuple[str, ...]
) -> None:
    """With mirrored actions: the mirrored observations of policy and critic, the same reward terms, the same ends."""
    env = build(symmetric(name), ConditionsConfig(noise=0.0, privileged=privileged))
    env.reset()
    for _ in range(15):  # onto the ground
        env.step(torch.zeros(2, env.built.num_joints))
    mirror_robot(env)
    symmetry = env.spec.symmetry
    assert symmetry is not None
    assert symmetry.critic is not None
    generator = torch.Generator().manual_seed(0)
    moved = 0.0
    for _ in range(12):
        action = torch.rand(env.built.num_joints, generator=generator) - 0.5
        step = env.step(torch.stack([action, image(symmetry.action, action)]))
        for seen, reflection in (
            (step.next_obs.actor, symmetry.actor),
            (step.next_obs.critic, symmetry.critic),
        ):
            torch.testing.assert_close(image(reflection, seen[0]), seen[1], rtol=1e-4, atol=1e-4)
        moved = max(moved, float((step.next_obs.actor[0] - step.next_obs.actor[1]).abs().max()))
        for term, (one, other) in step.info.items():
            if (name, term) == ("g1", "env/reward_joint_deviation_hip"):
                # Playground's G1 pays half as much for it where it is to go to its left.
                torch.testing.assert_close(2 * one, other, rtol=1e-4, atol=1e-6)
            else:
                torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
        if name != "g1":
            torch.testing.assert_close(step.reward[0], step.reward[1], rtol=1e-4, atol=1e-6)
        assert step.terminated[0] == step.terminated[1]
    assert moved > 0.5  # the two robots do different things
    env.close()


@pytest.mark.parametrize("name", ["go1", "t1", "g1"])
@pytest.mark.parametrize("history", [1, 3])
def test_twice_is_the_identity(name: str, history: int) -> None:
    env = build(ROBOTS[name], ConditionsConfig(history=history), 3)
    obs = env.reset()
    symmetry = env.spec.symmetry
    assert symmetry is not None
    assert symmetry.critic is not None
    assert problem_of(symmetry, env.spec) is None
    for reflection, rows in ((symmetry.actor, obs.actor), (symmetry.critic, obs.critic)):
        assert not torch.equal(image(reflection, rows), rows)
        assert torch.equal(image(reflection, image(reflection, rows)), rows)
    size = sum(env.terms.values())  # one frame after the other, the same for each
    frame = image(symmetry.actor, obs.actor)[:, -size:]
    assert torch.equal(
        frame, image(symmetry.critic, obs.critic)[:, (history - 1) * size :][:, :size]
    )
    env.close()


def test_joints_of_t1() -> None:
    names, reflection = (built := ROBOTS["t1"].build(0.004)).names, _joints(built)
    table = {
        name: (names[i], sign)
        for name, i, sign in zip(names, reflection.index, reflection.sign, strict=True)
    }
    assert table["Waist"] == ("Waist", -1.0)
    assert table["Head_pitch"] == ("Head_pitch", 1.0)
    assert table["Left_Hip_Roll"] == ("Right_Hip_Roll", -1.0)
    assert table["Right_Knee_Pitch"] == ("Left_Knee_Pitch", 1.0)


def test_a_slide_and_a_robot_of_your_own() -> None:
    """Signs come from the axes: here the right hinge turns the other way round, and a slide moves to the side."""
    hinge = '<body pos="0 {y} 0"><joint name="{side}_hip" axis="{axis}"/><geom size=".1"/></body>'
    left, right = (
        hinge.format(y=1, side="left", axis="1 0 0"),
        hinge.format(y=-1, side="right", axis="-1 0 0"),
    )
    slide = '<joint name="move" type="slide" axis="0 1 0"/><geom size=".1"/>'
    motors = "".join(f'<motor joint="{name}"/>' for name in ("move", "left_hip", "right_hip"))
    body = f"<worldbody><body>{slide}{left}{right}</body></worldbody>"
    model = f"<mujoco>{body}<actuator>{motors}</actuator></mujoco>"
    robot = Robot(name="own", model=model, sides={"left": "right"})
    assert _joints(robot.build(0.004)) == Reflection((0, 2, 1), (-1.0, 1.0, 1.0))


class Walk(Task):
    def reward(self, now, terminated):  # type: ignore[no-untyped-def]
        return {"one": torch.ones_like(now.qpos[:, 0])}


class Mirrored(Walk):
    mirror: Mapping[str, Kind] = {"joint_pos": "joints"}


class Short(Walk):
    mirror: Mapping[str, Kind] = {"joint_pos": (1.0,) * 5, "joint_vel": "joints"}


def own(task: Task, robot: Robot = GO1) -> RobotEnv:
    return RobotEnv(robot, task, 2, 0, CPU, physics=PhysicsConfig(engine="cpu", threads=1))


def test_without_sides_or_words_there_is_none() -> None:
    for env in (own(Walk()), own(Mirrored(), dataclasses.replace(GO1, sides={}))):
        assert env.spec.symmetry is None
        env.close()


def test_mistakes_are_named() -> None:
    with pytest.raises(UserError, match="its observation 'joint_vel'"):
        own(Mirrored())
    with pytest.raises(UserError, match="'FR_hip_joint', but no joint 'XX_hip_joint'"):
        own(Mirrored(), dataclasses.replace(GO1, sides={"FR": "XX"}))
    with pytest.raises(UserError, match=r"'FR_hip_joint' and 'FR_hip_joint' .* not mirror images"):
        own(Mirrored(), dataclasses.replace(GO1, sides={"?": "!"}))
    with pytest.raises(UserError, match="does not fit its 12 numbers"):
        own(Short())


def test_the_contract_looks_at_it() -> None:
    report = check_env(RobotConfig(engine="cpu", episode_length=9), vec_steps=12, render=False)
    assert report.spec.symmetry is not None


def test_signs_do_not_depend_on_where_the_base_looks() -> None:
    """A base that is drawn turned by 90 degrees has the same symmetry as one that is not."""
    spec = mujoco.MjSpec.from_file(GO1.model)
    spec.body("trunk").quat = [np.sqrt(0.5), 0, 0, np.sqrt(0.5)]
    turned = dataclasses.replace(GO1, model=spec.to_xml())
    assert _joints(turned.build(0.004)) == _joints(GO1.build(0.004))


@pytest.mark.parametrize(
    ("task", "actor", "critic"),
    [
        ("T1JoystickFlatTerrain", 85, 180),
        ("G1JoystickRoughTerrain", 103, 216),
        ("Go1JoystickFlatTerrain", 48, 123),
    ],
)
def test_playgrounds_tasks_have_the_symmetry_of_stock_robots(
    task: str, actor: int, critic: int
) -> None:
    """That the observations are the same numbers is a test of its own (`test_robot_parity.py`)."""
    stock = stock_of(task)
    assert stock is not None
    symmetry = stock.symmetry
    assert symmetry is not None
    assert symmetry.critic is not None
    assert (len(symmetry.actor.index), len(symmetry.critic.index)) == (actor, critic)
    assert stock_of(task.replace("Joystick", "Getup")) is None
    assert stock_of("CartpoleBalance") is None
