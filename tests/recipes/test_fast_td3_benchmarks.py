"""FastTD3's own benchmarks: settings as published, and short trainings."""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from fleetfoot import recipes
from fleetfoot.agents.fast_td3 import FastTD3Config
from fleetfoot.agents.flash_sac import FlashSACConfig
from fleetfoot.api import train
from fleetfoot.cli.form import parse_recipe
from fleetfoot.cli.train import Options
from fleetfoot.envs.envpool import EnvPoolConfig
from fleetfoot.envs.envpool.tasks import SETS
from fleetfoot.envs.humanoid_bench import TASKS, HumanoidBenchConfig
from fleetfoot.errors import UserError
from fleetfoot.evaluate import EvaluationConfig
from fleetfoot.log import LogConfig
from fleetfoot.nn.mlp import MLPConfig
from fleetfoot.nn.simba import SimbaV2Config
from fleetfoot.pace import PaceConfig
from fleetfoot.recipe import Recipe
from fleetfoot.replay.replay import ReplayConfig

# HumanoidBench's way in: a module that registers its ids with Gymnasium when it is imported.
STAND_IN = """
import gymnasium, numpy

class Walk(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-numpy.inf, numpy.inf, (51,), numpy.float64)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (19,), numpy.float32)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.place = self.np_random.normal(size=51)
        return self.place, {}

    def step(self, action):
        self.place = 0.9 * self.place
        self.place[:19] += 0.1 * action
        return self.place, float(numpy.exp(-abs(self.place[0]))), False, False, {"success": False}

gymnasium.register("h1-walk-v0", Walk, max_episode_steps=20)
"""


def short(recipe: Recipe, num_envs: int, **changes: Any) -> Recipe:
    """Twelve vec steps with networks of 16 units."""
    agent, net = recipe.agent, MLPConfig(hidden=(16,))
    assert isinstance(agent, FastTD3Config)
    if isinstance(agent.policy_net, MLPConfig):
        agent = dataclasses.replace(agent, policy_net=net, critic_net=net)
    fields: dict[str, Any] = {
        "agent": agent,
        "replay": dataclasses.replace(recipe.off_policy_replay(), capacity=1_000),
        "evaluation": EvaluationConfig(every_vec_steps=0, episodes=num_envs, max_vec_steps=5),
        "log": LogConfig(every_vec_steps=4, tensorboard=False, console=False),
        "num_envs": num_envs,
        "batch_size": 16,
        "total_vec_steps": 14,
        "device": "cpu",
        "threads": 1,
    }
    return dataclasses.replace(recipe, **(fields | changes))


def agent_of(name: str) -> FastTD3Config:
    agent = recipes.get(name).agent
    assert isinstance(agent, FastTD3Config)
    return agent


@pytest.mark.parametrize("robot", ["h1", "h1hand"])
def test_humanoid_bench_settings(robot: str) -> None:
    for task in TASKS:
        name = f"fast_td3/{robot}-{task}"
        recipe = recipes.get(name)
        assert recipe.name == name
        assert recipe.env == HumanoidBenchConfig(task=f"{robot}-{task}")
        assert (recipe.num_envs, recipe.batch_size, recipe.gamma) == (128, 32_768, 0.99)
        assert recipe.pace == PaceConfig(updates_per_vec_step=2.0, warmup_vec_steps=10)
        assert recipe.replay == ReplayConfig(capacity=6_553_600)
    assert (agent_of(name).tau, agent_of(name).num_atoms) == (0.1, 101)
    ranges = {task: agent_of(f"fast_td3/{robot}-{task}").v_max for task in TASKS}
    assert {task: value for task, value in ranges.items() if value != 250.0} == {
        **{"reach": 2_000.0, "basketball": 2_000.0, "package": 10_000.0},
        **{"maze": 1_000.0, "truck": 1_000.0, "push": 1_000.0},
    }
    for family in ("fast_td3", "flash_sac"):
        with pytest.raises(UserError, match=f"Did you mean {family}/{robot}-walk"):
            recipes.get(f"{family}/{robot}-wlk")


