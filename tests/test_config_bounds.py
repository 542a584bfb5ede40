"""Values that make no sense are refused where they are written down, in one line that names the field."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fleetfoot.agents.brc import BRCConfig
from fleetfoot.agents.bro import BROConfig
from fleetfoot.agents.daa import DAAConfig
from fleetfoot.agents.dac import DACConfig
from fleetfoot.agents.fast_sac import FastSACConfig
from fleetfoot.agents.fast_td3 import FastTD3Config
from fleetfoot.agents.flash_sac import FlashSACConfig
from fleetfoot.agents.ppo import PPOConfig
from fleetfoot.agents.sac import SACConfig
from fleetfoot.agents.vpl import VPLConfig
from fleetfoot.checkpoint import CheckpointConfig
from fleetfoot.envs.mujoco import MuJoCoConfig
from fleetfoot.envs.playground import PlaygroundConfig
from fleetfoot.envs.tensor import TensorConfig
from fleetfoot.errors import UserError
from fleetfoot.evaluate import EvaluationConfig
from fleetfoot.explore import (
    AsSampledConfig,
    EpsilonAnnealConfig,
    EpsilonLadderConfig,
    GreedyConfig,
    HeldNoiseConfig,
    NoiseLadderConfig,
)
from fleetfoot.log import LogConfig
from fleetfoot.pace import PaceConfig
from fleetfoot.replay.replay import ReplayConfig
from support.made_up import CPU, make_spec

NAN, INF = float("nan"), float("inf")


SOFT = [SACConfig, VPLConfig, FastSACConfig, FlashSACConfig, BROConfig, BRCConfig, DACConfig]
ROLLOUTS = [PPOConfig, DAAConfig]


@pytest.mark.parametrize(
    ("make", "changes", "says"),
    [
        *((make, {"alpha": 0.0}, "agent.alpha must be above 0") for make in SOFT),
        *((make, {"alpha": -1.0}, "agent.alpha must be above 0") for make in SOFT),
        *((make, {"log_std_min": 5.0}, "agent.log_std_min must not be above") for make in SOFT),
        *((make, {"log_std_max": INF}, "and both must be finite") for make in SOFT),
        *((make, {"tau": 2.0}, "agent.tau must be above 0 and at most 1") for make in SOFT),
        *((make, {"gae_lambda": 1.5}, "agent.gae_lambda must lie") for make in ROLLOUTS),
        *((make, {"value_clip": -1.0}, "agent.value_clip must be above") for make in ROLLOUTS),
        *((make, {"clip_obs": -1.0}, "agent.clip_obs must be above") for make in ROLLOUTS),
    ],
)
def test_agents_that_cannot_learn_are_refused(
    make: Callable[..., Any], changes: dict[str, float], says: str
) -> None:
    with pytest.raises(UserError, match=says) as caught:
        make(**changes).build(make_spec(), gamma=0.9, total_updates=1, seed=0, device=CPU)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("make", SOFT)
def test_one_standard_deviation_is_a_policy_too(make: Callable[..., Any]) -> None:
    fixed = make(log_std_min=-1.0, log_std_max=-1.0)
    fixed.build(make_spec(), gamma=0.9, total_updates=1, seed=0, device=CPU)


@pytest.mark.parametrize(
    ("make", "field", "values"),
    [
        (EvaluationConfig, "every_vec_steps", [-5]),
        (EvaluationConfig, "episodes", [0, -1]),
        (EvaluationConfig, "max_vec_steps", [0, -1]),
        (LogConfig, "every_vec_steps", [0, -1]),
        (LogConfig, "console_seconds", [-1.0, NAN, INF]),
        (CheckpointConfig, "every_vec_steps", [-1]),
        (CheckpointConfig, "keep", [0]),
        (PaceConfig, "updates_per_vec_step", [-1.0, NAN, INF]),
        (PaceConfig, "warmup_vec_steps", [-1]),
        (ReplayConfig, "capacity", [0, -1]),
        (ReplayConfig, "capacity_gib", [0.0, -1.0, NAN, INF]),
        (ReplayConfig, "n_step", [0]),
        (ReplayConfig, "final_share", [-0.1, 1.1, NAN]),
        (NoiseLadderConfig, "std_min", [-0.1, NAN]),
        (NoiseLadderConfig, "std_max", [-0.1, 0.0, INF]),
        (NoiseLadderConfig, "first", [-1]),
        (EpsilonAnnealConfig, "over_vec_steps", [0]),
        (EpsilonAnnealConfig, "start", [1.1, NAN]),
        (EpsilonLadderConfig, "epsilon", [-0.1, 1.1, NAN]),
        (EpsilonLadderConfig, "alpha", [-0.1, INF]),
        (EpsilonLadderConfig, "random_vec_steps", [-1]),
        (EpsilonAnnealConfig, "random_vec_steps", [-1]),
        (NoiseLadderConfig, "random_vec_steps", [-1]),
        (AsSampledConfig, "random_vec_steps", [-1]),
        (GreedyConfig, "random_vec_steps", [-1]),
        (HeldNoiseConfig, "random_vec_steps", [-1]),
        (HeldNoiseConfig, "longest", [0]),
        (HeldNoiseConfig, "exponent", [-1.0, NAN]),
        (MuJoCoConfig, "threads", [-1]),
        (MuJoCoConfig, "episode_length", [0]),
        (MuJoCoConfig, "render_width", [0]),
        (PlaygroundConfig, "render_height", [-1]),
        (PlaygroundConfig, "start_states", [0]),
        (TensorConfig, "num_tasks", [0]),
        (FastTD3Config, "tau", [NAN]),
    ],
)
def test_values_that_make_no_sense_are_refused(
    make: Callable[..., Any], field: str, values: list[float]
) -> None:
    for value in values:
        with pytest.raises(UserError, match=field) as caught:
            make(**{field: value})
        assert "\n" not in str(caught.value)


def test_zero_means_never_where_it_is_documented() -> None:
    assert EvaluationConfig(every_vec_steps=0).every_vec_steps == 0
    assert CheckpointConfig(every_vec_steps=0).every_vec_steps == 0
    assert PaceConfig(warmup_vec_steps=0, updates_per_vec_step=0).build().owed() == 0
