"""The memory of observations: those that a replay with the same seed would draw."""

from __future__ import annotations

import pytest
import torch

from fleetfoot.data import Obs, Transition
from fleetfoot.envs.tensor import TensorConfig
from fleetfoot.replay.observations import Observations
from fleetfoot.replay.replay import ReplayConfig

CPU = torch.device("cpu")


@pytest.mark.parametrize("storage", ["float32", "bf16"])
def test_draws_what_a_replay_draws_and_goes_on_after_a_restore(storage: str) -> None:
    env = TensorConfig(task="point_mass", privileged=True, num_tasks=2).build(4, 0, CPU)
    cfg = ReplayConfig(capacity=4 * 7, storage=storage)  # type: ignore[arg-type]
    replay = cfg.build(env.spec, gamma=0.9, seed=3, device=CPU)
    memory = Observations(cfg, env.spec, seed=3, device=CPU)
    other = Observations(cfg, env.spec, seed=8, device=CPU)
    obs, generator = env.reset(), torch.Generator().manual_seed(0)
    for count in range(17):  # more than twice around
        action = torch.rand(4, 2, generator=generator) * 2 - 1
        step = env.step(action)
        replay.append(
            Transition(obs, action, step.reward, step.terminated, step.truncated, step.next_obs, {})
        )
        memory.append(obs)
        if count > 10:
            other.append(obs)
        obs = step.obs
        drawn, wanted = memory.sample(64), replay.sample(64).obs
        assert_equal(drawn, wanted)
        if count > 10:
            assert_equal(other.sample(64), wanted)
        elif count == 10:
            other.load_state_dict(memory.state_dict())


def assert_equal(one: Obs, two: Obs) -> None:
    for mine, theirs in zip(one, two, strict=True):
        assert mine is not None
        assert theirs is not None
        assert torch.equal(mine, theirs)
