"""A height field as the ground: what it promises, and that robots stand on it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
import torch

from fleetfoot import api, recipes
from fleetfoot.cli.main import main
from fleetfoot.config import dumps
from fleetfoot.envs.check import check_env
from fleetfoot.envs.robot import ConditionsConfig, RandomiseConfig, RobotConfig, RobotEnv
from fleetfoot.envs.robot.config import HEIGHTS
from fleetfoot.envs.robot.cpu import CpuEngine
from fleetfoot.envs.robot.heights import AROUND, Heights
from fleetfoot.envs.robot.robot import Robot
from fleetfoot.envs.robot.robots import GO1, ROBOTS
from fleetfoot.errors import UserError
from fleetfoot.recipes import flash_sac

CPU = torch.device("cpu")
NAMES = ["go1", "t1", "g1"]


def build(robot: str, num_envs: int = 8, **fields: Any) -> RobotEnv:
    config = RobotConfig(robot=robot, ground="heights", engine="cpu", threads=1, **fields)
    return config.build(num_envs, 0, CPU)


def stand(env: RobotEnv, steps: int) -> None:
    for _ in range(steps):
        env.step(torch.zeros_like(env._given))


def test_the_field_is_uniform_noise_from_a_seed() -> None:
    values = Heights().values()
    assert values.shape == (256, 256)
    assert (values.min(), values.max()) == (0.0, 1.0)
    assert (values == Heights().values()).all()
    assert (values != Heights(seed=1).values()).any()
    # A uniform distribution from 0 to 1, whose neighbours have nothing to do with each other.
    assert values.mean() == pytest.approx(0.5, abs=0.01)
    assert values.std() == pytest.approx(1 / np.sqrt(12), abs=0.005)
    for one, other in ((values[1:], values[:-1]), (values[:, 1:], values[:, :-1])):
        assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 0.02


@pytest.mark.parametrize("robot", NAMES)
def test_the_floor_is_that_field(robot: str) -> None:
    flat = ROBOTS[robot].build(0.004).model
    model = dataclasses.replace(ROBOTS[robot], heights=HEIGHTS[robot]).build(0.004).model
    assert model.geom("floor").type == mujoco.mjtGeom.mjGEOM_HFIELD
    assert model.hfield_size.tolist() == [[10.0, 10.0, 0.05, 1.0]]
    np.testing.assert_array_equal(model.hfield_data.reshape(256, 256), Heights().values())
    # It touches what the plane touches, by masks or by pairs, and the robot is the same.
    for name in ("contype", "conaffinity", "condim", "priority"):
        assert getattr(model.geom("floor"), name) == getattr(flat.geom("floor"), name)
    friction = 1.0 if robot == "go1" else flat.geom("floor").friction[0]
    assert model.geom("floor").friction[0] == friction
    pairs = [{int(a), int(b)} for a, b in zip(model.pair_geom1, model.pair_geom2, strict=True)]
    floor, around = model.geom("floor").id, model.geom("floor_around").id
    assert sum(floor in pair for pair in pairs) == (2 if robot == "g1" else 0)
    assert sum(around in pair for pair in pairs) == (2 if robot == "g1" else 0)
    np.testing.assert_array_equal(model.body_mass, flat.body_mass)
    assert model.nq == flat.nq


@pytest.mark.parametrize("robot", NAMES)
def test_feet_stand_at_the_height_of_the_field(robot: str) -> None:
    """Where the physics finds contacts, a ray from above finds the field."""
    env = build(robot, 16, variant="stock", conditions=ConditionsConfig(noise=0.0))
    env.reset()
    stand(env, 25)
    assert isinstance(env.engine, CpuEngine)
    touching = env.engine.sensor[:, env.built.sensors["foot_contact"]] > 0
    assert touching.float().mean() > 0.7
    model, data = env.built.model, mujoco.MjData(env.built.model)
    floor = model.geom("floor").id
    off, seen = [], []
    for qpos in env.engine.sim.qpos():
        data.qpos[:] = qpos
        mujoco.mj_forward(model, data)
        for contact in data.contact:
            if floor not in contact.geom:
                assert model.geom("floor_around").id not in contact.geom  # it is out of reach
                continue
            above = np.array([contact.pos[0], contact.pos[1], 1.0])
            down = np.array([0.0, 0.0, -1.0])
            height = 1.0 - mujoco.mj_rayHfield(model, data, floor, above, down, None)
            off.append(abs(height - contact.pos[2]))
            seen.append(height)
    assert np.quantile(off, 0.9) < 0.005
    assert 0.0 <= min(seen) < max(seen) <= 0.05
    assert max(seen) - min(seen) > 0.02
    env.close()


@pytest.mark.parametrize("robot", NAMES)
def test_no_foot_begins_deeper_than_on_flat_ground(robot: str) -> None:
    deepest = {}
    for ground in ("flat", "heights"):
        env = RobotConfig(robot=robot, ground=ground, engine="cpu", threads=1).build(1, 0, CPU)
        model, data = env.built.model, mujoco.MjData(env.built.model)
        found = [0.0]
        for qpos in env._starts[0][:64].double().numpy():
            data.qpos[:] = qpos
            mujoco.mj_forward(model, data)
            found += [c.dist for c in data.contact if 0 in model.geom_bodyid[c.geom]]
        deepest[ground] = min(found)
        env.close()
    assert deepest["heights"] >= deepest["flat"] - 1e-3


def test_around_the_field_the_ground_goes_on() -> None:
    heights = {}
    for ground in ("flat", "heights"):
        config = RobotConfig(robot="g1", ground=ground, engine="cpu", threads=1)
        env = config.build(4, 0, CPU)
        env.reset()
        env.engine.sim.state[:, 1] += 14.0  # type: ignore[attr-defined]
        stand(env, 12)
        sensors = env.built.sensors
        touching = env.engine.sensor[:, sensors["foot_contact"]] > 0
        assert touching.any()
        heights[ground] = env.engine.sensor[:, sensors["foot_pos"]][:, 2::3][touching].min()
        env.close()
    assert heights["flat"] - heights["heights"] == pytest.approx(AROUND, abs=0.005)


def test_contract() -> None:
    config = RobotConfig(robot="t1", ground="heights", engine="cpu", episode_length=7)
    report = check_env(config, vec_steps=16, render=False)
    assert report.saves_state
    assert report.spec.symmetry is not None


def test_friction_is_drawn_for_the_whole_ground() -> None:
    drawn = ConditionsConfig(randomise=RandomiseConfig(friction=(0.3, 0.4)))
    env = build("g1", 2, conditions=drawn)
    model = env.engine.sim.models[1]  # type: ignore[attr-defined]
    ground = {model.geom("floor").id, model.geom("floor_around").id}
    with_ground = [
        bool({int(a), int(b)} & ground)
        for a, b in zip(model.pair_geom1, model.pair_geom2, strict=True)
    ]
    assert sum(with_ground) == 4
    assert (model.pair_friction[with_ground, :2] >= 0.3).all()
    assert (model.pair_friction[with_ground, :2] <= 0.4).all()
    env.close()


def test_what_such_a_floor_cannot_be_laid_for() -> None:
    with pytest.raises(UserError, match="roughness lays plates"):
        dataclasses.replace(GO1, heights=Heights(), roughness=0.05).build(0.004)
    with pytest.raises(UserError, match="2 points or more"):
        Heights(points=1)
    text = '<mujoco><worldbody><body><joint name="j"/><geom size=".1"/></body></worldbody></mujoco>'
    with pytest.raises(UserError, match="a plane as the floor; ball has none"):
        Robot(name="ball", model=text, heights=Heights()).build(0.004)
    with pytest.raises(UserError, match="a trot is judged by heights above flat ground"):
        build("go1", gait="trot")


@pytest.mark.parametrize("robot", NAMES)
def test_recipes(robot: str) -> None:
    recipe = recipes.get(f"flash_sac/{robot}-heights")
    assert isinstance(recipe.env, RobotConfig)
    assert recipe.total_vec_steps * recipe.num_envs == 12_210 * 4_096
    shown = recipe.env.for_evaluation()
    assert (shown.ground, shown.variant) == ("heights", "stock")
    rough = recipes.get(f"flash_sac/{robot}-rough")
    assert recipe.agent == dataclasses.replace(rough.agent, **flash_sac.WIDE)  # type: ignore[type-var]
    assert recipe.replay == rough.replay


def test_films_show_the_field(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With the package's own looks, and with those of a scene of MuJoCo Menagerie."""
    robot = dataclasses.replace(GO1, heights=Heights())
    own = robot.pictured()
    assert own.nhfield == 1
    scene = tmp_path / robot.looks
    scene.parent.mkdir()
    looks = '<worldbody><geom name="only_here" size=".1"/>'
    scene.write_text(Path(robot.model).read_text().replace("<worldbody>", looks, 1))
    monkeypatch.setenv("FLEETFOOT_MENAGERIE", str(tmp_path))
    drawn = robot.pictured()
    assert drawn.nhfield == 1
    assert drawn.geom("only_here").id >= 0
    np.testing.assert_array_equal(drawn.hfield_data, own.hfield_data)


