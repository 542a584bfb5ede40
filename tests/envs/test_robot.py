"""Robots on CPU cores: the contract, the options of any robot, and what must hold exactly."""

from __future__ import annotations

import dataclasses
import json
import math
import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mujoco
import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks.speed.robot import bench_robot
from fleetfoot import config
from fleetfoot.envs.check import check_env
from fleetfoot.envs.counter import Draw, env_keys, keys_of
from fleetfoot.envs.render import View, backend, velocity_arrows
from fleetfoot.envs.robot import ConditionsConfig, RandomiseConfig, RobotConfig, RobotEnv
from fleetfoot.envs.robot.conditions import Conditions
from fleetfoot.envs.robot.cpu import CpuEngine
from fleetfoot.envs.robot.frames import Frames
from fleetfoot.envs.robot.joystick import Joystick
from fleetfoot.envs.robot.physics import EngineName, PhysicsConfig
from fleetfoot.envs.robot.robot import Robot
from fleetfoot.envs.robot.robots import GO1, ROBOTS
from fleetfoot.envs.robot.task import Now, State, Task
from fleetfoot.envs.robot.terms import GO1_TROT, SPECS, feet_trot
from fleetfoot.errors import Notice, UserError
from fleetfoot.evaluate import first_episodes

CPU = torch.device("cpu")
HARD = ConditionsConfig(
    history=3, action_delay=2, obs_delay=1, push_speed=(0.1, 1.0), push_seconds=(0.1, 0.2)
)
EVERYTHING = RandomiseConfig(
    friction=(0.4, 1.0),
    mass=(0.9, 1.1),
    base_mass=(-1.0, 1.0),
    base_com=(-0.05, 0.05),
    kp=(0.9, 1.1),
    kd=(0.8, 1.2),
    strength=(0.9, 1.1),
    joint_friction=(0.9, 1.1),
    armature=(1.0, 1.05),
    joint_zero=(-0.05, 0.05),
)


def build(num_envs: int = 3, seed: int = 0, **fields: object) -> RobotEnv:
    return RobotConfig(engine="cpu", threads=1, **fields).build(num_envs, seed, CPU)  # type: ignore[arg-type]


def actions(rows: int, size: int, steps: int, scale: float = 0.3) -> torch.Tensor:
    drawn = torch.rand(steps, rows, size, generator=torch.Generator().manual_seed(3))
    return scale * (2 * drawn - 1)


def test_contract() -> None:
    report = check_env(RobotConfig(engine="cpu", episode_length=9), vec_steps=24, render=False)
    assert report.truncations > 0
    assert report.saves_state
    assert report.spec.obs_shape == (48,)
    assert report.spec.critic_shape == (123,)
    assert report.spec.critic_prefix == 48


def test_contract_under_hard_conditions() -> None:
    config = RobotConfig(engine="cpu", episode_length=7, conditions=HARD, curriculum=True)
    report = check_env(config, vec_steps=20, render=False)
    assert report.spec.obs_shape == (3 * 48,)
    assert report.spec.critic_shape == (3 * 48 + 75,)


@pytest.mark.parametrize(("robot", "actor", "critic"), [("t1", 85, 180), ("g1", 103, 216)])
def test_humanoids(robot: str, actor: int, critic: int) -> None:
    env = build(robot=robot)
    obs = env.reset()
    assert obs.actor.shape == (3, actor)
    assert obs.critic.shape == (3, critic)
    for action in actions(3, env.built.num_joints, 5):
        step = env.step(action)
        assert step.next_obs.critic.isfinite().all()
        total = sum(row for name, row in step.info.items() if "reward_" in name)
        lowest = None if robot == "g1" else 0.0
        wanted = total if lowest is None else torch.clamp(torch.as_tensor(total), min=lowest)
        torch.testing.assert_close(step.reward, wanted)
    env.close()


