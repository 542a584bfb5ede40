"""An exported robot in plain MuJoCo under the deploy loop, beside `fleetfoot evaluate` of the same run.

The runner decides from what the simulated robot of `examples/deploy` senses, and `mj_step` moves it. The training
environment is only the judge: its physics is taken out, it gives commands, rewards, ends of episodes and first states.
"""

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import torch
from torch import Tensor, nn

from fleetfoot import api, deploy
from fleetfoot.data import Obs
from fleetfoot.envs.counter import env_keys
from fleetfoot.envs.robot import RobotConfig, RobotEnv
from fleetfoot.envs.robot.cpu import CpuEngine
from fleetfoot.errors import UserError
from fleetfoot.evaluate import EvaluationConfig, Evaluator
from fleetfoot.export import export_run
from fleetfoot.play.environment import physical
from fleetfoot.run.folder import read_recipe

EXAMPLE = Path(__file__).parents[2] / "examples/deploy/mujoco_robot.py"
BAR = 0.05


def deploy_return(run: Path, episodes: int = 20, which: api.Which = "best") -> dict[str, Any]:
    """Mean return of a run's policy: `fleetfoot evaluate`, and the exported file under the deploy loop.

    `run` may be an exported folder as well: `evaluate` then steps the ONNX file, in the stock task of its robot.
    """
    if (run / "policy.onnx").is_file():
        policy = deploy.load(run)
        env = RobotConfig(robot=policy.about.raw["robot"]["robot"], engine="cpu")
        seed, name = 0, policy.about.name
        evaluator = Evaluator(env, EvaluationConfig(episodes=episodes), seed, torch.device("cpu"))
        expected = evaluator(AsModule(policy)).returns
        evaluator.close()
    else:
        recipe = read_recipe(run)
        if not isinstance(recipe.env, RobotConfig):
            raise UserError(f"{run} is no run of a robot of the package.")
        env, seed, name = recipe.env, recipe.seeds().evaluation, recipe.name
        expected = api.evaluate_run(run, episodes=episodes, which=which, device="cpu").returns
        with tempfile.TemporaryDirectory() as place:
            policy = deploy.load(export_run(run, Path(place) / "export", which=which).folder)
    keys = env_keys(seed, episodes, torch.device("cpu"))  # of the robots that `evaluate` steps
    returns = [episode(env, policy, seed, keys[k : k + 1]) for k in range(episodes)]
    mean, wanted = float(np.mean(returns)), float(expected.mean())
    return {
        "run": name,
        "episodes": episodes,
        "evaluate": wanted,
        "evaluate_std": float(expected.std()) if episodes > 1 else 0.0,
        "deploy": mean,
        "deploy_std": float(np.std(returns, ddof=1)) if episodes > 1 else 0.0,
        "difference": (mean - wanted) / abs(wanted),
        "bar": BAR,
    }


class AsModule(nn.Module):
    """An exported policy where a network is expected."""

    def __init__(self, policy: deploy.Policy) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, obs: Obs) -> Tensor:
        return torch.from_numpy(self.policy(physical(self.policy.about, obs)).action)


def episode(config: RobotConfig, policy: deploy.Policy, seed: int, key: Tensor) -> float:
    """The return of one episode, under the conditions of evaluation. `key` [1] draws its start and its commands."""
    env = config.for_evaluation().build(1, seed, torch.device("cpu"))
    robot = _example().MuJoCoRobot(policy.about, env.built.model)
    senses = Senses(robot, policy.about, int(key) % 2**32)
    controller = deploy.Controller(policy)
    env._key.copy_(key)
    env.reset()
    assert isinstance(env.engine, CpuEngine)
    judge = Judge(env.engine, robot, env.dt)
    judge.start()
    env.engine = judge
    _set_gait(env, policy.about)
    total = 0.0
    while True:
        order = controller.step(senses.read(), env._state["command"][0].numpy())
        robot.write(order)
        step = env.step(torch.from_numpy(controller.last_action)[None])
        total += float(step.reward)
        if bool(step.terminated | step.truncated):
            return total


class Judge:
    """An engine without physics: the robot moves by itself, and its state is read."""

    def __init__(self, engine: CpuEngine, robot: Any, dt: float) -> None:
        self.engine, self.robot, self.dt = engine, robot, dt
        self.qpos, self.qvel, self.sensor = engine.qpos, engine.qvel, engine.sensor

    def __getattr__(self, name: str) -> Any:
        """Everything but the physics is that of the environment's own engine."""
        return getattr(self.engine, name)

    def start(self) -> None:
        """The robot begins where the environment begins."""
        data, model = self.robot.data, self.robot.model
        state = self.engine.sim.state[0]
        data.qpos[:] = state[1 : 1 + model.nq]
        data.qvel[:] = state[1 + model.nq : 1 + model.nq + model.nv]
        mujoco.mj_forward(model, data)

    def advance(self) -> None:
        self.robot.wait(self.dt)
        data = self.robot.data
        self.qpos.copy_(torch.from_numpy(data.qpos)[None])
        self.qvel.copy_(torch.from_numpy(data.qvel)[None])
        self.sensor.copy_(torch.from_numpy(data.sensordata)[None])

    def restart(self, ended: Tensor, row: Tensor) -> None:
        """One episode is all."""

    def check(self) -> None:
        """MuJoCo grows its memory as it needs."""


class Senses:
    """What the robot senses, with the noise that the policy was trained with."""

    def __init__(self, robot: Any, about: deploy.About, seed: int) -> None:
        self.robot, self.source = robot, np.random.default_rng(seed)
        self.noise = {term["name"]: term["noise"] for term in about.raw["obs"]["terms"]}

    def read(self) -> dict[str, Any]:
        return {
            name: value + self.noise.get(name, 0.0) * self.source.uniform(-1, 1, np.shape(value))
            for name, value in self.robot.read().items()
        }


def _set_gait(env: RobotEnv, about: deploy.About) -> None:
    """The judge keeps the rhythm of the runner, which takes the middle of the frequencies."""
    for term in about.terms:
        if term.gait:
            env._state["phase_step"].fill_(2 * np.pi * env.dt * float(term.gait["frequency"]))


def _example() -> Any:
    spec = importlib.util.spec_from_file_location("mujoco_robot", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
