from __future__ import annotations

import copy
import math
from dataclasses import replace

import pytest
import torch

from fleetfoot.agents.fast_sac import FastSAC, FastSACConfig
from fleetfoot.data import Discrete
from fleetfoot.errors import UserError
from fleetfoot.nn.mlp import MLPConfig
from fleetfoot.ops import categorical
from fleetfoot.ops.squash import squashed_sample
from support.made_up import CPU, make_batch, make_spec, make_transition

SMALL = FastSACConfig(
    v_min=-5.0,
    v_max=5.0,
    num_atoms=11,
    alpha=0.2,
    policy_net=MLPConfig(hidden=(16,)),
    critic_net=MLPConfig(hidden=(32,)),
)


def make_agent(cfg: FastSACConfig = SMALL, seed: int = 0) -> FastSAC:
    return cfg.build(make_spec(), gamma=0.9, total_updates=100, seed=seed, device=CPU)


def weights(agent: FastSAC) -> list[torch.Tensor]:
    modules = (agent.gaussian, agent.critic, agent.critic_target)
    kept = [p.detach().clone() for m in modules for p in m.parameters()]
    return [*kept, agent.alpha.log_alpha.detach().clone()]


def test_the_target_is_the_soft_value_row_by_row() -> None:
    agent, batch = make_agent(), make_batch(make_spec(), rows=8)
    noise = torch.randn(8, 2, generator=torch.Generator().manual_seed(1))
    target, _ = agent.target_distribution(batch, noise)
    with torch.no_grad():
        mean, log_std = agent.gaussian(batch.next_obs)
        action, log_prob = squashed_sample(mean, log_std, noise)
        heads = agent.critic_target(batch.next_obs, action).softmax(-1)
    for row in range(8):
        soft = agent.z - 0.2 * log_prob[row]
        y = (batch.reward[row] + batch.discount[row] * soft).clamp(-5, 5)
        kept = min((heads[h, row] for h in (0, 1)), key=lambda p: float(p @ y))
        wanted = categorical.project(kept, y, agent.z)
        torch.testing.assert_close(target[row], wanted, atol=1e-5, rtol=1e-4)


def test_the_temperature_moves_towards_the_target_entropy() -> None:
    for target, sign in ((-100.0, -1), (100.0, 1)):
        agent = make_agent(replace(SMALL, target_entropy_per_action=target))
        before = agent.alpha().item()
        agent.update(make_batch(make_spec()))
        assert math.copysign(1, agent.alpha().item() - before) == sign


def test_the_standard_deviation_stays_between_its_bounds() -> None:
    agent = make_agent()
    with torch.no_grad():
        for p in agent.gaussian.net.parameters():
            p.mul_(50)
    _, log_std = agent.gaussian(make_batch(make_spec(), rows=200).obs)
    assert log_std.min() >= SMALL.log_std_min
    assert log_std.max() <= SMALL.log_std_max
    assert log_std.max() - log_std.min() > 3


def test_greedy_is_the_mean_and_behaviour_is_sampled() -> None:
    agent, obs = make_agent(), make_batch(make_spec()).obs
    quiet = agent.behaviour(obs, torch.zeros(6, 2))
    torch.testing.assert_close(agent.policy(obs), quiet)
    assert not torch.allclose(agent.behaviour(obs, torch.ones(6, 2)), quiet)


def test_policy_updates_leave_the_critic_alone_and_climb() -> None:
    agent = make_agent(replace(SMALL, alpha=1e-6))
    batch = make_batch(make_spec(), rows=64)
    critic = [p.detach().clone() for p in agent.critic.parameters()]
    noise = torch.zeros(64, 2)
    first = agent.policy_loss(batch.obs, noise)[0].item()
    for _ in range(30):
        agent.update_policy(batch.obs)
    assert agent.policy_loss(batch.obs, noise)[0].item() < first
    assert all(torch.equal(a, b) for a, b in zip(critic, agent.critic.parameters(), strict=True))


def test_saved_and_restored_agents_go_on_exactly() -> None:
    one, two = make_agent(seed=0), make_agent(seed=1)
    for seed in range(3):
        one.observe(make_transition(make_spec(), seed))
        one.update(make_batch(make_spec(), seed=seed))
    two.load_state_dict(copy.deepcopy(one.state_dict()))
    for seed in range(3, 6):
        for agent in (one, two):
            agent.update(make_batch(make_spec(), seed=seed))
    assert all(torch.equal(a, b) for a, b in zip(weights(one), weights(two), strict=True))


def test_wrong_input() -> None:
    with pytest.raises(UserError, match="v_min"):
        make_agent(replace(SMALL, v_min=3.0, v_max=3.0))
    spec = make_spec(action=Discrete(3))
    with pytest.raises(UserError, match="continuous actions"):
        SMALL.build(spec, gamma=0.9, total_updates=1, seed=0, device=CPU)
