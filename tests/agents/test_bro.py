from __future__ import annotations

import copy
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fleetfoot import recipes, train
from fleetfoot.agents.bro import BRO, BROConfig
from fleetfoot.data import Continuous, Discrete
from fleetfoot.errors import UserError
from fleetfoot.nn.bronet import BroNetConfig
from fleetfoot.nn.mlp import MLPConfig
from fleetfoot.nn.optimist import DeltaConfig, IndependentConfig
from fleetfoot.ops.squash import squashed_sample
from fleetfoot.optim import AdamWConfig
from fleetfoot.run.build import open_run
from fleetfoot.topologies.synchronous import in_turns
from support.made_up import CPU, make_batch, make_spec, make_transition
from support.train_until import train_until

TINY = BroNetConfig(width=16, blocks=1)
SMALL = BROConfig(
    quantiles=8,
    policy_net=TINY,
    critic_net=TINY,
    optimist=DeltaConfig(net=replace(TINY, head_gain=0.01, head_bias=False)),
)
MODULES = ("gaussian", "critic", "critic_target", "alpha", "optimist", "optimism", "kl_weight")


def make_agent(cfg: BROConfig = SMALL, seed: int = 0, **spec: Any) -> BRO:
    return cfg.build(make_spec(**spec), gamma=0.9, total_updates=100, seed=seed, device=CPU)


def weights(agent: BRO) -> dict[str, torch.Tensor]:
    return {
        f"{name}.{key}": p.detach().clone()
        for name in MODULES
        if getattr(agent, name) is not None
        for key, p in getattr(agent, name).named_parameters()
    }


def adamw(weight: Any, gradient: Any, lr: float, decay: float) -> Any:
    """The first step."""
    return weight * (1 - lr * decay) - lr * gradient / (np.abs(gradient) + 1e-8)


