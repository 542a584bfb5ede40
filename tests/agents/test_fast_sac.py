from __future__ import annotations

import copy
import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from fleetfoot.agents.fast_sac import FastSAC, FastSACConfig
from fleetfoot.data import Discrete
from fleetfoot.errors import UserError
from fleetfoot.nn.mlp import MLPConfig
from fleetfoot.ops import categorical
from fleetfoot.ops.squash import squashed_sample
from fleetfoot.optim import AdamWConfig
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


@pytest.mark.parametrize("lowest", [True, False])
def test_one_update_by_hand(lowest: bool) -> None:
    """Linear networks; AdamW's first step is the sign of the gradient, and what the decay takes."""
    lr, decay, tau, alpha = 0.01, 0.1, 0.25, 0.2
    optim, linear = AdamWConfig(lr=lr, weight_decay=decay), MLPConfig(hidden=())
    agent = make_agent(
        replace(
            SMALL,
            clipped_double_q=lowest,
            tau=tau,
            policy_net=linear,
            critic_net=linear,
            policy_optim=optim,
            critic_optim=optim,
            alpha_optim=AdamWConfig(lr=lr, weight_decay=0.0),
        )
    )
    with torch.no_grad():  # a target that is not the critic
        for parameter in agent.critic_target.parameters():
            parameter.add_(torch.linspace(-0.6, 0.6, parameter.numel()).view_as(parameter))
    batch = make_batch(make_spec(), rows=8)
    old = copy.deepcopy(agent)
    draws = [noise.normal(8, 2) for noise in (old.critic_noise, old.policy_noise)]
    found = agent.update(batch).metrics

    def stepped(module: nn.Module, loss: torch.Tensor, new: nn.Module) -> None:
        gradients = torch.autograd.grad(loss, list(module.parameters()))
        for before, gradient, after in zip(
            module.parameters(), gradients, new.parameters(), strict=True
        ):
            wanted = before * (1 - lr * decay) - lr * gradient / (gradient.abs() + 1e-8)
            torch.testing.assert_close(after.detach(), wanted.detach(), atol=2e-6, rtol=1e-5)

    with torch.no_grad():
        action, log_prob = old.gaussian.sample(batch.next_obs, draws[0])
        heads = old.critic_target(batch.next_obs, action).softmax(-1)  # (2)
        target = torch.zeros(8, 11)
        for row in range(8):
            soft = old.z - alpha * log_prob[row]
            y = (batch.reward[row] + batch.discount[row] * soft).clamp(-5, 5)  # (1)
            moved = [categorical.project(head, y, old.z) for head in heads[:, row]]
            means = [float(head @ y) for head in heads[:, row]]
            lower = means.index(min(means))
            target[row] = moved[lower] if lowest else (moved[0] + moved[1]) / 2  # (3)
    log_probs = old.critic(batch.obs, batch.action).log_softmax(-1)
    critic_loss = -(batch.weight * (target * log_probs).sum(-1)).mean(-1).sum()  # (4)
    assert found["critic/loss"].item() == pytest.approx(critic_loss.item(), rel=1e-4)
    stepped(old.critic, critic_loss, agent.critic)
    pairs = zip(
        old.critic_target.parameters(),
        agent.critic.parameters(),
        agent.critic_target.parameters(),
        strict=True,
    )
    for before, critic, after in pairs:  # (7), with the new critic
        torch.testing.assert_close(after, ((1 - tau) * before + tau * critic).detach())

    action, log_prob = old.gaussian.sample(batch.obs, draws[1])
    q = agent.critic(batch.obs, action).softmax(-1) @ agent.z
    q = q.amin(0) if lowest else q.mean(0)
    stepped(old.gaussian, (alpha * log_prob - q).mean(), agent.gaussian)  # (5)
    sign = math.copysign(1, -log_prob.mean().item() + 1.0)  # (6): above the target entropy it falls
    assert agent.alpha.log_alpha.item() == pytest.approx(math.log(alpha) - lr * sign, abs=1e-6)


def test_every_schedule_ends_with_the_run() -> None:
    falling = AdamWConfig(lr=1e-2, lr_end=1e-3)
    cfg = replace(
        SMALL, policy_every=2, policy_optim=falling, critic_optim=falling, alpha_optim=falling
    )
    agent = cfg.build(make_spec(), gamma=0.9, total_updates=6, seed=0, device=CPU)
    for seed in range(6):
        agent.update(make_batch(make_spec(), seed=seed))
    for step in (agent.step_policy, agent.step_critic, agent.step_alpha):
        assert step.lr.item() == pytest.approx(1e-3)


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
