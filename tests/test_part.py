from __future__ import annotations

import ast
import dataclasses
import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fleetfoot
from fleetfoot import recipes
from fleetfoot.agents.brc import BRCConfig
from fleetfoot.agents.bro import BROConfig
from fleetfoot.agents.contract import AgentConfig
from fleetfoot.agents.fast_sac import FastSACConfig
from fleetfoot.agents.fast_td3 import FastTD3Config
from fleetfoot.config import PARTS, from_json, to_json
from fleetfoot.data import Continuous, EnvSpec
from fleetfoot.envs.humanoid_bench import HumanoidBenchConfig
from fleetfoot.envs.lab.mjlab import MjlabConfig
from fleetfoot.envs.playground import PlaygroundConfig
from fleetfoot.envs.tensor import TensorConfig
from fleetfoot.errors import UserError
from fleetfoot.nn.bronet import BroNetConfig
from fleetfoot.nn.mlp import MLPConfig
from fleetfoot.optim import AdamWConfig
from fleetfoot.recipe import Recipe
from fleetfoot.replay.replay import ReplayConfig
from fleetfoot.rng import generator_state, restore_generator

CPU = torch.device("cpu")


def parts_of(value: Any) -> list[Any]:
    if not dataclasses.is_dataclass(value):
        return []
    inner = [parts_of(getattr(value, f.name)) for f in dataclasses.fields(value)]
    return [value, *(p for ps in inner for p in ps)]


@pytest.mark.parametrize("name", recipes.names())
def test_every_recipe_builds_and_survives_json(name: str) -> None:
    recipe = recipes.get(name)
    dataclasses.replace(recipe, device="cpu").check()  # some ask for a GPU
    assert recipe.name == name
    assert recipes.describe(name)
    assert from_json(to_json(recipe)) == recipe
    config = recipe.env
    if isinstance(config, PlaygroundConfig):
        # Its robots are downloaded and take minutes to compile; a task in torch stands in for them.
        config = TensorConfig(task="point_mass", privileged=True)
    elif isinstance(config, MjlabConfig) and not importlib.util.find_spec("mjlab"):
        pytest.skip("mjlab lives in a Python environment of its own")
    elif isinstance(config, HumanoidBenchConfig):  # a stand-in of it trains in tests/recipes
        config = TensorConfig()
    env = config.build(2, 0, CPU)
    spec = env.spec
    seeds = recipe.seeds()
    made_by: AgentConfig = recipe.agent
    if isinstance(made_by, BRCConfig):  # as wide as published, it takes a minute to initialise
        made_by = dataclasses.replace(made_by, critic_net=BroNetConfig(width=16))
    agent = made_by.build(
        spec, gamma=recipe.gamma, total_updates=recipe.total_updates(), seed=seeds.agent, device=CPU
    )
    explorer = recipe.explorer.build(spec, seed=seeds.explorer, device=CPU)
    action = explorer.act(agent.behaviour, env.reset())
    assert action.shape == ((2, spec.action.size) if isinstance(spec.action, Continuous) else (2,))
    if isinstance(recipe.replay, ReplayConfig):
        assert recipe.replay.bytes(dataclasses.replace(spec, num_envs=recipe.num_envs)) > 0
    env.close()


def test_every_field_of_every_part_is_read_somewhere() -> None:
    """A field that no code reads is a promise that nobody keeps."""
    read: set[str] = set()
    for path in Path(fleetfoot.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                read.add(node.attr)
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                read.add(node.value)  # fields checked by name, through getattr
    ours = [c for c in PARTS.values() if c.__module__.startswith("fleetfoot.")]
    assert len(ours) > 12
    unread = [
        f"{c.__name__}.{f.name}" for c in ours for f in dataclasses.fields(c) if f.name not in read
    ]
    assert not unread


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: ReplayConfig(storage="bf8"), "float32, bf16"),  # type: ignore[arg-type]
        (lambda: ReplayConfig(capacity="many"), "int"),  # type: ignore[arg-type]
        (lambda: ReplayConfig(n_step=True), "int"),
        (lambda: AdamWConfig(lr="fast"), "float"),  # type: ignore[arg-type]
        (lambda: AdamWConfig(max_grad_norm="none"), "float | None"),  # type: ignore[arg-type]
        (lambda: MLPConfig(layer_norm=1), "bool"),  # type: ignore[arg-type]
    ],
)
def test_values_of_the_wrong_kind_are_refused(make: Any, says: str) -> None:
    with pytest.raises(UserError) as caught:
        make()
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"seed": -1}, "seed"),
        ({"threads": -1}, "threads"),
        ({"num_envs": 0}, "num_envs"),
        ({"gamma": 1.5}, "gamma"),
        ({"device": "mps"}, "not supported"),
        ({"device": "gpu"}, "not known"),
    ],
)
def test_recipes_that_cannot_work_are_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        dataclasses.replace(recipes.get("fast_td3/pendulum"), **changes).check()