def test_one_update_by_hand() -> None:
    """Linear networks, two rows; the critic with numpy, the actors by the formulas of the paper."""
    lr, decay, tau, alpha = 0.01, 0.1, 0.25, 0.5
    optim = AdamWConfig(lr=lr, lr_end=lr, weight_decay=decay)
    linear = MLPConfig(hidden=())
    cfg = replace(
        SMALL,
        quantiles=3,
        tau=tau,
        alpha=alpha,
        policy_net=linear,
        critic_net=linear,
        optimist=DeltaConfig(net=linear),
        policy_optim=optim,
        critic_optim=optim,
        optimist_optim=optim,
    )
    agent = make_agent(cfg, obs_shape=(2,), action=Continuous(1))
    batch = make_batch(make_spec(obs_shape=(2,), action=Continuous(1)), rows=2, seed=5)
    before = copy.deepcopy(agent)
    draws = {
        name: getattr(before, f"{name}_noise").normal(2, 1)
        for name in ("critic", "policy", "optimist")
    }
    found = agent.update(batch).metrics

    # (1) and (2), with the next observation and the mean of both target critics
    with torch.no_grad():
        mean, log_std = before.gaussian(batch.next_obs)
        action, log_prob = squashed_sample(mean, log_std, draws["critic"])
    w, b = (p.detach().double().numpy() for p in before.critic.net.parameters())
    x2 = torch.cat([batch.next_obs.actor, action], 1).double().numpy()
    heads = np.stack([x2 @ w[h] + b[h] for h in range(2)])
    soft = heads.mean(0) - alpha * log_prob.double().numpy()[:, None]
    y = batch.reward.double().numpy()[:, None] + batch.discount.double().numpy()[:, None] * soft

    # (3): the loss and its gradient
    x = torch.cat([batch.obs.actor, batch.action], 1).double().numpy()
    levels = (np.arange(3) + 0.5) / 3
    loss, new_w, new_b = 0.0, np.zeros_like(w), np.zeros_like(b)
    for h in range(2):
        theta = x @ w[h] + b[h]
        slope = np.zeros_like(theta)
        for row in range(2):
            for i in range(3):
                for j in range(3):
                    u = y[row, j] - theta[row, i]
                    weight = batch.weight[row].item() * abs(levels[i] - (u < 0)) / (3 * 2)
                    loss += weight * (0.5 * u * u if abs(u) <= 1 else abs(u) - 0.5)
                    slope[row, i] -= weight * np.clip(u, -1, 1)
        new_w[h], new_b[h] = (
            adamw(w[h], x.T @ slope, lr, decay),
            adamw(b[h], slope.sum(0), lr, decay),
        )
    assert found["critic/loss"].item() == pytest.approx(loss, rel=1e-4)
    got_w, got_b = (p.detach().numpy() for p in agent.critic.net.parameters())
    np.testing.assert_allclose(got_w, new_w, atol=1e-5)
    np.testing.assert_allclose(got_b, new_b, atol=1e-5)
    target_w, _ = (p.detach().numpy() for p in agent.critic_target.net.parameters())
    np.testing.assert_allclose(target_w, (1 - tau) * w + tau * new_w, atol=1e-5)  # (4)

    # (5), with the new critic
    actor = before.gaussian
    action, log_prob = actor.sample(batch.obs, draws["policy"])
    q = agent.critic(batch.obs, action).mean((0, 2))
    policy_loss = (alpha * log_prob - q).mean()
    gradients = torch.autograd.grad(policy_loss, list(actor.parameters()))
    for old, gradient, new in zip(
        actor.parameters(), gradients, agent.gaussian.parameters(), strict=True
    ):
        wanted = adamw(old.detach().numpy(), gradient.numpy(), lr, decay)
        np.testing.assert_allclose(new.detach().numpy(), wanted, atol=1e-5)
    assert found["policy/entropy"].item() == pytest.approx(-log_prob.mean().item(), rel=1e-4)

    # (6), with the new policy
    assert before.optimist is not None
    assert agent.optimist is not None
    with torch.no_grad():
        mu, log_sigma = agent.gaussian(batch.obs)
    shift = before.optimist.get_submodule("net")(torch.cat([batch.obs.actor, mu], 1))
    action = torch.tanh(mu + shift + 0.75 * log_sigma.exp() * draws["optimist"])
    q1, q2 = agent.critic(batch.obs, action)
    upper = ((q1 + q2) / 2 + 1.0 * (q1 - q2).abs() / 2).mean(-1)
    kl = (shift.square() / (2 * (2 * log_sigma).exp())).sum(-1).mean()
    gradients = torch.autograd.grad(-upper.mean() + 0.25 * kl, list(before.optimist.parameters()))
    for old, gradient, new in zip(
        before.optimist.parameters(), gradients, agent.optimist.parameters(), strict=True
    ):
        wanted = adamw(old.detach().numpy(), gradient.numpy(), lr, decay)
        np.testing.assert_allclose(new.detach().numpy(), wanted, atol=1e-5)
    assert found["optimist/kl"].item() == pytest.approx(kl.item(), rel=1e-3)

    # (7) and (8): the first step of Adam has the length of its learning rate
    sign = math.copysign(1, -log_prob.mean().item() + 0.5)
    assert agent.alpha().log().item() == pytest.approx(math.log(alpha) - 3e-4 * sign, abs=1e-6)
    sign = math.copysign(1, kl.item() - 0.05)
    for name, direction in (("optimism", -1), ("kl_weight", 1)):
        old, new = (getattr(a, name).raw.item() for a in (before, agent))
        assert new - old == pytest.approx(direction * sign * 3e-5, rel=0.02)


def test_plain_values_learn_the_squared_error() -> None:
    agent, batch = make_agent(replace(SMALL, quantiles=None)), make_batch(make_spec())
    noise = torch.zeros(6, 2)
    loss, _, aux = agent.critic_loss(batch, noise)
    with torch.no_grad():
        y = agent.target(batch, noise)[:, 0]
        q = agent.critic(batch.obs, batch.action)[..., 0]
    wanted = (batch.weight * (q - y).square()).mean(-1).sum().item()
    assert loss.item() == pytest.approx(wanted, rel=1e-5)
    torch.testing.assert_close(aux["td_error"], (q.mean(0) - y).abs())


def test_pessimism_one_learns_from_the_lower_critic() -> None:
    batch, noise = make_batch(make_spec()), torch.zeros(6, 2)
    agent = make_agent(replace(SMALL, quantiles=None, pessimism=1.0))
    with torch.no_grad():
        action, log_prob = agent.gaussian.sample(batch.next_obs, noise)
        low = agent.critic_target(batch.next_obs, action)[..., 0].amin(0)
    wanted = batch.reward + batch.discount * (low - log_prob)
    torch.testing.assert_close(agent.target(batch, noise)[:, 0], wanted)


