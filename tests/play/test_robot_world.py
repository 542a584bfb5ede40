"""The simulated robot behind the four methods of `deploy`, and what hands can do to it."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import mujoco
import numpy as np
import pytest

from fleetfoot import UserError, deploy
from fleetfoot.envs.robot import robots
from fleetfoot.envs.robot.heights import AROUND, Heights
from fleetfoot.play import robot as playing
from fleetfoot.play.baselines import ZeroPolicy
from fleetfoot.play.robot import SimulatedRobot
from fleetfoot.play.shapes import fixed, lowest_plane, shapes
from fleetfoot.play.source import SHIPPED


@pytest.fixture(scope="module")
def policy() -> deploy.Policy:
    return deploy.load(SHIPPED)


@pytest.fixture
def robot(policy: deploy.Policy) -> SimulatedRobot:
    return SimulatedRobot(policy.about, playing.find(policy.about))


def order(robot: SimulatedRobot, angle: float) -> deploy.Order:
    target = np.full(len(robot.names), angle, np.float32)
    return deploy.Order(target, None, None, "policy")


def test_the_shipped_policy_walks_as_it_is_told(
    policy: deploy.Policy, robot: SimulatedRobot
) -> None:
    robot.velocity = np.array([0.6, 0.0, 0.0])
    controller = deploy.Controller(policy)
    done = deploy.drive(robot, controller, seconds=4.0, clock=robot.clock, wait=robot.advance)
    assert (done.bad_steps, done.skipped) == (0, 0)
    assert not robot.fallen()
    assert robot.data.qpos[0] > 1.2  # of 2.4 m, minus the start
    assert abs(robot.measured()[0] - 0.6) < 0.3


def test_a_push_is_in_the_robots_own_frame(robot: SimulatedRobot) -> None:
    robot.data.qpos[3:7] = [math.cos(math.pi / 4), 0, 0, math.sin(math.pi / 4)]  # it faces +y
    assert robot.heading() == pytest.approx(math.pi / 2)
    robot.push((1.0, 0.0))
    np.testing.assert_allclose(robot.data.qvel[:3], [0, 1, 0], atol=1e-12)
    np.testing.assert_allclose(robot.measured(), [1, 0, 0], atol=1e-12)


def test_friction_and_mass_are_factors_on_the_model(robot: SimulatedRobot) -> None:
    friction, mass = robot.model.geom_friction.copy(), robot.model.body_mass.copy()
    robot.world.friction, robot.world.mass = 0.5, 1.5
    robot.advance(0.02)
    np.testing.assert_allclose(robot.model.geom_friction[:, 0], 0.5 * friction[:, 0])
    np.testing.assert_allclose(robot.model.body_mass, 1.5 * mass)
    robot.world.friction = robot.world.mass = 1.0
    robot.advance(0.02)
    np.testing.assert_array_equal(robot.model.body_mass, mass)


def test_a_delayed_order_arrives_later(robot: SimulatedRobot) -> None:
    robot.write(order(robot, 0.1))
    assert robot.data.ctrl[0] == pytest.approx(0.1)
    robot.begin()
    before = robot.data.ctrl[0]
    robot.world.delay = 2
    for angle, arrived in ((0.1, before), (0.2, before), (0.3, 0.1), (0.4, 0.2)):
        robot.write(order(robot, angle))
        assert robot.data.ctrl[0] == pytest.approx(arrived)


def test_noise_is_that_of_training_times_a_factor(robot: SimulatedRobot) -> None:
    clean = np.array(robot.read()["joint_vel"])
    robot.world.noise = 1.0
    noisy = np.array(robot.read()["joint_vel"])
    assert 0.0 < np.abs(noisy - clean).max() <= 1.5


def test_pulled_it_goes_there_and_let_go_it_is_free(robot: SimulatedRobot) -> None:
    trunk = 1
    robot.pull = (trunk, np.zeros(3), robot.data.xpos[trunk] + np.array([2.0, 0.0, 0.0]))
    robot.advance(0.1)
    assert robot.measured()[0] > 0.5
    robot.pull = None
    robot.advance(robot.model.opt.timestep)
    assert not robot.data.xfrc_applied.any()


def test_let_go_in_the_middle_of_a_step(
    policy: deploy.Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    robot = SimulatedRobot(policy.about, playing.find(policy.about))
    looks = iter([(1, np.zeros(3), np.ones(3))])
    monkeypatch.setattr(
        SimulatedRobot, "pull", property(lambda _: next(looks, None)), raising=False
    )
    robot.advance(robot.model.opt.timestep)
    assert robot.data.xfrc_applied[1].any()


def test_it_knows_when_it_lies(robot: SimulatedRobot) -> None:
    assert not robot.fallen()
    robot.data.qpos[2] = 0.1
    assert robot.fallen()
    robot.begin()
    robot.data.qvel[3] = math.nan
    assert robot.fallen()


def test_damping_takes_the_stiffness_away(robot: SimulatedRobot, policy: deploy.Policy) -> None:
    controller = deploy.Controller(policy, fallback="damp")
    robot.write(controller.step({}, [0.0, 0.0, 0.0]))
    assert not robot.model.actuator_gainprm[:, 0].any()
    robot.write(deploy.Controller(policy).step(robot.read(), [0.0, 0.0, 0.0]))
    assert (robot.model.actuator_gainprm[:, 0] > 0).all()
    robot.write(controller.step({}, [0.0, 0.0, 0.0]))
    robot.begin()  # it stands, also before the first order has arrived
    assert (robot.model.actuator_gainprm[:, 0] > 0).all()


def test_a_strangers_numbers_are_one_line(policy: deploy.Policy) -> None:
    about, model = policy.about, playing.find(policy.about)
    for hz in (1e-6, 1e6):
        with pytest.raises(UserError, match="control rate"):
            SimulatedRobot(dataclasses.replace(about, control_hz=hz), model)
    obs = about.raw["obs"]
    terms = [{k: v for k, v in term.items() if k != "noise"} for term in obs["terms"]]
    bare = dataclasses.replace(about, raw=about.raw | {"obs": obs | {"terms": terms}})
    with pytest.raises(UserError, match="noise"):
        SimulatedRobot(bare, model)
    joints = [joint | {"action_scale": "x"} for joint in about.raw["joints"]]
    with pytest.raises(UserError, match="action_scale"):
        ZeroPolicy(dataclasses.replace(about, raw=about.raw | {"joints": joints}))
    backwards = {**about.raw, "commands": {"forward": [1.0, -1.0]}}
    with pytest.raises(UserError, match="the lower one first"):
        deploy.about.understand(backwards, "a file")


def test_another_robot_needs_its_model(policy: deploy.Policy, tmp_path: Path) -> None:
    raw = policy.about.raw | {"robot": policy.about.raw["robot"] | {"robot": "mine"}}
    about = dataclasses.replace(policy.about, raw=raw)
    with pytest.raises(UserError, match="--model"):
        playing.find(about)
    with pytest.raises(UserError, match="no model"):
        playing.find(about, tmp_path / "nothing.xml")
    model = Path(robots.T1.model)
    robot = SimulatedRobot(about, playing.find(about, model))
    assert list(robot.joints()) == [joint.name for joint in about.joints]


@pytest.mark.parametrize("name", robots.ROBOTS)
def test_every_part_of_a_robot_is_drawn(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLEETFOOT_MENAGERIE", raising=False)  # its meshes are finer
    model = robots.find(name).pictured()
    drawn = shapes(model)
    # From the ground to its head: nothing is missing at either end.
    assert len({shape.body for shape in drawn}) > model.nu / 2
    assert all(np.isfinite(shape.vertices).all() and len(shape.faces) for shape in drawn)
    assert sum(len(shape.vertices) for shape in drawn) < 20_000


def with_ground(about: deploy.About, ground: object) -> deploy.About:
    """As if the policy had been trained on it."""
    training = {"recipe": {"env": {"ground": ground}}}
    return dataclasses.replace(about, raw=about.raw | {"training": training})


def test_a_policy_is_played_on_the_ground_that_it_was_trained_on(policy: deploy.Policy) -> None:
    about = policy.about
    assert playing.find(about) == robots.T1
    assert playing.find(with_ground(about, "heights")).heights is not None
    assert playing.find(with_ground(about, "rough")).roughness > 0.0
    odds: tuple[object, ...] = ("stairs", 7, None, {})
    for odd in odds:
        assert playing.find(with_ground(about, odd)) == robots.T1
    assert playing.find(dataclasses.replace(about, raw=about.raw | {"training": 3})) == robots.T1
    rough = {"recipe": {"env": {"task": "T1JoystickRoughTerrain"}}}  # of MuJoCo Playground
    there = dataclasses.replace(about, raw=about.raw | {"training": rough})
    assert playing.find(there).heights is not None
    # Another one may be asked for, but not for a model that has its own.
    assert playing.find(with_ground(about, "rough"), ground="flat") == robots.T1
    with pytest.raises(UserError, match="a --model has its own ground"):
        playing.find(about, Path(robots.T1.model), "rough")


@pytest.mark.parametrize("ground", ["rough", "heights"])
def test_it_begins_above_that_ground(policy: deploy.Policy, ground: str) -> None:
    about = with_ground(policy.about, ground)
    robot = SimulatedRobot(about, playing.find(about))
    assert robot.data.ncon == 0 or robot.data.contact.dist.min() > -1e-3
    controller = deploy.Controller(ZeroPolicy(about))
    deploy.drive(robot, controller, seconds=0.3, clock=robot.clock, wait=robot.advance)
    assert robot.data.ncon > 0
    assert not robot.fallen()


def test_a_field_is_drawn_where_the_physics_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Points on both triangles of many squares: there the drawn surface is where a ray from above meets the field."""
    monkeypatch.delenv("FLEETFOOT_MENAGERIE", raising=False)
    model = dataclasses.replace(robots.GO1, heights=Heights(points=16, half=1.0)).pictured()
    (field,) = fixed(model)
    data = mujoco.MjData(model)
    mujoco.mj_kinematics(model, data)
    weights = np.random.default_rng(0).dirichlet(np.ones(3), len(field.faces))
    points = np.einsum("fv,fvk->fk", weights, field.vertices[field.faces])
    down, floor = np.array([0.0, 0.0, -1.0]), model.geom("floor").id
    for point in points:
        above = np.array([point[0], point[1], 1.0])
        met = 1.0 - mujoco.mj_rayHfield(model, data, floor, above, down, None)
        assert met == pytest.approx(point[2], abs=1e-6)
    assert lowest_plane(model) == pytest.approx(-AROUND)


def test_the_lowest_plane_is_a_horizontal_one() -> None:
    def height(*planes: str) -> float:
        geoms = "".join(f'<geom type="plane" size="1 1 1" {plane}/>' for plane in planes)
        text = f"<mujoco><worldbody>{geoms}</worldbody></mujoco>"
        return lowest_plane(mujoco.MjModel.from_xml_string(text))

    assert height() == 0.0
    assert height('pos="0 0 .5"') == 0.5
    assert height('pos="0 0 .5"', 'pos="0 0 -.2"', 'pos="0 0 -3" euler="90 0 0"') == -0.2