@pytest.mark.parametrize("name", ["fast_td3/pendulum", "fast_sac/go1", "flash_sac/pendulum"])
def test_a_learning_rate_that_would_rise_is_refused(name: str) -> None:
    recipe = dataclasses.replace(recipes.get(name), device="cpu")
    agent: Any = recipe.agent
    low = dataclasses.replace(agent.critic_optim, lr=1e-6)
    with pytest.raises(UserError, match=r"rise; set --agent.critic-optim.lr-end too, to 1e-06 or "):
        dataclasses.replace(recipe, agent=dataclasses.replace(agent, critic_optim=low)).check()
    constant = dataclasses.replace(low, lr_end=None)
    dataclasses.replace(recipe, agent=dataclasses.replace(agent, critic_optim=constant)).check()


@pytest.mark.parametrize("agent", [FastTD3Config, FastSACConfig, BROConfig, BRCConfig])
def test_without_an_end_of_its_own_a_learning_rate_is_constant(agent: Any) -> None:
    cfg = agent()
    for name in ("policy_optim", "critic_optim"):
        optim = dataclasses.replace(getattr(cfg, name), lr=1e-5)
        step = optim.build(nn.ParameterList([nn.Parameter(torch.zeros(1))]), 10)
        step(step.parameters[0].sum())
        assert step.lr.item() == pytest.approx(1e-5)


def spec() -> EnvSpec:
    return EnvSpec("made-up", 2, (3,), Continuous(1), CPU)


@pytest.mark.parametrize("name", ["fast_td3/pendulum", "fast_sac/pendulum"])
@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"num_atoms": 1}, "atoms"),
        ({"num_critics": 0}, "critics"),
        ({"policy_every": 0}, "policy_every"),
        ({"tau": 2.0}, "tau"),
        ({"normalize_reward": True}, "must contain 0"),
        ({"critic_optim": AdamWConfig(lr=-1.0)}, "learning rates"),
    ],
)
def test_agents_that_cannot_learn_are_refused(name: str, changes: Any, says: str) -> None:
    agent = dataclasses.replace(recipes.get(name).agent, **changes)  # type: ignore[type-var]
    with pytest.raises(UserError, match=says):
        agent.build(spec(), gamma=0.9, total_updates=1, seed=0, device=CPU)


def test_random_states_go_on_exactly_and_across_kinds_of_device() -> None:
    one, two = torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)
    torch.rand(5, generator=one)
    restore_generator(two, generator_state(one))
    assert torch.equal(torch.rand(3, generator=one), torch.rand(3, generator=two))
    foreign = {"device": "cuda", "state": torch.arange(16, dtype=torch.uint8)}
    restore_generator(one, foreign)
    restore_generator(two, foreign)
    assert torch.equal(torch.rand(3, generator=one), torch.rand(3, generator=two))


def test_unknown_parts_and_fields_are_named() -> None:
    tree = to_json(recipes.get("fast_td3/pendulum"))
    assert isinstance(from_json(tree), Recipe)
    with pytest.raises(UserError, match=r"ReplayConfg.*Did you mean ReplayConfig"):
        from_json({**tree, "replay": {"part": "ReplayConfg"}})
    with pytest.raises(UserError, match=r"no field 'nstep'.*n_step"):
        from_json({**tree, "replay": {"part": "ReplayConfig", "nstep": 2}})
