"""The example's robot, in plain MuJoCo under the deploy loop, does what the training environment does."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import mujoco
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from fleetfoot import deploy, recipes
from fleetfoot.envs.robot import ConditionsConfig, Now, Robot, RobotConfig, RobotEnv, Task
from fleetfoot.envs.robot.cpu import CpuEngine
from fleetfoot.envs.vec_env import VecEnv
from fleetfoot.play.baselines import RandomPolicy
from support.exported import CPU, Plain, packed, stir, write

ROOT = Path(__file__).parents[2]
STEPS = 60


def example() -> ModuleType:
    name = "mujoco_robot"
    if name not in sys.modules:
        path = ROOT / "examples" / "deploy" / f"{name}.py"
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def exported(env: VecEnv, folder: Path, rows: int = 64) -> deploy.Policy:
    spec = env.spec
    policy = Plain(spec.obs_shape[0], spec.action.size)  # type: ignore[union-attr]
    stir(policy)
    recipe = recipes.get("fast_sac/go1")
    return deploy.load(write(folder, packed(recipe, spec, policy, rows).files))


@pytest.mark.parametrize(
    ("name", "gait", "history"), [("go1", "stock", 2), ("go1", "trot", 1), ("t1", "stock", 1)]
)
def test_the_loop_in_plain_mujoco_equals_the_training_environment(
    name: str, gait: Any, history: int, tmp_path: Path
) -> None:
    """Both begin in one state. The runner drives MuJoCo, the live network drives the environment: positions stay the
    same, step for step, through contacts, history, last actions and the clock of the gait."""
    module = example()
    conditions = ConditionsConfig(noise=0.0, history=history)
    config = RobotConfig(robot=name, gait=gait, variant="stock", conditions=conditions)
    env = config.build(1, 3, CPU)
    policy = exported(env, tmp_path / name)
    about = policy.about
    assert about.control_hz == pytest.approx(50.0)
    network = Plain(about.obs_shape[0], about.action_size)
    stir(network)

    obs = env.reset()
    assert isinstance(env.engine, CpuEngine)
    robot = module.MuJoCoRobot(about)
    robot.data.qpos[:], robot.data.qvel[:] = (
        env.engine.sim.state[0, 1 : 1 + robot.model.nq],
        env.engine.sim.state[0, 1 + robot.model.nq : 1 + robot.model.nq + robot.model.nv],
    )
    mujoco.mj_forward(robot.model, robot.data)
    robot.data.qacc_warmstart[:] = 0.0
    controller = deploy.Controller(policy)
    controller.check_joints(robot.joints())
    gait = next((term for term in about.terms if term.gait), None)
    if gait is not None:  # the environment draws the frequency; the runner takes the middle
        turn = 2 * np.pi * env.dt * float(gait.gait["frequency"])
        env._state["phase_step"].fill_(turn)
    worst, steps = 0.0, 0
    while steps < STEPS:
        order = controller.step(robot.read(), command_of(env, obs.actor[0]))
        assert order.mode == "policy", order.why
        robot.write(order)
        robot.wait(1.0 / about.control_hz)  # type: ignore[operator]
        with torch.no_grad():
            step = env.step(network(obs))
        if bool(step.terminated | step.truncated):
            break
        obs, steps = step.obs, steps + 1
        worst = max(worst, float(np.abs(robot.data.qpos - env.engine.qpos[0].numpy()).max()))
    assert steps >= 20
    assert worst < 1e-4


class Arm(Task):
    def reward(self, now: Now, terminated: Tensor) -> dict[str, Tensor]:
        return {"one": torch.ones(len(now.qpos))}


def test_an_own_robot_at_the_limits_of_its_joints(tmp_path: Path) -> None:
    """Its model limits joints and not controls: training and a controller give its servos the same targets."""
    text = """<mujoco><compiler angle="radian"/><worldbody><body><joint name="a" axis="0 1 0" range="-0.3 0.5"/>
        <geom type="capsule" fromto="0 0 0 0.5 0 0" size="0.02"/><body pos="0.5 0 0"><joint name="b" axis="0 1 0"/>
        <geom type="capsule" fromto="0 0 0 0.3 0 0" size="0.02"/></body></body></worldbody>
        <actuator><position joint="a" kp="30" kv="2"/><position joint="b" kp="20" kv="1"/></actuator></mujoco>"""
    robot = Robot(name="arm", model=text, action_scale=1.0)
    env = RobotEnv(robot, Arm(), 1, 0)
    env.reset()
    about = exported(env, tmp_path / "arm").about
    controller = deploy.Controller(RandomPolicy(about, 0))
    model = mujoco.MjModel.from_xml_string(text)
    model.opt.timestep = env.physics.timestep
    data = mujoco.MjData(model)
    clamped = 0
    for _ in range(STEPS):
        order = controller.step({"joint_pos": data.qpos, "joint_vel": data.qvel})
        data.ctrl[:] = order.target
        mujoco.mj_step(model, data, env.physics.substeps)
        env.step(torch.from_numpy(controller.last_action)[None])
        np.testing.assert_array_equal(env.engine.control[0], order.target)
        np.testing.assert_allclose(env.engine.qpos[0], data.qpos, rtol=0, atol=1e-4)
        clamped += int(order.target[0] in (np.float32(-0.3), np.float32(0.5)))
    assert 20 < clamped < STEPS


def command_of(env: RobotEnv, actor: Tensor) -> NDArray[np.float32]:
    """The command that an observation shows in its newest frame."""
    frame = actor[-sum(env.terms.values()) :]
    parts = torch.split(frame, list(env.terms.values()))
    command: NDArray[np.float32] = parts[list(env.terms).index("command")].numpy()
    return command


def test_the_example_drives(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module = example()
    env = RobotConfig(robot="go1", variant="stock").build(1, 0, CPU)
    folder = tmp_path / "go1"
    policy = exported(env, folder)
    robot = module.MuJoCoRobot(policy.about)
    controller = deploy.Controller(policy)
    done = deploy.drive(robot, controller, seconds=0.5, clock=robot.clock, wait=robot.wait)
    assert done == deploy.Drive(25, 0, 0, False)
    assert robot.data.time == pytest.approx(0.5)
    damped = controller.step({}, [0.0, 0.0, 0.0])
    assert damped.mode == "hold"
    arguments = ["mujoco_robot.py", str(folder), "--seconds", "0.2", "--forward", "0.3"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", arguments)
        assert module.main() == 0
        assert "10 steps, 0 bad, 0 skipped" in capsys.readouterr().out
        patch.setattr(sys, "argv", ["mujoco_robot.py", str(tmp_path)])
        assert module.main() == 2
        assert "No such file" in capsys.readouterr().err
