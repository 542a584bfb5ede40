from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from fleetfoot.agents.brc import BRCConfig
from fleetfoot.agents.bro import BROConfig
from fleetfoot.agents.dac import DACConfig
from fleetfoot.agents.ddpg import DDPGConfig
from fleetfoot.agents.dqn import DQNConfig
from fleetfoot.agents.fast_sac import FastSACConfig
from fleetfoot.agents.fast_td3 import FastTD3Config
from fleetfoot.agents.sac import SACConfig
from fleetfoot.agents.vpl import VPLConfig
from fleetfoot.data import Discrete
from fleetfoot.nn.mlp import MLPConfig
from fleetfoot.nn.normalize import RunningNorm
from fleetfoot.nn.pessimism import FixedBoundConfig
from fleetfoot.nn.simba import Dense, SimbaV2Config
from fleetfoot.nn.spectral import SpectralLinear
from fleetfoot.nn.torso import MLPTorsoConfig
from fleetfoot.ops.polyak import polyak_, target_copy
from support.made_up import CPU, make_batch, make_spec

SPECTRAL = MLPConfig(hidden=(16, 16), spectral_norm=True)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.layer = RunningNorm((3,)), nn.Linear(3, 2)
        self.constrained = 0

    def constrain_(self) -> None:
        self.constrained += 1


def test_a_target_takes_over_a_share_and_has_the_same_statistics() -> None:
    network = Net()
    target = target_copy(network, network.norm)
    assert target.norm is network.norm
    assert not any(weight.requires_grad for weight in target.parameters())
    assert all(weight.requires_grad for weight in network.parameters())
    before = target.layer.weight.clone()
    with torch.no_grad():
        network.layer.weight.add_(1.0)
    polyak_(target, network, 0.25)
    torch.testing.assert_close(target.layer.weight, before + 0.25)
    assert (target.constrained, network.constrained) == (1, 0)


def test_a_plain_torch_module_needs_neither_statistics_nor_constraints() -> None:
    network = nn.Linear(3, 2)
    target = target_copy(network)
    before = target.weight.clone()
    with torch.no_grad():
        network.weight.add_(1.0)
    polyak_(target, network, 0.25)
    torch.testing.assert_close(target.weight, before + 0.25)


@pytest.mark.parametrize(
    "cfg",
    [
        FastTD3Config(critic_net=SPECTRAL, tau=0.1),
        FastSACConfig(critic_net=SPECTRAL, tau=0.1),
        SACConfig(critic_net=SPECTRAL, tau=0.1),
        BROConfig(critic_net=SPECTRAL, tau=0.1, quantiles=5),
        BRCConfig(critic_net=SPECTRAL, tau=0.1),
        DACConfig(critic_net=SPECTRAL, tau=0.1),
        VPLConfig(critic_net=SPECTRAL, tau=0.1, bound=FixedBoundConfig()),
        DDPGConfig(critic_net=SPECTRAL, tau=0.1, target_every=1),
        DQNConfig(torso=MLPTorsoConfig(), head=SPECTRAL, tau=0.1, target_every=1),
    ],
    ids=lambda cfg: type(cfg).__name__,
)
def test_the_target_of_every_agent_has_the_singular_vectors_of_its_own_weights(cfg: Any) -> None:
    spec = make_spec(action=Discrete(3)) if isinstance(cfg, DQNConfig) else make_spec()
    agent = cfg.build(spec, gamma=0.9, total_updates=10, seed=0, device=CPU)
    with torch.no_grad():
        for weight in agent.critic.parameters():
            weight += 0.3 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))
    for _ in range(3):
        agent.update(make_batch(spec))
    layers = [m for m in agent.critic_target.modules() if isinstance(m, SpectralLinear)]
    assert layers
    for layer in layers:
        largest = torch.linalg.svdvals(layer.normalized())[..., 0]
        torch.testing.assert_close(largest, torch.ones_like(largest), rtol=1e-3, atol=1e-3)


def test_a_target_stays_on_the_sphere() -> None:
    cfg = FastTD3Config(critic_net=SimbaV2Config(width=8, blocks=1))
    agent = cfg.build(make_spec(), gamma=0.9, total_updates=10, seed=0, device=CPU)
    with torch.no_grad():
        for weight in agent.critic.parameters():
            weight.add_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)))
    agent.update(make_batch())
    for layer in agent.critic_target.modules():
        if isinstance(layer, Dense):
            length = layer.weight.norm(dim=-2)
            torch.testing.assert_close(length, torch.ones_like(length))
