"""What `fleetfoot play` and `watch` are given: each wrong thing is one line and exit code 2."""

from __future__ import annotations

import dataclasses
import socket
from pathlib import Path
from typing import Any

import pytest
import torch

from fleetfoot import UserError, deploy, recipes, train
from fleetfoot.envs.gym import GymConfig
from fleetfoot.envs.robot import Joystick, Now, RobotConfig, Task
from fleetfoot.play.page import bind
from fleetfoot.play.robot import SimulatedRobot, find
from fleetfoot.play.source import SHIPPED, check_same, open_source, robot_for
from support.command import refusal
from support.examples import example
from support.trust_recipes import tiny


def test_the_shipped_policy_is_small_and_names_a_recipe_of_ours() -> None:
    assert sum(path.stat().st_size for path in SHIPPED.iterdir()) < 2 << 20
    policy = deploy.load(SHIPPED)
    assert policy.about.name in recipes.names()
    assert policy.about.raw["training"]["evaluation"]["return"] > 30
    source = open_source([])
    assert source.robot is not None
    assert list(source.policies) == [policy.about.name]


def test_a_run_is_exported_and_drawn_by_its_environment(run: Path) -> None:
    source = open_source([run])
    assert (source.robot, list(source.policies)) == (None, ["run"])
    assert source.env is not None


def test_a_robot_of_ones_own_is_driven_like_those_of_the_package(tmp_path: Path) -> None:
    pup = example("own_quadruped")
    recipe = dataclasses.replace(tiny(), env=pup.QuadrupedConfig(engine="cpu"), total_vec_steps=4)
    train(recipe, tmp_path / "run")
    source = open_source([tmp_path / "run"])
    assert source.robot is not None
    assert source.robot == pup.ROBOT
    (policy,) = source.policies.values()
    simulation = SimulatedRobot(policy.about, source.robot)
    controller = deploy.Controller(policy)
    for _ in range(20):
        simulation.write(controller.step(simulation.read(), simulation.command()))
    with pytest.raises(UserError, match="--ground is for robots of the package"):
        open_source([tmp_path / "run"], ground="rough")


def test_a_robot_whose_task_explains_nothing_is_drawn_by_its_environment(tmp_path: Path) -> None:
    """A controller would not know what its policy observes."""
    wheel = example("own_robot")
    recipe = dataclasses.replace(tiny(), env=wheel.WheelConfig(engine="cpu"), total_vec_steps=4)
    train(recipe, tmp_path / "run")
    source = open_source([tmp_path / "run"])
    assert source.robot is None
    assert source.env is not None


def test_a_robot_of_ones_own_may_have_the_name_of_another() -> None:
    pup = example("own_quadruped")
    about = deploy.load(SHIPPED).about
    named = dataclasses.replace(
        about, raw=about.raw | {"robot": {"robot": "go1", "timestep": 0.004}}
    )
    assert robot_for(named, pup.QuadrupedConfig(engine="cpu")) == pup.ROBOT


def test_an_own_task_of_a_robot_of_the_package_is_driven_as_that_robot() -> None:
    class MineConfig(RobotConfig):
        pass

    about = deploy.load(SHIPPED).about
    found = robot_for(about, MineConfig(robot="t1"), ground="rough")
    assert found == find(about, None, "rough")


def test_which_tasks_explain_what_they_observe() -> None:
    class More(Joystick):
        def observe(self, now: Now) -> dict[str, torch.Tensor]:
            return super().observe(now) | {"height": now.qpos[:, 2:3]}

    class Explained(More):
        def explain(self) -> dict[str, dict[str, Any]]:
            return super().explain()

    assert Task.explains_itself(Task.__new__(Task))
    assert [kind.__new__(kind).explains_itself() for kind in (Joystick, More, Explained)] == [
        *(True, False, True)
    ]


def test_several_policies_get_names_of_their_own() -> None:
    names = list(open_source([SHIPPED, SHIPPED / "policy.onnx"]).policies)
    assert len(set(names)) == 2


def test_policies_of_two_robots_do_not_mix() -> None:
    one = deploy.load(SHIPPED).about
    other = dataclasses.replace(one, raw=one.raw | {"control_hz": 1.0})
    check_same(one, one)
    with pytest.raises(UserError, match="not for the same robot"):
        check_same(one, other)
    newer = [joint | {"unit": "rad"} for joint in one.raw["joints"]]
    check_same(one, dataclasses.replace(one, raw=one.raw | {"joints": newer}))
    with pytest.raises(UserError, match="their joints differ"):
        check_same(one, dataclasses.replace(one, raw=one.raw | {"joints": newer[1:]}))


