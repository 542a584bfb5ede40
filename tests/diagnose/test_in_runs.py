"""Diagnostics as part of an evaluation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fleetfoot.api import train
from fleetfoot.data import Batch, Continuous, EnvSpec, Obs, Step
from fleetfoot.envs.tensor import TensorConfig
from fleetfoot.errors import UserError
from fleetfoot.evaluate import EvaluationConfig, QEstimate, first_episodes
from fleetfoot.log.sinks import read_lines
from support.runs import agent_state, assert_same, small

EXAMINED = EvaluationConfig(every_vec_steps=60, episodes=2, max_vec_steps=40, diagnose=True)
CPU = torch.device("cpu")


class Scripted:
    """Two environments with a reward of 1: the first terminates after 2 steps, the second is truncated after 3."""

    spec = EnvSpec("scripted", 2, (1,), Continuous(1), CPU)
    steps = 0

    def step(self, action: Tensor) -> Step:
        self.steps += 1
        obs = Obs(torch.zeros(2, 1), torch.zeros(2, 1))
        terminated = torch.tensor([self.steps % 2 == 0, False])
        truncated = torch.tensor([False, self.steps % 3 == 0])
        return Step(obs, obs, torch.ones(2), terminated, truncated, {})


def test_overestimation_by_hand() -> None:
    """gamma 1/2 and values of 4: the first episode's returns are 1.5 and 1, the second's 2.25, 2.5 and 1 + 4 / 2."""
    env: Any = Scripted()
    policy = nn.Linear(1, 1)
    q_estimate = QEstimate(lambda obs, action: torch.full((2,), 4.0), 0.5)
    obs = Obs(torch.zeros(2, 1), torch.zeros(2, 1))
    done = first_episodes(lambda o: policy(o.actor), env, obs, 100, q_estimate)  # type: ignore[arg-type]
    mean = (1.5 + 1.0 + 2.25 + 2.5 + 3.0) / 5
    assert done.metrics()["diagnose/overestimation"] == pytest.approx((4.0 - mean) / mean)
    assert done.returns.tolist() == [2.0, 3.0]


@pytest.mark.parametrize("name", ["fast_sac/pendulum", "fast_td3/pendulum", "bro/pendulum"])
def test_a_diagnosed_run_says_more_and_learns_the_same(name: str, tmp_path: Path) -> None:
    recipe = small(name, total_vec_steps=120)
    quiet = replace(EXAMINED, diagnose=False)
    train(replace(recipe, evaluation=EXAMINED), tmp_path / "examined")
    train(replace(recipe, evaluation=quiet), tmp_path / "quiet")
    assert_same(agent_state(tmp_path / "examined"), agent_state(tmp_path / "quiet"))
    lines = [x for x in read_lines(tmp_path / "examined" / "metrics.jsonl") if "eval/return" in x]
    of_a_network = ("dormant", "rank", "feature_norm", "parameter_norm")
    wanted = {f"diagnose/{net}/{x}" for net in ("critic", "policy") for x in of_a_network}
    for line in lines:
        assert {name for name in line if name.startswith("diagnose/")} == {
            *wanted,
            "diagnose/overestimation",
            "diagnose/newest_overfitting",
            "diagnose/newest_overfitting_difference",
        }
        assert 1 <= line["diagnose/critic/rank"] <= 16
        assert 0 <= line["diagnose/critic/dormant"] <= 1
    assert len(lines) == 2


def test_rows_held_out_are_held_against_rows_to_learn_from() -> None:
    """A critic that fits one batch alone has a larger loss on another."""
    recipe = small("fast_sac/pendulum")
    env = TensorConfig(task="pendulum").build(8, 0, CPU)
    agent: Any = recipe.agent.build(env.spec, gamma=0.9, total_updates=200, seed=0, device=CPU)
    batch, held_out = (rows(16, seed) for seed in (1, 2))
    before = agent.diagnose(batch, batch)
    assert float(before["overfitting"]) == 1.0
    for _ in range(200):
        agent.update(batch)
    known, apart = (agent.diagnose(batch, one) for one in (batch, held_out))
    assert (float(known["overfitting"]), float(known["overfitting_difference"])) == (1.0, 0.0)
    assert float(apart["overfitting"]) > 1.1
    assert float(apart["overfitting_difference"]) > 0.0


def rows(count: int, seed: int) -> Batch:
    """Rows with rewards that nothing predicts, and no future."""
    draw = torch.Generator().manual_seed(seed)
    obs = torch.randn(count, 3, generator=draw)
    action = torch.rand(count, 1, generator=draw) * 2 - 1
    reward = -300 * torch.rand(count, generator=draw)
    end, weight = torch.zeros(count), torch.ones(count)
    return Batch(Obs(obs, obs), action, reward, end, Obs(obs, obs), weight, torch.arange(count))


def test_what_cannot_be_diagnosed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="DDPG cannot be diagnosed"):
        train(small("ddpg/pendulum", evaluation=EXAMINED), tmp_path / "agent")
    with pytest.raises(UserError, match="SplitLearnersConfig cannot diagnose"):
        train(small("fast_td3/pendulum-split", evaluation=EXAMINED), tmp_path / "topology")
    assert not list(tmp_path.iterdir())
