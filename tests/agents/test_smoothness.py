"""The regulariser of a policy's change from step to step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from fleetfoot.agents.fast_sac import FastSACConfig
from fleetfoot.agents.fast_td3 import FastTD3Config
from fleetfoot.agents.flash_sac import FlashSACConfig
from fleetfoot.errors import UserError
from fleetfoot.nn.flash import FlashNetConfig
from fleetfoot.nn.mlp import MLPConfig
from support.made_up import CPU, make_batch, make_spec

NETS: dict[str, Any] = {
    "policy_net": MLPConfig(hidden=(16,)),
    "critic_net": MLPConfig(hidden=(16,)),
    "num_atoms": 11,
}
FLASH = FlashNetConfig(width=8, blocks=1)
CONFIGS: dict[str, Any] = {
    "fast_td3": FastTD3Config(**NETS, policy_every=1),
    "fast_sac": FastSACConfig(**NETS, policy_every=1),
    "flash_sac": FlashSACConfig(num_atoms=11, policy_every=1, policy_net=FLASH, critic_net=FLASH),
}


def make(name: str, weight: float) -> Any:
    cfg = replace(CONFIGS[name], smoothness=weight)
    return cfg.build(make_spec(), gamma=0.9, total_updates=200, seed=0, device=CPU)


def change(agent: Any, batch: Any) -> float:
    with torch.no_grad():
        return float((agent.policy(batch.obs) - agent.policy(batch.next_obs)).square().mean())


@pytest.mark.parametrize("name", CONFIGS)
def test_a_smooth_policy_changes_less_from_step_to_step(name: str) -> None:
    batch = make_batch(make_spec(), rows=64, seed=1)
    changes = []
    for weight in (0.0, 100.0):
        agent = make(name, weight)
        for _ in range(150):
            agent.update(batch)
        changes.append(change(agent, batch))
    # Batch-normalised policies with unit weights give way slowly.
    assert changes[1] < (0.7 if name == "flash_sac" else 0.2) * changes[0]


@pytest.mark.parametrize("name", ["fast_td3", "fast_sac"])
def test_what_is_added_to_the_loss(name: str) -> None:
    agent, batch = make(name, 3.0), make_batch(make_spec(), rows=64, seed=1)
    noise = () if name == "fast_td3" else (torch.zeros(64, agent.action_size),)
    plain = agent.policy_loss(batch.obs, *noise).loss
    smooth = agent.policy_loss(batch.obs, *noise, batch.next_obs).loss
    assert float(smooth - plain) == pytest.approx(3.0 * change(agent, batch), rel=1e-4)


@pytest.mark.parametrize("name", ["fast_td3", "fast_sac"])
def test_a_learner_without_next_observations_says_so(name: str) -> None:
    batch = make_batch(make_spec(), rows=8, seed=1)
    with pytest.raises(UserError, match="no next observations"):
        make(name, 1.0).update_policy(batch.obs)
    make(name, 0.0).update_policy(batch.obs)


@pytest.mark.parametrize("name", CONFIGS)
def test_negative_weights_are_refused(name: str) -> None:
    with pytest.raises(UserError, match="smoothness"):
        make(name, -1.0)