def test_physics_is_mujoco_s_own() -> None:
    """Control steps of the engine and `mj_step` one after the other, warm starts and all: the same positions."""
    env = build(1, variant="stock", conditions=ConditionsConfig(noise=0.0))
    env.reset()
    assert isinstance(env.engine, CpuEngine)
    data = mujoco.MjData(env.built.model)
    data.qpos[:], data.qvel[:] = env.engine.sim.qpos()[0], env.engine.sim.qvel()[0]
    for action in actions(1, 12, 20):
        env.step(action)
        data.ctrl[:] = (env._offset + action[0] * env._scale).numpy()
        mujoco.mj_step(env.built.model, data, 5)
        np.testing.assert_allclose(env.engine.sim.qpos()[0], data.qpos, rtol=0, atol=1e-9)
        np.testing.assert_allclose(env.engine.sensor[0], data.sensordata, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("robot", ["go1", "t1", "g1"])
def test_zero_actions_hold_the_standing_pose(robot: str) -> None:
    env = build(4, robot=robot, variant="stock", conditions=ConditionsConfig(noise=0.0))
    env.reset()
    for _ in range(10):
        step = env.step(torch.zeros(4, env.built.num_joints))
    aim = env._offset + torch.zeros(4, env.built.num_joints)
    assert not step.terminated.any()
    assert (env.engine.control == aim).all()


@pytest.mark.parametrize("robot", ["go1", "t1", "g1"])
def test_rough_ground(robot: str) -> None:
    """Robots stand on plates of different heights, and their feet feel it."""
    env = build(16, robot=robot, ground="rough", conditions=ConditionsConfig(noise=0.0))
    env.reset()
    for _ in range(15):
        env.step(torch.zeros(16, env.built.num_joints))
    contact = env.engine.sensor[:, env.built.sensors["foot_contact"]] > 0
    height = env.engine.sensor[:, env.built.sensors["foot_pos"]][:, 2::3]
    assert contact.any(1).float().mean() > 0.5
    lowest = height.masked_fill(~contact, 1.0).amin(1)[contact.any(1)]
    assert lowest.max() - lowest.min() > 0.005
    env.close()


def test_g1_stands_on_rough_ground_as_high_as_on_the_floor() -> None:
    """On a plate it touches the ground with the corners of its soles: as low as the soles themselves."""
    lowest = {}
    for ground in ("flat", "rough"):
        env = build(8, robot="g1", ground=ground, conditions=ConditionsConfig(noise=0.0))
        obs = env.reset()
        for _ in range(12):
            step = env.step(torch.zeros(8, env.built.num_joints))
        assert step.next_obs.critic.shape == obs.critic.shape
        sensor = {name: env.engine.sensor[:, part] for name, part in env.built.sensors.items()}
        contact = sensor["foot_contact"] > 0
        lowest[ground] = sensor["foot_pos"][:, 2::3][contact].min()
        assert sensor["foot_force"].abs().max() > 50.0
        env.close()
    # The thinnest plate is 5 mm, and the thickest 5 cm.
    assert 0.003 < lowest["rough"] - lowest["flat"] < 0.05


def test_what_rough_ground_cannot_be_laid_for() -> None:
    ball = '<worldbody><geom name="floor" type="plane" size="1 1 1" contype="0" conaffinity="0"/><body pos="0 0 1">'
    ball += '<joint name="j"/><geom name="b" size=".1"/></body></worldbody><actuator><motor joint="j"/></actuator>'
    pair = '<contact><pair geom1="b" geom2="floor"/></contact>'
    for text, problem in ((ball, "a floor that collides"), (ball + pair, "'b' is not one")):
        robot = Robot(name="ball", model=f"<mujoco>{text}</mujoco>", roughness=0.05)
        with pytest.raises(UserError, match=problem):
            robot.build(0.004)


def test_randomised_robots_depend_on_their_own_seed_alone() -> None:
    conditions = ConditionsConfig(randomise=EVERYTHING)
    few, many = build(2, conditions=conditions), build(4, conditions=conditions)
    few.reset()
    many.reset()
    for action in actions(4, 12, 4):
        one, other = few.step(action[:2]), many.step(action)
        assert torch.equal(one.next_obs.critic, other.next_obs.critic[:2])
    plain = build(2)
    plain.reset()
    assert not torch.equal(plain.step(action[:2]).next_obs.critic, one.next_obs.critic)
    saved = few.state_dict()
    went_on = few.step(action[:2])
    again = build(2, conditions=conditions)
    again.load_state_dict(saved)
    assert torch.equal(again.step(action[:2]).next_obs.critic, went_on.next_obs.critic)
    with pytest.raises(UserError, match="seed 0"):
        build(2, 1, conditions=conditions).load_state_dict(saved)


def test_robots_that_differ_in_every_episode() -> None:
    drawn = RandomiseConfig(
        friction=(0.4, 1.0), kp=(0.9, 1.1), kd=(0.5, 2.0), strength=(0.5, 0.9), every_episode=True
    )
    conditions = ConditionsConfig(randomise=drawn)
    env = build(2, episode_length=2, conditions=conditions)
    env.reset()
    zero = torch.zeros(2, 12)
    model = env.engine.sim.models[0]  # type: ignore[attr-defined]
    seen = []
    for _ in range(3):
        gain, damping = model.actuator_gainprm[:, 0], model.dof_damping
        assert (gain == -model.actuator_biasprm[:, 1]).all()
        assert (damping[:6] == 0.0).all()
        assert 0.25 <= damping[6:].min() < damping[6:].max() <= 1.0
        assert 0.4 <= model.geom_friction[0, 0] <= 1.0
        knee = model.actuator_forcerange[2]
        assert -knee[0] == knee[1] <= 0.9 * 35.55 + 1e-5
        seen.append(gain.copy())
        env.step(zero)
        env.step(zero)
    assert len({tuple(gains) for gains in seen}) == 3
    saved = env.state_dict()
    went_on = env.step(zero)
    again = build(2, episode_length=2, conditions=conditions)
    again.load_state_dict(saved)
    assert torch.equal(again.step(zero).next_obs.critic, went_on.next_obs.critic)


@pytest.mark.parametrize("integrator", ["Euler", "implicitfast", "RK4"])
def test_what_is_drawn_for_an_episode_is_what_is_stepped(integrator: str) -> None:
    """With RK4 every robot has copies of its model for the stages of a timestep."""
    drawn = RandomiseConfig(kp=(0.25, 0.25), every_episode=True)
    found = []
    for conditions in (ConditionsConfig(), ConditionsConfig(randomise=drawn)):
        env = arm('<position joint="j" kp="40"/>', integrator=integrator, conditions=conditions)
        env.step(torch.ones(1, 1))
        found.append(env.engine.sensor[0, env.built.sensors["torque"]])
    np.testing.assert_allclose(found[1], 0.25 * found[0], rtol=0.2)


def test_one_range_does_not_change_what_another_draws() -> None:
    sets = [
        build(1, conditions=ConditionsConfig(randomise=randomise))
        for randomise in (EVERYTHING, RandomiseConfig(kp=EVERYTHING.kp))
    ]
    gains = [env.engine.sim.models[0].actuator_gainprm[:, 0] for env in sets]  # type: ignore[attr-defined]
    assert (gains[0] == gains[1]).all()
    assert (gains[0] != 35.0).all()


def test_power_is_the_sum_over_joints_of_torque_times_velocity() -> None:
    env = build(2)
    env.reset()
    for action in actions(2, 12, 5):
        step = env.step(action)
        torque = env.engine.sensor[:, env.built.sensors["torque"]]
        wanted = (torque * env.engine.qvel[:, env.built.v]).abs().sum(1)
        torch.testing.assert_close(step.info["env/power"], wanted)
    assert float(wanted.min()) > 1.0
    env.close()


class Standing(Task):
    """Paid for nothing in particular."""

    def reward(self, now: Now, terminated: Tensor) -> dict[str, Tensor]:
        return {"one": torch.ones(len(now.qpos))}


ARM = """<mujoco><compiler angle="radian"/><option integrator="{integrator}"/><worldbody>
    <body><joint name="j" axis="0 1 0" damping="0.1" {joint}/>
    <geom type="capsule" fromto="0 0 0 0.5 0 0" size="0.02"/></body>
    </worldbody><actuator>{actuator}</actuator><keyframe><key name="home" qpos="{home}"/></keyframe></mujoco>"""


def arm(
    actuator: str,
    joint: str = "",
    home: float = 0.0,
    integrator: str = "Euler",
    task: Task | None = None,
    conditions: ConditionsConfig | None = None,
    scale: float = 1.0,
) -> RobotEnv:
    """One arm on a hinge, after its reset."""
    text = ARM.format(actuator=actuator, joint=joint, home=home, integrator=integrator)
    robot = Robot(name="arm", model=text, action_scale=scale)
    env = RobotEnv(robot, task or Standing(), 1, 0, conditions=conditions)
    env.reset()
    return env


GEARED = {
    'position joint="j" kp="20" kv="0.5" ctrlrange="-1 2" forcerange="-4 9"': "rad",
    'position joint="j" kp="20" kv="0.5" timeconst="0.1"': "rad",
    'motor joint="j" ctrlrange="-1 2" forcerange="-0.5 1.5"': "N m",
    'velocity joint="j" kv="3" ctrlrange="-1 2"': "rad/s",
    'intvelocity joint="j" kp="20" actrange="-1 2"': "rad/s",
    'general joint="j" biastype="affine" biasprm="0.3 -0.2 -0.1"': "N m",
    'motor joint="j" damping="0.2" armature="0.01"': "N m",
}


@pytest.mark.parametrize("gear", [3, -1, 50])
@pytest.mark.parametrize(("actuator", "unit"), GEARED.items())
def test_an_actuator_with_a_gear_is_told_what_its_joint_does(
    actuator: str, unit: str, gear: float
) -> None:
    """The same physics as the model as it was written, told in the units of the actuator."""
    geared = f'<{actuator} gear="{gear}"/>'
    env = arm(geared, integrator="implicitfast")
    assert env.describe()["joints"][0]["unit"] == unit
    text = ARM.format(actuator=geared, joint="", home=0.0, integrator="implicitfast")
    ours, theirs = env.built.model, mujoco.MjModel.from_xml_string(text)
    theirs.opt.timestep = ours.opt.timestep = 2e-4  # a gear of 50 makes it 2500 times as stiff
    one, other = mujoco.MjData(ours), mujoco.MjData(theirs)
    for told in np.random.default_rng(0).uniform(-3, 3, 40):
        one.ctrl[:], other.ctrl[:] = told, told / gear if unit == "N m" else told * gear
        mujoco.mj_step(ours, one, 100)
        mujoco.mj_step(theirs, other, 100)
        np.testing.assert_allclose(one.qpos, other.qpos, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(one.qfrc_actuator, one.actuator_force, rtol=1e-9)
    assert abs(other.qpos[0]) > 1e-3


@pytest.mark.parametrize(
    "actuator",
    [
        'general joint="j" gaintype="affine" gainprm="1 1"',
        'dcmotor joint="j" motorconst="0.05" resistance="1.5"',
        'damper joint="j" kv="2" ctrlrange="0 1"',
    ],
)
def test_a_gear_of_an_actuator_that_is_not_linear_stays(actuator: str) -> None:
    geared = f'<{actuator} gear="3"/>'
    env = arm(geared)
    assert env.describe()["joints"][0]["unit"] is None
    assert env.task.gear.tolist() == [3.0]  # so that the power is that of the joint
    theirs = mujoco.MjModel.from_xml_string(
        ARM.format(actuator=geared, joint="", home=0.0, integrator="Euler")
    )
    for field in ("gear", "gainprm", "biasprm", "ctrlrange", "forcerange"):
        np.testing.assert_array_equal(
            getattr(env.built.model, f"actuator_{field}"), getattr(theirs, f"actuator_{field}")
        )


@pytest.mark.parametrize(
    ("actuator", "torque", "kd"),
    [
        ('general gaintype="affine" gainprm="1 1" gear="-3" forcerange="-1 2"', 6.0, 0.1),
        ('motor forcerange="-5 0"', 5.0, 0.1),
        ('position kp="10" kv="1" damping="2"', None, 3.1),
        ('muscle force="100" lengthrange="-1 1" gear="3"', None, 0.1),
        ('general biastype="none" biasprm="0 -60 -3"', None, 0.1),
        ('position kp="60" kv="3" gear="2"', None, 12.1),
    ],
)
def test_what_an_actuator_does_to_its_joint_is_told(
    actuator: str, torque: float | None, kd: float
) -> None:
    (joint,) = arm(f'<{actuator} joint="j"/>').describe()["joints"]
    assert (joint["max_torque"], joint["kd"]) == (torque, pytest.approx(kd))


def test_numbers_of_a_muscle_are_no_damping() -> None:
    muscle = '<muscle joint="j" force="100" lengthrange="-1 1"/>'
    tripled = ConditionsConfig(randomise=RandomiseConfig(kd=(3.0, 3.0)))
    env = arm(muscle, conditions=tripled)
    assert isinstance(env.engine, CpuEngine)
    model, before = env.engine.sim.models[0], env.built.model
    assert model.dof_damping == pytest.approx(3 * before.dof_damping)
    np.testing.assert_array_equal(model.actuator_biasprm, before.actuator_biasprm)


def test_actuators_that_no_restart_could_set_and_that_move_nothing_are_refused() -> None:
    with pytest.raises(UserError, match="actuator 'm' has a gear of 0, and cannot move its joint"):
        arm('<motor name="m" joint="j" gear="0"/>')
    with pytest.raises(UserError, match="actuator 'm' has a delay; leave it out, and use cond"):
        arm('<position name="m" joint="j" kp="9" delay="0.02" nsample="8"/>')


def test_a_bias_without_an_effect_makes_no_servo() -> None:
    env = arm('<general joint="j" biastype="none" gainprm="60" biasprm="0 -60 0"/>', home=1.2)
    assert env.describe()["joints"][0]["unit"] is None
    assert env.built.offset.tolist() == [0.0]


def test_a_base_on_two_slides_is_pushed() -> None:
    text = """<mujoco><worldbody><body><joint name="x" type="slide" axis="1 0 0"/><geom size="0.1"/>
        <joint name="y" type="slide" axis="0 1 0"/><body><joint name="j"/><geom size="0.1"/></body></body>
        </worldbody><actuator><motor joint="j"/></actuator></mujoco>"""
    pushed = ConditionsConfig(push_speed=(1.0, 1.0))
    assert RobotEnv(
        Robot(name="cart", model=text), Standing(), 1, 0, conditions=pushed
    ).built.pushable
    driven = text.replace('<motor joint="j"/>', '<motor joint="j"/><motor joint="x"/>')
    with pytest.raises(UserError, match="cart has no free base to push"):
        RobotEnv(Robot(name="cart", model=driven), Standing(), 1, 0, conditions=pushed)


def test_targets_of_the_robot_and_of_training_end_where_the_joint_does() -> None:
    """A servo may not be told a position beyond its joint, whatever its model says."""
    free, limited = '<position joint="j" kp="9"/>', 'range="-0.3 0.3" limited="true"'
    env = arm(free, limited, home=0.1)
    (joint,) = env.describe()["joints"]
    assert (joint["target_low"], joint["target_high"]) == (-0.3, 0.3)
    for action, told in ((1.0, 0.3), (-1.0, -0.3), (0.1, 0.2)):
        env.step(torch.full((1, 1), action))
        assert env.engine.control.item() == pytest.approx(told)
    assert arm(free, home=0.1)._limits is None
    motor = arm('<motor joint="j"/>', limited)
    assert motor._limits is None
    assert [build(1, robot=name)._limits for name in ROBOTS] == [None] * len(ROBOTS)


def test_what_has_no_effect_on_a_robot_is_refused() -> None:
    servo, motor = '<position joint="j" kp="9"/>', '<motor joint="j"/>'
    for actuator, problem, conditions in (
        (motor, "arm has no free base to push; leave out push_speed", {"push_speed": (1.0, 1.0)}),
        (motor, r"randomise\.kp .* arm has none", {"randomise": RandomiseConfig(kp=(0.5, 1.0))}),
        (servo, "joint 'j' of arm is not lim", {"randomise": RandomiseConfig(strength=(0.5, 1.0))}),
        (servo, "a factor on the fric", {"randomise": RandomiseConfig(joint_friction=(0.5, 1.0))}),
        (servo, "a factor on the armature", {"randomise": RandomiseConfig(armature=(0.5, 1.0))}),
    ):
        with pytest.raises(UserError, match=problem):
            arm(actuator, conditions=ConditionsConfig(**conditions))
    undamped = ARM.replace(' damping="0.1"', "").format(
        actuator='<muscle joint="j" force="100" lengthrange="-1 1"/>',
        joint="",
        home=0,
        integrator="Euler",
    )
    kd = ConditionsConfig(randomise=RandomiseConfig(kd=(0.5, 1.0)))
    with pytest.raises(UserError, match="a factor on the damping of joints, which is 0 in all"):
        RobotEnv(Robot(name="arm", model=undamped), Standing(), 1, 0, conditions=kd)


@pytest.mark.parametrize("every_episode", [False, True])
def test_gains_of_servos_alone_are_drawn(every_episode: bool) -> None:
    text = """<mujoco><worldbody><body><joint name="a"/><geom size="0.1"/><body><joint name="b"/><geom size="0.1"/>
        <body><joint name="c"/><geom size="0.1"/></body></body></body></worldbody><actuator>
        <position joint="a" kp="9" kv="1"/><motor joint="b"/><velocity joint="c" kv="2"/></actuator></mujoco>"""
    drawn = RandomiseConfig(kp=(0.5, 0.5), kd=(3.0, 3.0), every_episode=every_episode)
    conditions = ConditionsConfig(randomise=drawn)
    env = RobotEnv(Robot(name="arm", model=text), Standing(), 1, 0, conditions=conditions)
    env.reset()
    assert isinstance(env.engine, CpuEngine)
    model = env.engine.sim.models[0]
    assert model.actuator_gainprm[:, 0].tolist() == [4.5, 1.0, 2.0]
    assert model.actuator_biasprm[:, 1].tolist() == [-4.5, 0.0, 0.0]
    assert model.actuator_biasprm[:, 2].tolist() == [-3.0, 0.0, -2.0]


class Short(Standing):
    episode_length = 3


@pytest.mark.parametrize("gear", [1, -3])
@pytest.mark.parametrize("kind", ["position", "intvelocity"])
def test_a_servo_with_an_activation_begins_where_its_joint_is(kind: str, gear: float) -> None:
    more = 'timeconst="0.1"' if kind == "position" else 'actrange="-9 9"'
    env = arm(f'<{kind} joint="j" kp="60" {more} gear="{gear}"/>', home=1.2, task=Short())
    for _ in range(7):  # two restarts
        step = env.step(torch.zeros(1, 1))
        assert step.next_obs.actor[0, 0].abs() < 0.2
    torch.testing.assert_close(env._starts[2], torch.zeros_like(env._starts[2]), atol=1e-5, rtol=0)


def test_sensors_and_what_they_look_at_keep_their_names() -> None:
    text = """<mujoco><worldbody><site name="top" pos="0 0 2"/><body pos="0 0 1"><joint name="j" axis="0 1 0"/>
        <inertial pos="0 0 0" mass="1" diaginertia="1 1 1"/><site name="s" pos="0 0 -0.3"/>
        <geom name="seen" size="0.1" contype="0" conaffinity="0"/>
        <geom name="idle" size="0.1" contype="0" conaffinity="0"/>
        <geom name="round" type="cylinder" size="0.05 0.1" contype="0" conaffinity="0"/></body></worldbody>
        <tendon><spatial><site site="top"/><geom geom="round"/><site site="s"/></spatial></tendon>
        <actuator><motor joint="j"/></actuator><sensor><gyro name="imu.gyro" site="s"/>
        <framepos name="pos" objtype="geom" objname="seen"/><accelerometer name="imu.acc" site="s"/>
        <gyro name="two.0" site="s"/><gyro name="two.1" site="s"/></sensor></mujoco>"""
    built = Robot(name="arm", model=text).build(0.004)
    sizes = {name: part.stop - part.start for name, part in built.sensors.items()}
    assert sizes == {"imu.gyro": 3, "pos": 3, "imu.acc": 3, "two": 6, "torque": 1}
    names = [built.model.geom(i).name for i in range(built.model.ngeom)]
    assert names == ["seen", "round"]
    assert built.model.nwrap == 3


def test_names_that_are_taken_are_refused() -> None:
    own = GO1.model
    with open(own) as file:
        text = file.read()
    double = text.replace("</mujoco>", '<sensor><clock name="torque"/></sensor></mujoco>')
    with pytest.raises(UserError, match="has a sensor 'torque'"):
        dataclasses.replace(GO1, model=double).build(0.004)

    class Proud(Standing):
        def info(self, now: Now) -> dict[str, Tensor]:
            return {"power": torch.ones(len(now.qpos))}

    with pytest.raises(UserError, match="info\\(\\) of task names 'power'"):
        RobotEnv(GO1, Proud(), 1, 0)


def test_a_state_of_another_version_is_refused_in_one_line() -> None:
    env = build(2)
    env.reset()
    state = env.state_dict()
    state["outputs"] = state.pop("obs")
    with pytest.raises(UserError, match="another version of fleetfoot: obs is missing"):
        env.load_state_dict(state)
    env.close()


def test_evaluations_tell_errors_and_power() -> None:
    env = build(2, variant="stock", episode_length=5)
    found = first_episodes(lambda obs: torch.zeros(2, 12), env, env.reset(), 8).metrics()  # type: ignore[arg-type]
    assert {"eval/error_velocity", "eval/error_yaw", "eval/reward_pose", "eval/power"} <= set(found)
    env.close()


def test_an_exploded_robot_ends_its_episode_and_is_counted() -> None:
    env, calm = build(3), build(3)
    env.reset()
    calm.reset()
    zero = torch.zeros(3, 12)
    env.engine.sim.state[1, 25] = 1e6  # type: ignore[attr-defined]
    step, wanted = env.step(zero), calm.step(zero)
    assert step.terminated.tolist() == [False, True, False]
    assert step.info["env/exploded"].tolist() == [0.0, 1.0, 0.0]
    assert (
        step.info["env/power"][1] == step.info["env/reward_energy"][1] == 0.0
    )  # no mean of such numbers
    assert step.info["env/power"][0] > 0.0
    assert step.reward[1] == 0.0
    assert step.next_obs.critic.isfinite().all()
    assert step.obs.critic.isfinite().all()
    others = torch.tensor([0, 2])
    assert torch.equal(step.next_obs.critic[others], wanted.next_obs.critic[others])
    assert env.step(zero).terminated.tolist() == [False, False, False]


def test_a_restarted_row_is_a_fresh_episode() -> None:
    """Episode e of robot i does not depend on how the one before it ended."""
    short, shorter = build(2, episode_length=4), build(2, episode_length=2)
    short.reset()
    shorter.reset()
    zero = torch.zeros(2, 12)
    begun = [short.step(zero) for _ in range(4)][-1].obs
    assert torch.equal(begun.critic, [shorter.step(zero) for _ in range(2)][-1].obs.critic)


def test_pushes_change_the_velocity() -> None:
    conditions = ConditionsConfig(noise=0.0, push_speed=(1.0, 1.0), push_seconds=(0.04, 0.04))
    env, calm = build(2, conditions=conditions), build(2, conditions=ConditionsConfig(noise=0.0))
    env.reset()
    calm.reset()
    zero = torch.zeros(2, 12)
    env.step(zero)
    calm.step(zero)
    before = env.engine.qvel[:, :2].clone()
    assert env._state["push"].norm(dim=1).tolist() == pytest.approx([1.0, 1.0])
    env.step(zero)
    calm.step(zero)
    assert ((env.engine.qvel - calm.engine.qvel)[:, :2].norm(dim=1) > 0.3).all()
    assert not torch.equal(before, env.engine.qvel[:, :2])


def test_delayed_actions() -> None:
    conditions = Conditions(ConditionsConfig(action_delay=2), actions=1, dt=0.02)
    state = {"action_queue": torch.zeros(3, 3), "action_delay": torch.tensor([[0.0], [1.0], [2.0]])}
    executed = []
    for t in (1.0, 2.0, 3.0):
        action, changed = conditions.act(torch.full((3, 1), t), state)
        state |= changed
        executed.append(action[:, 0].tolist())
    assert executed == [[1.0, 0.0, 0.0], [2.0, 1.0, 0.0], [3.0, 2.0, 1.0]]


def test_history_and_delay_of_observations() -> None:
    frames = Frames(2, torch.tensor([True, False]), history=2, delay=1)
    buffer = frames.first(torch.tensor([[0.0, 10.0]]))
    for t in (1.0, 2.0, 3.0):
        buffer = frames.push(buffer, torch.tensor([[t, 10.0 + t]]))
    assert frames.seen(buffer, None).tolist() == [[2.0, 12.0, 3.0, 13.0]]
    late = frames.seen(buffer, torch.ones(1, 1))
    assert late.tolist() == [[1.0, 12.0, 2.0, 13.0]]  # the second is no sense, and is not late


def test_noise_is_of_the_size_that_was_asked_for() -> None:
    noisy, exact = (
        build(64, conditions=ConditionsConfig(noise=level)).reset().actor for level in (1.0, 0.0)
    )
    gap = (noisy - exact).abs()
    bounds = {"linvel": 0.1, "gyro": 0.2, "gravity": 0.05, "joint_pos": 0.03, "joint_vel": 1.5}
    begin = 0
    for name, size in build(1).terms.items():
        widest = float(gap[:, begin : begin + size].max())
        limit = bounds.get(name, 0.0)
        assert 0.8 * limit <= widest <= limit * 1.0001
        begin += size


@pytest.mark.parametrize("robot", ["go1", "g1"])
def test_what_is_privileged_is_seen_by_the_critic_alone(robot: Any) -> None:
    hidden = ConditionsConfig(noise=0.0, privileged=("linvel", "last_action"))
    env, whole = (
        build(3, robot=robot, conditions=conditions)
        for conditions in (hidden, ConditionsConfig(noise=0.0))
    )
    assert [*env.terms] == [name for name in whole.terms if name not in hidden.privileged]
    action = torch.full((3, env.built.num_joints), 0.3)
    for obs, all_of_it in (
        (env.reset(), whole.reset()),
        (env.step(action).obs, whole.step(action).obs),
    ):
        named = dict(
            zip(whole.terms, torch.split(all_of_it.actor, [*whole.terms.values()], 1), strict=True)
        )
        seen = torch.cat([named[name] for name in env.terms], 1)
        assert torch.equal(obs.actor, seen)
        beside = obs.critic[:, seen.shape[1] :]
        of_critic = all_of_it.critic[:, all_of_it.actor.shape[1] :]
        assert torch.equal(beside[:, : of_critic.shape[1]], of_critic)
        added = beside[:, of_critic.shape[1] :]  # linvel without noise was among it already
        assert torch.equal(added, named["last_action"])


def test_a_task_without_privileged_observations_gets_some() -> None:
    conditions = ConditionsConfig(privileged=("joint_vel",))
    env = RobotEnv(GO1, Standing(), 2, 0, conditions=conditions)
    joints = env.built.num_joints
    assert (env.spec.obs_shape, env.spec.critic_shape) == ((joints,), (2 * joints,))


def test_what_is_privileged_stays_so_in_evaluations_and_is_no_input_of_a_controller() -> None:
    cfg = RobotConfig(robot="go1", conditions=ConditionsConfig(privileged=("linvel",)))
    env = cfg.for_evaluation().build(1, 0, CPU)
    told = env.spec.description["observation"]
    assert "linvel" not in [term["name"] for term in told]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("linvell",), "does not observe 'linvell'. Did you mean linvel"),
        (
            ("linvel", "gyro", "gravity", "joint_pos", "joint_vel", "last_action", "command"),
            "at least one",
        ),
    ],
)
def test_privileged_observations_that_cannot_be(names: tuple[str, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        build(1, conditions=ConditionsConfig(privileged=names))


def test_noise_of_what_the_policy_does_not_see_is_refused() -> None:
    conditions = ConditionsConfig(privileged=("linvel",), noise_of=("linvel=0.2",))
    with pytest.raises(UserError, match="does not observe 'linvel', for which there is noise"):
        build(1, conditions=conditions)


def test_curriculum_grows_with_success() -> None:
    task = Joystick(SPECS["go1"], curriculum=True)
    task.bind(GO1.build(0.004), 0.02, CPU)
    level = torch.full((3, 1), 0.5)
    tracked = torch.tensor([[0.0], [500.0], [900.0]])
    state = task.begin(Draw(torch.arange(3)), {"level": level, "tracked": tracked})
    assert state["level"][:, 0].tolist() == pytest.approx([0.4, 0.5, 0.6])
    assert (state["command"].abs() <= task.largest * state["level"]).all()


def test_restarts_inside_a_graph_are_those_outside() -> None:
    """On a GPU every row is drawn a new episode in every step; a CPU computes it only where one ended."""
    one, other = build(3, episode_length=3), build(3, episode_length=3)
    other._on_gpu = True
    assert torch.equal(one.reset().critic, other.reset().critic)
    for action in actions(3, 12, 8):
        left, right = one.step(action), other.step(action)
        assert torch.equal(left.obs.critic, right.obs.critic)
        assert torch.equal(left.next_obs.critic, right.next_obs.critic)
        assert torch.equal(one._packed, other._packed)


def test_draws_are_functions_of_their_counters() -> None:
    keys = keys_of(env_keys(7, 5, CPU), torch.zeros(5, dtype=torch.int64), 3)
    one, block = Draw(keys), Draw(keys, block=9)
    for size in (1, 3, 2, 3):
        assert torch.equal(one.uniform(size), block.uniform(size))
    assert torch.equal(one.uniform(1), block.uniform(1))  # beyond the block
    assert torch.equal(Draw(keys[:2]).uniform(9), Draw(keys).uniform(9)[:2])
    for draw, key in zip(
        Draw.several(torch.stack([keys, keys + 1]), 5), (keys, keys + 1), strict=True
    ):
        assert torch.equal(draw.uniform(7), Draw(key).uniform(7))
    many = Draw(env_keys(1, 1000, CPU)).uniform(200)
    assert many.min() >= 0.0
    assert many.max() < 1.0
    assert abs(float(many.mean()) - 0.5) < 5e-3
    assert len(set(many.flatten().tolist())) > 190_000


def test_evaluation_is_stock() -> None:
    config = RobotConfig(
        variant="fast",
        reward=("action_rate=-1",),
        clip_reward=False,
        curriculum=True,
        episode_length=10,
        conditions=dataclasses.replace(HARD, randomise=EVERYTHING),
    )
    stock = config.for_evaluation()
    assert stock == RobotConfig(variant="stock", conditions=ConditionsConfig(history=3))


def test_a_trot_is_lifting_the_feet_across_together() -> None:
    """The term by hand, foot by foot, for feet that stand, keep to the rhythm, and are lifted at the wrong time."""
    task = Joystick(GO1_TROT)
    env = RobotEnv(GO1, task, 1, 0)
    phase = torch.tensor([[0.5 * math.pi, -0.5 * math.pi, -0.5 * math.pi, 0.5 * math.pi]])
    paid = {}
    for name, heights in {
        "standing": (0.0, 0.0, 0.0, 0.0),
        "trotting": (0.08, 0.0, 0.0, 0.08),
        "half": (0.04, 0.0, 0.0, 0.04),
        "wrong feet": (0.0, 0.08, 0.08, 0.0),
        "higher": (0.2, 0.0, 0.0, 0.2),
        "between": (0.0, 0.0, 0.0, 0.0),
    }.items():
        if name == "between":  # two steps: all feet are to stand
            phase = torch.tensor([[0.0, math.pi, math.pi, 0.0]])
        foot_pos = torch.tensor([[[0.0, 0.0, 0.023 + height] for height in heights]])
        contact = torch.tensor([[float(height == 0.0) for height in heights]])
        step = SimpleNamespace(
            task=task,
            state={"phase": phase},
            foot_pos=foot_pos,
            contact=contact > 0,
            length=torch.ones(1),
        )
        paid[name] = float(feet_trot(step))  # type: ignore[arg-type]
    wanted = {"standing": 0.5, "trotting": 1.0, "half": 0.75, "wrong feet": 0.0, "higher": 1.0}
    assert paid == pytest.approx(wanted | {"between": 1.0}, abs=1e-6)
    step.length = torch.zeros(1)
    assert float(feet_trot(step)) == 0.0  # type: ignore[arg-type]
    env.close()


def test_a_trotting_robot_sees_its_clock() -> None:
    env = build(2, gait="trot")
    assert env.spec.obs_shape == (48 + 8,)
    first = env.reset().actor[:, 48:]
    torch.testing.assert_close(
        first[0], torch.tensor([1.0, -1, -1, 1, 0, 0, 0, 0]), atol=1e-6, rtol=0
    )
    for _ in range(11):  # the observation is one step late, and 10 steps are half a turn
        step = env.step(torch.zeros(2, 12))
    torch.testing.assert_close(step.next_obs.actor[:, 48:52], -first[:, :4], atol=1e-4, rtol=0)
    assert "env/reward_feet_trot" in step.info
    (gait,) = (term["gait"] for term in env.describe()["observation"] if term["name"] == "gait")
    assert gait["frequency"] == 2.5
    assert gait["start"] == pytest.approx([0.0, math.pi, math.pi, 0.0])
    judged = RobotConfig(gait="trot", reward=("feet_trot=3",)).for_evaluation()
    assert judged == RobotConfig(gait="trot", variant="stock")  # clock and reward are the task's
    env.close()


def test_films_show_the_velocity_that_is_wanted_and_the_one_there_is() -> None:
    """Ahead is to the left of the world's x axis here."""
    half = math.sqrt(0.5)
    qpos = np.array([2.0, 1.0, 0.3, half, 0.0, 0.0, half])
    wanted, actual = velocity_arrows(qpos, np.array([0.4, 0.2, 9.0]), np.array([1.0, -0.5]), 1.0)
    np.testing.assert_allclose(wanted.begin, [2.0, 1.0, 1.3])
    np.testing.assert_allclose(wanted.end - wanted.begin, [0.25, 0.5, 0.0], atol=1e-12)
    np.testing.assert_allclose(actual.end - actual.begin, [0.2, 0.1, 0.0], atol=1e-12)
    try:
        backend()
    except UserError as error:  # a machine without OpenGL
        pytest.skip(str(error))
    for robot in (
        GO1,
        dataclasses.replace(GO1, view=View()),
    ):  # a robot of one's own may have no view
        env = RobotEnv(robot, Joystick(SPECS["go1"]), 1, 0, render_size=(160, 120))
        env.reset()
        env._state["command"][0] = torch.tensor([1.5, 0.0, 0.0])
        env.engine.qvel.zero_()
        with_arrow = env.render(0).astype(int)
        env.task.wanted_velocity = lambda state: None  # type: ignore[method-assign]
        more = with_arrow - env.render(0).astype(int)
        blue, green = (((more[..., k] - more[..., 0]) > 60).sum() for k in (2, 1))
        assert blue > max(20, 2 * green)
        env.close()


def test_descriptions_tell_what_a_real_robot_needs() -> None:
    env = build(1, variant="stock", conditions=ConditionsConfig(history=2))
    told = env.describe()
    assert told["control_hz"] == pytest.approx(50.0)
    assert [term["name"] for term in told["observation"]] == list(env.terms)
    assert sum(term["size"] for term in told["observation"]) * told["history"] == 96
    assert told["observation"][1]["unit"] == "rad/s"
    assert json.loads(json.dumps(told)) == told
    assert len(told["joints"]) == 12
    knee = told["joints"][2]
    assert knee["name"] == "FR_calf_joint"
    assert (knee["standing"], knee["kp"], knee["kd"]) == (-1.8, 35.0, 0.5)
    assert knee["max_torque"] == 35.55
    assert (told["imu"], told["standing"], knee["unit"]) == ("imu", "home", "rad")
    louder = build(1, conditions=ConditionsConfig(noise=3.0)).describe()["observation"][1]
    assert louder["noise"] == pytest.approx(3.0 * told["observation"][1]["noise"])
    assert told["commands"]["forward"] == [-1.5, 1.5]


def test_a_run_of_a_gpu_is_evaluated_on_a_cpu_by_the_cpu_engine() -> None:
    """Warp's own CPU device is many times slower, and its packages may be missing."""
    trained = RobotConfig(engine="warp", execution="captured", threads=1)
    with pytest.warns(Notice, match="'warp' needs a GPU") as notices:
        env = trained.for_evaluation().build(2, 0, CPU)
    assert len(notices) == 1
    assert isinstance(env.engine, CpuEngine)
    wanted = build(2, variant="stock")
    assert torch.equal(env.reset().critic, wanted.reset().critic)
    for action in actions(2, 12, 5):
        assert torch.equal(env.step(action).next_obs.critic, wanted.step(action).next_obs.critic)
    with pytest.raises(UserError, match="captured execution needs"), pytest.warns(Notice):
        trained.build(2, 0, CPU)  # only an evaluation leaves out capturing


@pytest.mark.parametrize(("engine", "on_gpu"), [("auto", "cuda"), ("warp", "cuda"), ("cpu", "cpu")])
def test_where_engines_compute(engine: EngineName, on_gpu: str) -> None:
    physics = PhysicsConfig(engine=engine)
    assert physics.home(torch.device("cuda")).type == on_gpu
    assert physics.home(CPU).type == "cpu"


def test_auto_says_nothing_on_a_cpu(recwarn: pytest.WarningsRecorder) -> None:
    env = RobotConfig(threads=1).build(2, 0, CPU)
    assert isinstance(env.engine, CpuEngine)
    assert not recwarn.list


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"robot": "go2"}, "no robot 'go2'. Did you mean go1"),
        ({"reward": ("lin_vel=1",)}, "no reward term 'lin_vel'"),
        ({"reward": ("energy",)}, "name=number"),
        ({"reward": ("feet_trot=1",)}, "no reward term 'feet_trot'"),
        ({"robot": "t1", "gait": "trot"}, "t1 has no trot"),
        ({"gait": "trot", "ground": "rough"}, "use --env.ground flat"),
        ({"conditions": ConditionsConfig(noise_of=("nose=1",))}, "does not observe 'nose'"),
        ({"execution": "captured"}, "needs the engine 'warp' on a GPU"),
    ],
)
def test_mistakes_are_one_line(fields: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message) as seen:
        build(**fields)  # type: ignore[arg-type]
    assert "\n" not in str(seen.value)


