"""Every agent's policy, as ONNX and torch.export, answers as the live one does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fleetfoot import deploy, recipes
from fleetfoot.data import Obs
from fleetfoot.envs.tensor import TensorConfig
from fleetfoot.export.observations import drawn
from fleetfoot.nn.bronet import BroNetConfig
from fleetfoot.nn.mlp import MLPConfig
from fleetfoot.nn.simba import SimbaV2Config
from fleetfoot.recipe import Recipe
from support.exported import CPU, packed, stir, write


def tiny(name: str, net: Any = None, **changes: Any) -> Recipe:
    recipe = recipes.get(name)
    agent: Any = recipe.agent
    if net is not None:
        changes |= {"policy_net": net, "critic_net": net}
    return replace(recipe, agent=replace(agent, **changes), device="cpu")


SMALL = MLPConfig(hidden=(16,))
BRO = BroNetConfig(width=16, blocks=1)
RECIPES: dict[str, Callable[[], Recipe]] = {
    "fast_td3": lambda: tiny("fast_td3/pendulum", SMALL),
    "fast_td3 simba": lambda: tiny("fast_td3/pendulum-simba", SimbaV2Config(width=16, blocks=1)),
    "fast_td3 tasks": lambda: tiny("fast_td3/point-mass", SMALL),
    "fast_sac": lambda: tiny("fast_sac/pendulum", SMALL),
    "flash_sac batch norm": lambda: tiny("flash_sac/pendulum"),
    "flash_sac xqc": lambda: tiny("flash_sac/pendulum-xqc"),
    "sac": lambda: tiny("sac/top+ln+resets", SMALL),
    "bro": lambda: tiny("bro/pendulum", BRO),
    "dac": lambda: tiny("dac/pendulum", SMALL, renew="initial"),
    "vpl": lambda: tiny("vpl/pendulum", SMALL),
    "brc tasks": lambda: tiny("brc/pendulums", BRO),
    "ddpg": lambda: tiny("ddpg/pendulum", SMALL),
    "pql_d": lambda: tiny("pql_d/pendulum", SMALL),
    "dqn": lambda: tiny("dqn/cartpole"),
    "dqn images": lambda: tiny("dqn/catch"),
    "ppo": lambda: tiny("ppo/pendulum"),
    "ppo discrete": lambda: tiny("ppo/cartpole"),
}


# Their policies are the graph of another agent here, with other weights.
TWINS = ("fast_sac", "dac", "vpl", "ddpg", "pql_d", "ppo")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in TWINS else n for n in RECIPES]
)
def test_exported_policies_answer_as_the_live_one(name: str, tmp_path: Path) -> None:
    recipe = RECIPES[name]()
    assert isinstance(recipe.env, TensorConfig)
    env = recipe.env.build(4, 0, CPU)
    spec = env.spec
    policy = recipe.build_agent(spec, CPU).policy.eval()
    stir(policy)
    made = packed(recipe, spec, policy)
    check = made.about["check"]
    assert check["observations"] == 1_000
    assert max(check["differences"].values()) <= 1e-5

    # Once more, as a robot does it: files, the runner, other observations, one at a time and several.
    runner = deploy.load(write(tmp_path / "made", made.files))
    obs = drawn(spec, policy, 9)
    with torch.no_grad():
        live = policy(Obs(obs.actor, obs.actor, obs.task)).numpy()
    for i, row in enumerate(obs.actor.numpy()):
        task = None if obs.task is None else int(obs.task[i])
        answer = runner(row, task).action
        assert answer.shape == live[i].shape
        assert np.abs(answer.astype(np.float64) - live[i]).max() <= 1e-5
    if obs.task is None:
        assert np.abs(runner(obs.actor.numpy()).action.astype(np.float64) - live).max() <= 1e-5
    else:
        named = runner(obs.actor[0].numpy(), spec.tasks[int(obs.task[0])]).action
        assert np.abs(named - live[0]).max() <= 1e-5


def test_statistics_matter_to_the_answer() -> None:
    """What `stir` changes is seen in the action: a graph without it would fail above."""
    for name in ("fast_td3", "flash_sac batch norm"):
        recipe = RECIPES[name]()
        policy = recipe.build_agent(recipe.env.build(4, 0, CPU).spec, CPU).policy.eval()
        rows = torch.ones(2, 3)
        with torch.no_grad():
            before = policy(Obs(rows, rows)).clone()
            stir(policy)
            assert (policy(Obs(rows, rows)) - before).abs().max() > 1e-3