def test_rewards_are_scaled_and_values_scaled_back() -> None:
    batch, noise = make_batch(make_spec()), torch.zeros(6, 2)
    one, large = (make_agent(replace(SMALL, reward_scale=scale)) for scale in (1.0, 3.0))
    more = large.target(batch, noise) - one.target(batch, noise)
    torch.testing.assert_close(more, (2.0 * batch.reward).unsqueeze(-1).expand(6, 8))
    q = one.q(batch.obs, batch.action)
    torch.testing.assert_close(large.q(batch.obs, batch.action), q / 3.0)


def test_the_adjusters_begin_where_they_are_told_and_follow_the_divergence() -> None:
    agent: Any = make_agent()
    assert agent.optimism().item() == pytest.approx(1.0, rel=1e-5)
    assert agent.kl_weight().item() == pytest.approx(0.25, rel=1e-5)
    for kl, rises in ((5.0, False), (0.0, True)):
        agent = make_agent()
        for _ in range(10):
            agent.step_adjusters(agent.adjuster_loss(torch.tensor(kl)))
        assert (agent.optimism() > 1.0) == rises
        assert (agent.kl_weight() < 0.25) == rises
    # KL* is per action component: twice 0.05 for two of them
    agent = make_agent()
    agent.step_adjusters(agent.adjuster_loss(torch.tensor(0.09)))
    assert agent.optimism() > 1.0


def test_the_optimist_explores_and_the_policy_is_evaluated() -> None:
    agent, obs = make_agent(), make_batch(make_spec()).obs
    assert agent.optimist is not None
    with torch.no_grad():
        for p in agent.optimist.parameters():
            p.add_(0.3)
        mean, log_std = agent.gaussian(obs)
        moved, same = agent.optimist(obs, mean, log_std)
        noise = torch.ones(6, 2)
        torch.testing.assert_close(agent.policy(obs), torch.tanh(mean))
        wanted = torch.tanh(moved + 0.75 * log_std.exp() * noise)
        torch.testing.assert_close(agent.behaviour(obs, noise), wanted)
    assert torch.equal(same, log_std)
    assert (moved - mean).abs().min() > 1e-3


def test_the_optimist_starts_next_to_the_policy() -> None:
    agent, obs = make_agent(), make_batch(make_spec()).obs
    assert agent.optimist is not None
    with torch.no_grad():
        mean, log_std = agent.gaussian(obs)
        assert (agent.optimist(obs, mean, log_std)[0] - mean).abs().max() < 0.1


@pytest.mark.parametrize("optimist", [SMALL.optimist, IndependentConfig(net=TINY)])
def test_the_optimists_loss_trains_nobody_else(optimist: Any) -> None:
    agent, obs = make_agent(replace(SMALL, optimist=optimist)), make_batch(make_spec()).obs
    loss, *_ = agent.optimist_loss(obs, torch.zeros(6, 2))
    others = [*agent.gaussian.parameters(), *agent.optimism.parameters()]
    gradients = torch.autograd.grad(loss, others, allow_unused=True, retain_graph=True)
    assert all(gradient is None for gradient in gradients)
    assert agent.optimist is not None
    own = torch.autograd.grad(loss, list(agent.optimist.parameters()))
    assert any(gradient.abs().sum() > 0 for gradient in own)
    critic = {k: v.clone() for k, v in agent.critic.state_dict().items()}
    agent.update_actors(obs)
    assert all(torch.equal(v, critic[k]) for k, v in agent.critic.state_dict().items())


def test_a_reset_starts_everything_anew_and_keeps_the_replay(tmp_path: Path) -> None:
    recipe = recipes.get("bro/pendulum")
    agent = replace(SMALL, resets=(45,))
    pace = replace(recipe.pace, updates_per_vec_step=0.5, warmup_vec_steps=10)
    recipe = replace(recipe, agent=agent, pace=pace, batch_size=8, num_envs=1)
    with open_run(recipe, tmp_path, None) as (journal, parts):
        learner = parts.agent
        assert isinstance(learner, BRO)
        fresh = weights(learner)
        steps = in_turns(journal, parts, parts.learner(journal))
        for _ in range(44):
            next(steps)
        before = weights(learner)
        assert all(
            not torch.equal(before[k], v) for k, v in fresh.items() if k.endswith("w1.weight")
        )
        for name in ("alpha", "optimism", "kl_weight"):
            key = next(k for k in fresh if k.startswith(f"{name}."))
            assert not torch.equal(before[key], fresh[key])
        next(steps)  # the 45th: no update is due after it
        assert parts.replay.size == 45
        assert all(torch.equal(v, fresh[k]) for k, v in weights(learner).items())
        for name in ("step_critic", "step_policy", "step_optimist", "step_alpha", "step_adjusters"):
            stepper = getattr(learner, name)
            assert stepper.steps == 0
            kept = [v for state in stepper.optimizer.state.values() for v in state.values()]
            assert kept
            assert all(v.count_nonzero() == 0 for v in kept)
        next(steps)
        assert any(not torch.equal(v, fresh[k]) for k, v in weights(learner).items())
        steps.close()


