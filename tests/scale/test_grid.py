"""The configurations of a study."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fleetfoot import recipes
from fleetfoot.errors import UserError
from fleetfoot.pace import Pace
from fleetfoot.scale import grid
from fleetfoot.scale.grid import Setting


@pytest.mark.parametrize(
    "name", ["sac/pendulum", "fast_td3/pendulum", "bro/pendulum", "pql/pendulum", "dqn/cartpole"]
)
@pytest.mark.parametrize("utd", [0.01, 0.5, 3.0])
def test_the_ratio_is_kept_for_any_number_of_environments(name: str, utd: float) -> None:
    recipe = grid.apply(recipes.get(name), Setting(utd=utd))
    assert grid.utd_of(recipe) == pytest.approx(utd)
    assert recipe.pace.warmup_vec_steps == recipes.get(name).pace.warmup_vec_steps
    pace, after = Pace(recipe.pace), 1000
    made = sum(pace.owed() for _ in range(recipe.pace.warmup_vec_steps + after))
    assert made == pytest.approx(utd * after * recipe.num_envs, abs=1)


def test_the_learning_rates_of_networks_move_together() -> None:
    recipe = recipes.get("fast_td3/pendulum")  # 1e-3, falling to 3e-4
    agent: Any = grid.apply(recipe, Setting(lr=2e-3)).agent
    assert (agent.critic_optim.lr, agent.critic_optim.lr_end) == (2e-3, 6e-4)
    assert agent.policy_optim == agent.critic_optim
    sac: Any = grid.apply(recipes.get("sac/pendulum"), Setting(lr=6e-3)).agent
    assert (sac.critic_optim.lr, sac.policy_optim.lr, sac.alpha_optim.lr) == (6e-3, 6e-3, 1e-2)
    assert grid.lr_of(recipes.get("dqn/cartpole")) is not None


def test_the_critic_gets_wider_and_the_policy_stays() -> None:
    sac: Any = grid.apply(recipes.get("sac/pendulum"), Setting(width=1.5)).agent
    assert (sac.critic_net.hidden, sac.policy_net.hidden) == ((96, 96), (64, 64))
    bro: Any = recipes.get("bro/pendulum").agent
    wide: Any = grid.apply(recipes.get("bro/pendulum"), Setting(width=2)).agent
    assert wide.critic_net.width == 2 * bro.critic_net.width


def test_every_combination_has_a_name_that_tells_it() -> None:
    settings = grid.product_of((0.5, 1.0), (128, 256), (), (1.0, 2.0))
    names = list(grid.points([recipes.get("sac/pendulum")], settings))
    assert len(set(names)) == 8
    assert names[:2] == [
        "sac-pendulum_utd-0.5_batch-128_lr-0.003",
        "sac-pendulum_utd-0.5_batch-128_lr-0.003_width-2",
    ]


def test_a_study_trains_silently_and_with_diagnostics_where_it_can() -> None:
    recipe = grid.prepared(recipes.get("sac/pendulum"), diagnose=True, threads=2)
    assert (recipe.evaluation.diagnose, recipe.threads, recipe.log.tensorboard) == (True, 2, False)
    for name in (
        "fast_td3/pendulum-split",
        "ddpg/pendulum",
    ):  # the topology cannot; the agent cannot
        assert not grid.prepared(recipes.get(name), diagnose=True, threads=0).evaluation.diagnose
    kept = grid.prepared(replace(recipe, threads=7), diagnose=False, threads=2)
    assert kept.threads == 7


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        (Setting(utd=0.0), "--utd must be above 0"),
        (Setting(batch=0), "--batch must be at least 1"),
        (Setting(lr=-1.0), "--lr must be above 0"),
        (Setting(width=0.0), "--width must be above 0"),
    ],
)
def test_values_that_make_no_sense(setting: Setting, says: str) -> None:
    with pytest.raises(UserError, match=says):
        grid.apply(recipes.get("sac/pendulum"), setting)


def test_recipes_that_make_no_study() -> None:
    sac, td3 = recipes.get("sac/pendulum"), recipes.get("fast_td3/pendulum")
    with pytest.raises(
        UserError, match=r"one algorithm, not SACConfig \(sac/pendulum\) and FastTD3Config"
    ):
        grid.points([sac, td3], [Setting()])
    with pytest.raises(UserError, match="sac/pendulum is named twice"):
        grid.points([sac, sac], [Setting()])
    with pytest.raises(UserError, match="ppo/pendulum learns from rollouts"):
        grid.points([recipes.get("ppo/pendulum")], [Setting()])
    free = recipes.get("apex_dqn/pong")
    free = replace(free, topology=replace(free.topology, free=True))  # type: ignore[type-var]
    with pytest.raises(UserError, match="its update-to-data ratio cannot be set"):
        grid.points([free], [Setting()])
    with pytest.raises(UserError, match="no critic_net whose --width"):
        grid.apply(recipes.get("dqn/cartpole"), Setting(width=2.0))