def test_a_run_is_evaluated_in_the_environment_of_another_recipe(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a policy from here is on Playground's own ground; here both grounds are ours."""
    small = recipes.get("fast_sac/go1")
    assert isinstance(small.env, RobotConfig)
    env = dataclasses.replace(small.env, gait="stock", ground="heights", threads=1)
    run = dataclasses.replace(
        small,
        env=dataclasses.replace(env, episode_length=10),
        evaluation=dataclasses.replace(small.evaluation, episodes=2, max_vec_steps=10),
        num_envs=4,
        total_vec_steps=22,
    )
    folder = tmp_path / "run"
    api.train(run, folder)
    flat = dataclasses.replace(run, env=dataclasses.replace(run.env, ground="flat"))  # type: ignore[type-var]
    (tmp_path / "flat.json").write_text(dumps(flat))

    def returns(**more: Any) -> list[float]:
        done = api.evaluate_run(folder, episodes=2, device="cpu", **more)
        return [float(value) for value in done.returns]

    # The same seed and policy: only another environment gives other returns.
    assert returns(env=run.env) == returns() != returns(env=flat.env)

    def said(*more: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as caught:
            main(["evaluate", str(folder), "--episodes", "2", "--device", "cpu", *more])
        assert isinstance(caught.value.code, int)
        shown = capsys.readouterr()
        return caught.value.code, shown.out + shown.err

    code, line = said("--env-of", str(tmp_path / "flat.json"))
    assert code == 0
    assert f"in the environment of {tmp_path / 'flat.json'}" in line
    code, line = said("--env-of", "fast_td3/pendulum")
    assert code == 2
    assert (
        "trained for go1-joystick, and tensor/pendulum differs in observations: (3,), not (48,)"
        in line
    )
