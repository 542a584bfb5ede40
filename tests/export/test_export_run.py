"""`fleetfoot export` of whole runs: what is written, what is said, and what is refused."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fleetfoot import UserError, api, deploy, export_run, train
from fleetfoot.cli.main import run as command
from fleetfoot.envs.gym import GymConfig
from fleetfoot.envs.robot import ConditionsConfig, RobotConfig
from fleetfoot.evaluate import EvaluationConfig
from fleetfoot.export import graph
from fleetfoot.export import run as exporting
from fleetfoot.run.folder import read_spec, write_spec
from support.runs import small

SHORT: dict[str, Any] = {
    "total_vec_steps": 12,
    "evaluation": EvaluationConfig(every_vec_steps=0, episodes=2),
}


@pytest.fixture(scope="module")
def go1(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("go1") / "run"
    env = RobotConfig(
        robot="go1", engine="cpu", threads=1, conditions=ConditionsConfig(history=2, obs_delay=1)
    )
    evaluation = EvaluationConfig(every_vec_steps=0, episodes=2, max_vec_steps=5)
    train(small(env=env, num_envs=4, **SHORT | {"evaluation": evaluation}), folder)
    return folder


@pytest.fixture(scope="module")
def pendulum(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pendulum") / "run"
    train(small(**SHORT), folder)
    return folder


def test_a_robot_is_exported_with_all_it_needs(
    go1: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "deep" / "go1"
    assert command(["export", str(go1), "--out", str(out)]) == 0
    told = capsys.readouterr().out
    assert "1,000 observations, recorded in the evaluation environment" in told
    assert "ONNX Runtime: largest difference" in told
    assert "missing" not in told
    assert sorted(path.name for path in out.iterdir()) == list(exporting.FILES)

    about = json.loads((out / "policy.json").read_text())
    assert about["control_hz"] == pytest.approx(50.0)
    assert [joint["name"] for joint in about["joints"]][:3] == [
        *("FR_hip_joint", "FR_thigh_joint", "FR_calf_joint"),
    ]
    knee = about["joints"][2]
    assert (knee["standing"], knee["action_scale"], knee["kp"], knee["kd"]) == (-1.8, 0.5, 35, 0.5)
    assert (knee["low"], knee["high"], knee["max_torque"]) == (-2.818, -0.888, 35.55)
    assert about["commands"]["forward"] == [-1.5, 1.5]
    assert about["obs"]["history"] == 2
    terms = {term["name"]: term for term in about["obs"]["terms"]}
    assert (terms["gyro"]["unit"], terms["gyro"]["delay"], terms["gyro"]["noise"]) == (
        "rad/s",
        1,
        0.2,
    )
    assert (terms["last_action"]["source"], terms["last_action"]["delay"]) == ("action", 0)
    assert terms["joint_pos"]["offset"][2] == -1.8
    assert about["training"]["recipe"]["env"]["robot"] == "go1"
    assert about["training"]["vec_steps"] == 12
    logged = [json.loads(line) for line in (go1 / "metrics.jsonl").read_text().splitlines()][-1]
    assert about["training"]["evaluation"]["return"] == logged["eval/return"]
    assert about["training"]["evaluation"]["return_std"] == logged["eval/return_std"]
    assert about["check"]["observations"] == 1_000
    assert max(about["check"]["differences"].values()) <= 1e-5
    for name in ("policy.onnx", "policy.pt2"):
        assert (
            about["files"][name]["sha256"] == hashlib.sha256((out / name).read_bytes()).hexdigest()
        )
    for path in out.iterdir():  # nothing names a file of this computer
        assert str(Path(graph.__file__).parents[2]).encode() not in path.read_bytes()

    # The network sees joints relative to the standing pose; the file is given them as they are measured.
    live, spec = api.load_policy(go1)
    runner = deploy.load(out)
    obs = np.random.default_rng(0).normal(size=spec.obs_shape).astype(np.float32)
    frame = sum(term["size"] for term in terms.values())
    place = list(terms).index("joint_pos")
    begin = sum(term["size"] for term in list(terms.values())[:place])
    physical = obs.copy().reshape(2, frame)
    physical[:, begin : begin + 12] += [joint["standing"] for joint in about["joints"]]
    answer = runner(physical.reshape(-1))
    assert np.allclose(answer.action, live(obs), atol=1e-5)
    program = torch.export.load(out / "policy.pt2").module()
    again = program(torch.from_numpy(physical.reshape(1, -1)))[0][0]
    assert np.allclose(answer.action, again.numpy(), atol=1e-5)


def test_a_description_that_is_not_there_or_odd(go1: Path, tmp_path: Path) -> None:
    old = tmp_path / "run"
    shutil.copytree(go1, old)
    spec = read_spec(old)
    assert spec.description["joints"]
    write_spec(old, replace(spec, description={}))
    assert export_run(old).missing
    write_spec(old, replace(spec, description={"joints": [{"name": "leg"}]}))
    with pytest.raises(UserError, match=r"has a description that does not follow .*action_offset"):
        export_run(old, draw=True)


def test_what_an_environment_cannot_tell_is_said(
    pendulum: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(["export", str(pendulum), "--draw"]) == 0
    told = capsys.readouterr().out
    assert "drawn from the statistics of the normaliser" in told
    assert "missing  names, order, gains and limits of the joints" in told
    assert "missing  the control rate" in told
    runner = deploy.load(pendulum / "export")
    assert runner.about.joints == ()
    assert runner(np.zeros(3)).target is None
    controller = deploy.Controller(runner)
    assert controller.step({"obs": [1.0, 0.0, 0.0]}).mode == "policy"
    assert command(["export", str(pendulum), "--draw"]) == 0  # once more, in its place


def test_a_gymnasium_task_tells_its_actions(tmp_path: Path) -> None:
    recipe = small(env=GymConfig(id="Pendulum-v1"), num_envs=2, **SHORT)
    train(recipe, tmp_path / "run")
    done = export_run(tmp_path / "run")
    assert not any("scale and offset" in what for what in done.missing)
    answer = deploy.load(done.folder)(np.zeros(3))
    assert answer.target is not None
    assert np.allclose(answer.target, 2.0 * answer.action, atol=1e-6)


def test_without_the_simulator_observations_are_drawn(
    pendulum: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*args: object) -> None:
        raise UserError("the simulator is not installed")

    monkeypatch.setattr("fleetfoot.envs.tensor.TensorConfig.build", gone)
    with pytest.warns(UserWarning, match="cannot be built here .the simulator is not installed"):
        done = export_run(pendulum, tmp_path / "out")
    assert done.source == "drawn from the statistics of the normaliser"


def test_a_file_that_disagrees_is_not_written(
    pendulum: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One weight of the ONNX graph is moved by a little, as by a wrong conversion."""
    true_onnx = graph.to_onnx

    def wrong(program: Any, *args: Any) -> bytes:
        bias = next(v for name, v in program.state_dict.items() if name.endswith("head.bias"))
        with torch.no_grad():
            bias += 1e-4
            made = true_onnx(program, *args)
            bias -= 1e-4  # the live policy's own
        return made

    monkeypatch.setattr(graph, "to_onnx", wrong)
    with pytest.raises(UserError, match=r"nothing was written: ONNX Runtime.* differs .* by \d"):
        export_run(pendulum, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_mistakes_get_one_line(
    pendulum: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("precious")
    (tmp_path / "file").write_text("precious")
    (tmp_path / "empty").mkdir()
    new = tmp_path / "new"
    new.mkdir()
    (new / "recipe.json").write_text((pendulum / "recipe.json").read_text())
    for args, says in (
        ([str(tmp_path / "empty")], "no recipe.json"),
        ([str(new)], "stopped before it began to train"),
        ([str(pendulum), "--out", str(tmp_path / "mine")], "holds other files (thesis.tex)"),
        ([str(pendulum), "--out", str(tmp_path / "file")], "is a file"),
        ([str(pendulum), "--which", "worst"], "worst"),
        ([], "which run? fleetfoot export RUN"),
    ):
        assert command(["export", *args]) == 2
        line = capsys.readouterr().err
        assert says in line
        assert line.count("\n") == 1
    assert (tmp_path / "mine" / "thesis.tex").read_text() == "precious"


def test_the_best_and_the_last_are_different_policies(tmp_path: Path) -> None:
    recipe = small(total_vec_steps=60, evaluation=EvaluationConfig(every_vec_steps=10, episodes=2))
    train(replace(recipe), tmp_path / "run")
    hashes = set()
    for which in ("best", "last"):
        done = export_run(tmp_path / "run", tmp_path / which, which=which, draw=True)
        about = json.loads((done.folder / "policy.json").read_text())
        assert about["training"]["checkpoint"] == which
        pointer = json.loads((tmp_path / "run" / "checkpoints" / f"{which}.json").read_text())
        assert int(pointer["folder"].removeprefix("best-")) == about["training"]["vec_steps"]
        hashes.add((about["training"]["vec_steps"], about["weights_sha256"]))
    assert len({step for step, _ in hashes}) == len({weights for _, weights in hashes})