def test_bro_minimal_explores_with_its_policy_and_never_resets() -> None:
    cfg = recipes.get("bro_minimal/pendulum").agent
    assert isinstance(cfg, BROConfig)
    agent = cfg.build(make_spec(), gamma=0.9, total_updates=100, seed=0, device=CPU)
    found = agent.update(make_batch(make_spec())).metrics
    assert not any(name.startswith("optimist") for name in found)
    assert cfg.resets == ()
    obs = make_batch(make_spec()).obs
    torch.testing.assert_close(agent.behaviour(obs, torch.zeros(6, 2)), agent.policy(obs))


def test_the_published_settings() -> None:
    full, fast = recipes.get("bro/walker-run"), recipes.get("bro_fast/walker-run")
    for recipe, updates in ((full, 10), (fast, 2)):
        pace = recipe.pace.build()
        owed = [pace.owed() for _ in range(2_501)]
        assert owed[2_498:] == [0, updates, updates]  # from env step 2,500 on
    assert isinstance(full.agent, BROConfig)
    assert isinstance(fast.agent, BROConfig)
    assert len(full.agent.resets) == 8
    assert fast.agent.resets == (15_001,)
    assert full.agent.critic_optim.weight_decay == 1e-4
    spec = make_spec(obs_shape=(24,), action=Continuous(6))
    agent = full.agent.build(spec, gamma=0.99, total_updates=1, seed=0, device=CPU)
    one = 512 * 30 + 1536 + 4 * (512**2 + 3 * 512) + 51_300
    assert sum(p.numel() for p in agent.critic.parameters()) == 2 * one


def test_saved_and_restored_agents_go_on_exactly() -> None:
    cfg = replace(SMALL, resets=(20,))  # five vec steps of four environments
    one, two = make_agent(cfg, seed=0), make_agent(cfg, seed=0)
    for seed in range(3):
        one.observe(make_transition(make_spec(), seed))
        one.update(make_batch(make_spec(), seed=seed))
    two.load_state_dict(copy.deepcopy(one.state_dict()))
    for seed in range(3, 7):
        for agent in (one, two):
            agent.observe(make_transition(make_spec(), seed))
            agent.update(make_batch(make_spec(), seed=seed))
    assert two.updates == 7
    second = weights(two)
    assert all(torch.equal(value, second[name]) for name, value in weights(one).items())


def test_wrong_input() -> None:
    with pytest.raises(UserError, match="quantiles"):
        make_agent(replace(SMALL, quantiles=0))
    with pytest.raises(UserError, match="std_factor"):
        make_agent(replace(SMALL, std_factor=0.0))
    with pytest.raises(UserError, match="continuous actions"):
        make_agent(action=Discrete(3))


@pytest.mark.learning
@pytest.mark.slow
def test_learns_the_pendulum(tmp_path: Path) -> None:
    recipe = replace(recipes.get("bro/pendulum"), threads=1)
    assert train_until(recipe, tmp_path / "run", -200).best_return >= -200


@pytest.mark.slow
@pytest.mark.learning
def test_learns_from_one_environment_at_replay_ratio_two(tmp_path: Path) -> None:
    """Critics twice as wide as the policy."""
    recipe = recipes.get("bro/pendulum")
    assert isinstance(recipe.agent, BROConfig)
    agent = replace(recipe.agent, critic_net=BroNetConfig(width=128, blocks=1))
    recipe = replace(recipe, agent=agent, num_envs=1, total_vec_steps=2_000)
    assert train(recipe, tmp_path / "run").best_return >= -200