@pytest.mark.parametrize("name", ["h1-walk", "h1hand-push", "walker-run", "dog-run"])
def test_flash_sac_with_one_environment(name: str) -> None:
    recipe = recipes.get(f"flash_sac/{name}")
    assert recipe.name == f"flash_sac/{name}"
    dm_control = {"walker-run": "WalkerRun-v1", "dog-run": "DogRun-v1"}
    if name in dm_control:
        assert recipe.env == EnvPoolConfig(task=dm_control[name])
    else:
        assert recipe.env == HumanoidBenchConfig(task=name)
    assert (recipe.num_envs, recipe.batch_size, recipe.gamma) == (1, 512, 0.99)
    assert recipe.pace == PaceConfig(updates_per_vec_step=1.0, warmup_vec_steps=10_000)
    assert (recipe.off_policy_replay().n_step, recipe.precision) == (1, "float32")
    assert recipe.agent == FlashSACConfig()


@pytest.mark.parametrize(("name", "num_envs", "gamma"), [("mt10", 160, 0.97), ("mt50", 400, 0.99)])
def test_meta_world_settings(name: str, num_envs: int, gamma: float) -> None:
    recipe, agent = recipes.get(f"fast_td3/{name}"), agent_of(f"fast_td3/{name}")
    assert (recipe.num_envs, recipe.gamma, recipe.batch_size) == (num_envs, gamma, 32_768)
    assert (agent.v_min, agent.v_max, agent.normalize_reward) == (-10.0, 10.0, True)
    assert recipe.off_policy_replay().n_step == 8


@pytest.mark.slow
def test_meta_world_trains(tmp_path: Path) -> None:
    """Two of its tasks: all ten take long to build."""
    pytest.importorskip("envpool")
    recipe = short(recipes.get("fast_td3/mt10"), 2)
    env: Any = recipe.env
    two = dataclasses.replace(env, set="", tasks=SETS["mt10"][:2], threads=1)
    result = train(dataclasses.replace(recipe, env=two), tmp_path / "run")
    assert result.finished
    assert result.counters.updates == 8


SIMBA = (
    *("--agent.policy-net", "SimbaV2Config", "--agent.policy-net.width", "256"),
    *("--agent.policy-net.blocks", "1", "--agent.critic-net", "SimbaV2Config"),
    *("--batch-size", "8192"),
)


@pytest.mark.parametrize("name", ["fast_td3/h1hand-run", "fast_td3/mt50"])
def test_simba_by_option(name: str) -> None:
    recipe, _ = parse_recipe(recipes.get(name), Options, SIMBA, "fleetfoot train")
    agent = recipe.agent
    assert isinstance(agent, FastTD3Config)
    assert agent.policy_net == SimbaV2Config(width=256, blocks=1)
    assert agent.critic_net == SimbaV2Config(width=512, blocks=2)
    assert recipe.batch_size == 8_192


def test_a_stand_in_of_humanoid_bench_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through the recipe, in worker processes, as the package itself would."""
    if importlib.util.find_spec("humanoid_bench") is not None:
        pytest.skip("HumanoidBench itself is installed")
    (tmp_path / "humanoid_bench.py").write_text(STAND_IN)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", ":".join([str(tmp_path), *filter(None, sys.path)]))
    recipe = short(recipes.get("fast_td3/h1-walk"), 2)
    env: Any = recipe.env
    result = train(
        dataclasses.replace(recipe, env=dataclasses.replace(env, processes=2)), tmp_path / "run"
    )
    assert result.finished
    assert result.counters.updates == 8
    assert result.policy.state_dict()


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("humanoid_bench") is None,
    reason="HumanoidBench is installed from its repository, by hand",
)
def test_humanoid_bench_trains(tmp_path: Path) -> None:
    recipe = short(recipes.get("fast_td3/h1hand-walk"), 2)
    env: Any = recipe.env
    result = train(
        dataclasses.replace(recipe, env=dataclasses.replace(env, processes=2)), tmp_path / "run"
    )
    assert result.finished
    assert all(torch.isfinite(w).all() for w in result.policy.state_dict().values())
