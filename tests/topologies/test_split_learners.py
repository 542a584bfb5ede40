"""Actor, critic learner and policy learner: the same as one after the other, at ratios that hold, and they all stop."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fleetfoot.api import train
from fleetfoot.recipe import Recipe
from fleetfoot.topologies.split_learners import SplitLearnersConfig
from fleetfoot.topologies.synchronous import SynchronousConfig
from topologies.test_synchronous import agent_state, assert_same, small

LOCKSTEP = SplitLearnersConfig(lockstep=True)


def short(name: str, policy_every: int = 2, **changes: Any) -> Recipe:
    recipe = small(name, **({"total_vec_steps": 60} | changes))
    agent: Any = recipe.agent
    return replace(recipe, agent=replace(agent, policy_every=policy_every))


NAMES = [
    "ddpg/pendulum",
    "pql/pendulum",
    "pql_d/pendulum",
    "fast_td3/pendulum",
    "fast_sac/pendulum",
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("policy_every", [1, 2])
def test_in_lockstep_the_weights_are_those_of_synchronous(
    name: str, policy_every: int, tmp_path: Path
) -> None:
    recipe = short(name, policy_every)
    train(replace(recipe, topology=LOCKSTEP), tmp_path / "split")
    train(replace(recipe, topology=SynchronousConfig()), tmp_path / "whole")
    assert_same(agent_state(tmp_path / "split"), agent_state(tmp_path / "whole"))