def test_a_strangers_recipe_imports_nothing(tmp_path: Path) -> None:
    from fleetfoot.play.source import recipe_inside

    about = deploy.load(SHIPPED).about
    recipe = dict(about.raw["training"]["recipe"])
    from fleetfoot.config import to_json

    recipe["env"] = to_json(GymConfig(id="os_of_a_stranger:Bad-v0"))
    raw = about.raw | {"training": {"recipe": recipe}}
    with pytest.raises(UserError, match="--import"):
        recipe_inside(dataclasses.replace(about, raw=raw))
    for nonsense in (None, 3, {"part": "Recipe"}):
        raw = about.raw | {"training": {"recipe": nonsense}}
        with pytest.raises(UserError):
            recipe_inside(dataclasses.replace(about, raw=raw))


def test_wrong_input_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    text = tmp_path / "policy.onnx"
    text.write_text("no graph")
    empty = tmp_path / "empty"
    empty.mkdir()
    said = {
        "does not exist": ["play", str(tmp_path / "nothing")],
        "no run and no exported policy": ["play", str(empty)],
        "not an ONNX file": ["play", str(text)],
        "no screen": ["play", "--viewer", "native"],
        "no model": ["play", "--model", "nothing.xml"],
        "invalid choice 'mud'": ["play", "--ground", "mud"],
        "--port must be": ["play", "--port", "70000"],
        "cannot listen": ["play", "--host", "203.0.113.7", "--port", "0"],
        "which run?": ["watch"],
        "no run folder": ["watch", str(tmp_path / "nothing")],
        "no recipe.json": ["watch", str(empty)],
    }
    for words, args in said.items():
        assert words in refusal(capsys, *args), args


def test_the_ground_can_be_chosen_for_robots_alone(run: Path) -> None:
    for ground in ("flat", "rough", "heights"):
        robot = open_source([SHIPPED], ground=ground).robot
        assert robot is not None
        assert (robot.roughness > 0.0, robot.heights is not None) == (
            ground == "rough",
            ground == "heights",
        )
    with pytest.raises(UserError, match=r"not for a robot of the package.*--ground has no effect"):
        open_source([run], ground="rough")


def test_an_own_robot_has_the_site_and_the_keyframe_it_was_trained_with(tmp_path: Path) -> None:
    about = deploy.load(SHIPPED).about
    told = dict(about.raw["robot"]) | {"robot": "mine"}
    own = dataclasses.replace(about, raw=about.raw | {"robot": told})
    model = tmp_path / "mine.xml"
    model.write_text("<mujoco/>")
    earlier = find(own, model)
    assert (earlier.imu, earlier.standing) == ("imu", "home")
    told |= {"imu": "chest", "standing": "crouch"}
    now = find(own, model)
    assert (now.imu, now.standing) == ("chest", "crouch")
    told["imu"] = 3
    with pytest.raises(UserError, match=r"'robot\.imu' of the wrong kind"):
        find(own, model)


def test_the_ground_of_an_own_robot_cannot_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleetfoot.envs.robot.robots.ROBOTS", {})
    with pytest.raises(
        UserError, match="--ground is for robots of the package, and flash_sac/t1 is"
    ):
        open_source([SHIPPED], ground="rough")


def test_a_run_without_a_checkpoint_is_one_line(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import shutil

    bare = tmp_path / "bare"
    shutil.copytree(run, bare)
    shutil.rmtree(bare / "checkpoints")
    assert "holds no checkpoint yet.\n" in refusal(capsys, "play", str(bare))


def test_a_misspelt_run_and_a_folder_of_seeds(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    seeds = Path("several")
    for folder in (Path("runs/flash_sac-t1"), seeds / "seed-3"):
        folder.mkdir(parents=True)
        (folder / "recipe.json").write_bytes((run / "recipe.json").read_bytes())
    for command in ("play", "evaluate"):
        for wrong in ("runs/flash_sac-tl", "flash_sac-t1"):
            assert "Did you mean runs/flash_sac-t1?" in refusal(capsys, command, wrong)
    (seeds / "seed-3" / "recipe.json").write_text("a part that only --import knows")
    for command in ("play", "watch"):
        assert f"such as {seeds / 'seed-3'}." in refusal(capsys, command, str(seeds))


def test_a_taken_port_is_one_line_and_without_one_the_next_is_taken(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
        with pytest.raises(
            UserError, match=f"port {port} cannot be used: Address already in use. "
        ):
            bind("127.0.0.1", port)
    with bind("127.0.0.1", None) as one, bind("127.0.0.1", None) as two:
        assert one.getsockname()[1] != two.getsockname()[1]