class Careless(Joystick):
    """Makes one mistake."""

    def __init__(self, mistake: str) -> None:
        super().__init__(SPECS["go1"])
        self.mistake = mistake

    def begin(self, draw: Draw, before: State | None) -> State:
        state = super().begin(draw, before)
        wrong = {"flat": {"x": draw.uniform(1)[:, 0]}, "taken": {"last_action": draw.uniform(12)}}
        if self.mistake == "no begin":
            return None  # type: ignore[return-value]
        return state | wrong.get(self.mistake, {})

    def start(self, draw: Draw, qpos: Tensor, qvel: Tensor) -> tuple[Tensor, Tensor]:
        wrong = {
            "no start": None,
            "one start": qpos,
            "short start": (qpos[:, :3], qvel),
            "other start": (qpos.numpy(), qvel.numpy()),
        }
        if self.mistake in wrong:
            return wrong[self.mistake]  # type: ignore[return-value]
        return super().start(draw, qpos, qvel)

    def after(self, now: Now) -> State:
        return None if self.mistake == "no after" else super().after(now)  # type: ignore[return-value]

    def explain(self) -> dict[str, dict[str, object]]:
        wrong = {"no explain": None, "flat explain": {"gyro": "rad/s"}}
        return wrong[self.mistake] if self.mistake in wrong else super().explain()  # type: ignore[return-value]

    def advance(self, now: Now, draw: Draw) -> State:
        state = super().advance(now, draw)
        wrong: dict[str, dict[str, Any]] = {
            "unknown": {"mood": now.qpos[:, :1]},
            "wide": {"command": now.qpos[:, :5]},
            "narrow": {"command": now.qpos[:, 0]},
            "zero": {"command": 0.0},
        }
        return state | wrong.get(self.mistake, {})

    def observe(self, now: Now) -> dict[str, torch.Tensor]:
        wrong = {
            "seen": {"height": now.qpos[:, 2]},
            "list": [now.qpos],
            "blind": {},
            "number": {"height": 0.5},
        }
        return wrong.get(self.mistake) if self.mistake in wrong else super().observe(now)  # type: ignore[return-value]

    def terminated(self, now: Now) -> torch.Tensor:
        fallen = super().terminated(now)
        wrong = {"column": fallen[:, None], "float": fallen.float(), "truth": False}
        return wrong.get(self.mistake, fallen)  # type: ignore[return-value]

    def info(self, now: Now) -> dict[str, torch.Tensor]:
        return {"x": now.qpos[:, 0].mean()} if self.mistake == "told" else super().info(now)

    def reward(self, now: Now, terminated: torch.Tensor) -> dict[str, torch.Tensor]:
        wrong = {"paid": {"x": now.qpos}, "unpaid": {}, "sum": now.qpos[:, 0]}
        if self.mistake in wrong:
            return wrong[self.mistake]  # type: ignore[return-value]
        return super().reward(now, terminated)


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        ("flat", r"begin\(\) of joystick must return \[robots, size\]"),
        ("taken", "'last_action', which is the environment's own"),
        ("no begin", r"begin\(\) of joystick must return a dictionary of tensors, not a NoneType"),
        ("no start", r"start\(\) of joystick must return positions and velocities, tensors of"),
        ("one start", r"start\(\) of joystick must return positions and velocities, tensors of"),
        ("other start", r"start\(\) of joystick must return positions and velocities, tensors of"),
        ("short start", r"start\(\) .* of shapes \(1024, 19\) and \(1024, 18\)"),
        ("no after", r"after\(\) of joystick must return a dictionary of tensors, not a NoneType"),
        ("no explain", r"explain\(\) of joystick must return a dictionary"),
        ("flat explain", r"explain\(\) of joystick must return a dictionary"),
        ("unknown", "changes 'mood', which its begin"),
        ("wide", r"advance\(\) .* return command in the shape .*, \(2, 3\), not \(2, 5\)"),
        ("narrow", r"advance\(\) .* return command in the shape .*, \(2, 3\), not \(2,\)"),
        ("zero", r"advance\(\) of joystick must return tensors; command is a float"),
        ("seen", r"observe\(\) of joystick must return \[robots, size\]; height has shape \(2,\)"),
        ("paid", r"reward\(\) of joystick must return terms of shape \[robots\]"),
        ("list", r"observe\(\) of joystick must return a dictionary of tensors, not a list"),
        ("blind", r"observe\(\) of joystick must return at least one"),
        ("number", "must return tensors; height is a float"),
        ("column", r"terminated\(\) of joystick .* not bool of shape \(2, 1\)"),
        ("float", r"must return bool of shape \[robots\], not float32 of shape \(2,\)"),
        ("truth", r"must return bool of shape \[robots\], not a bool"),
        ("told", r"info\(\) of joystick must return terms of shape \[robots\]; x has shape \(\)"),
        ("unpaid", r"reward\(\) of joystick must return at least one"),
        ("sum", r"reward\(\) of joystick must return a dictionary of tensors, not a Tensor"),
    ],
)
def test_mistakes_in_a_task_are_one_line(mistake: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        step_once(Careless(mistake))


def step_once(task: Joystick) -> None:
    env = RobotEnv(GO1, task, 2, 0)
    env.reset()
    env.step(torch.zeros(2, 12))


def test_conditions_refuse_what_makes_no_sense() -> None:
    with pytest.raises(UserError, match="push_speed"):
        ConditionsConfig(push_speed=(2.0, 1.0))
    with pytest.raises(UserError, match=r"randomise\.mass"):
        RandomiseConfig(mass=(-1.0, 1.0))
    with pytest.raises(UserError, match="history"):
        ConditionsConfig(history=0)


def test_models_say_what_they_lack() -> None:
    with pytest.raises(UserError, match="not a PosixPath; use str"):
        dataclasses.replace(GO1, model=Path(GO1.model)).build(0.004)  # type: ignore[arg-type]
    lost = dataclasses.replace(GO1, standing="sit")
    with pytest.raises(UserError, match="no keyframe 'sit'"):
        lost.build(0.004)
    with pytest.raises(UserError, match="no site 'nose'"):
        dataclasses.replace(GO1, imu="nose").build(0.004)


def test_models_are_small_and_credited() -> None:
    notice = (next(iter(ROBOTS.values())).model.rsplit("/", 1)[0]) + "/NOTICE.md"
    with open(notice) as file:
        text = file.read()
    for robot in ROBOTS.values():
        with open(robot.model) as file:
            model = file.read()
        assert len(model) < 25_000
        assert "mesh=" not in model
        assert robot.model.rsplit("/", 1)[1] in text


def test_the_example_of_the_guide_runs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    example = Path(__file__).parents[2] / "examples" / "own_robot.py"
    monkeypatch.setattr(config, "PARTS", dict(config.PARTS))
    config.PARTS.pop("WheelConfig", None)  # another test may have imported the example
    runpy.run_path(str(example), run_name="__main__")
    said = capsys.readouterr().out
    assert "the contract holds for wheel-roll" in said
    assert "\n0 falls" in said


def test_the_guide_shows_the_example() -> None:
    root = Path(__file__).parents[2]
    source = (root / "examples" / "own_robot.py").read_text()
    shown = source[source.index("class Roll(Task)") : source.index("def main")].rstrip()
    assert shown in (root / "docs" / "guides" / "own-robot.md").read_text()


def test_films_fall_back_on_the_package_s_own_looks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for folder in ("", str(tmp_path)):
        monkeypatch.setenv("FLEETFOOT_MENAGERIE", folder)
        model = GO1.pictured()
        assert model.nq == 19
        assert model.ngeom > GO1.build(0.004).model.ngeom


def test_bench_measures_both() -> None:
    *_, seen = bench_robot(("go1",), ("fast",), (2,), vec_steps=1, device="cpu")
    (row,) = seen["milliseconds_per_vec_step"]
    assert row["ratio"] == row["vec_step"] / row["physics"]
    assert row["env_steps_per_second"] > 0
    with pytest.raises(UserError, match="vec_steps"):
        next(iter(bench_robot(vec_steps=0, device="cpu")))
