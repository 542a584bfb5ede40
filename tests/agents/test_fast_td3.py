from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fleetfoot.agents.fast_td3 import FastTD3, FastTD3Config
from fleetfoot.data import Continuous, Discrete, EnvSpec, Obs
from fleetfoot.errors import UserError
from fleetfoot.nn.mlp import MLPConfig
from fleetfoot.nn.simba import SimbaV2Config
from fleetfoot.optim import AdamWConfig
from support.made_up import CPU, make_batch, make_spec, make_transition, parameters

SMALL = FastTD3Config(
    v_min=-5.0,
    v_max=5.0,
    num_atoms=11,
    policy_net=MLPConfig(hidden=(16,)),
    critic_net=MLPConfig(hidden=(32,)),
)


def make_agent(cfg: FastTD3Config = SMALL, spec: EnvSpec | None = None, seed: int = 0) -> FastTD3:
    return cfg.build(spec or make_spec(), gamma=0.9, total_updates=100, seed=seed, device=CPU)


def weights(agent: FastTD3) -> list[torch.Tensor]:
    return parameters(agent.policy, agent.critic, agent.critic_target)


def test_one_update_by_hand() -> None:
    """Linear networks, two rows, every number computed again with numpy in float64."""
    lr, decay, tau, noise_clip = 0.01, 0.1, 0.25, 0.05
    optim = AdamWConfig(lr=lr, lr_end=lr, weight_decay=decay)
    cfg = FastTD3Config(
        v_min=-1.0,
        v_max=1.0,
        num_atoms=3,
        tau=tau,
        policy_every=1,
        policy_noise=0.1,
        noise_clip=noise_clip,
        normalize_obs=False,
        policy_net=MLPConfig(hidden=()),
        critic_net=MLPConfig(hidden=()),
        policy_optim=optim,
        critic_optim=optim,
    )
    spec = make_spec(obs_shape=(2,), action=Continuous(1))
    agent = make_agent(cfg, spec)
    batch = make_batch(spec, rows=2, seed=5)
    state = copy.deepcopy(agent.critic_noise.generator.get_state())
    xi = torch.randn(2, 1, generator=agent.critic_noise.generator).double().numpy()
    agent.critic_noise.generator.set_state(state)
    double = {
        n: [p.detach().double().numpy().copy() for p in getattr(agent, n).net.parameters()]
        for n in ("policy", "critic", "critic_target")
    }
    z = np.array([-1.0, 0.0, 1.0])
    s, a, s2 = (x.double().numpy() for x in (batch.obs.actor, batch.action, batch.next_obs.actor))
    reward, discount = batch.reward.double().numpy(), batch.discount.double().numpy()
    weight = batch.weight.double().numpy()

    def softmax(x: Any) -> Any:
        e = np.exp(x - x.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)

    def logits(which: str, head: int, x: Any) -> Any:
        w, b = double[which]
        return x @ w[head] + b[head]

    wp, bp = double["policy"]
    noise = np.clip(0.1 * xi, -noise_clip, noise_clip)
    a2 = np.clip(np.tanh(s2 @ wp + bp) + noise, -1, 1)  # (1)
    x2 = np.concatenate([s2, a2], 1)
    target = np.zeros((2, 3))
    for row in range(2):
        y = np.clip(reward[row] + discount[row] * z, -1, 1)  # (2)
        heads = [softmax(logits("critic_target", h, x2[row])) for h in (0, 1)]
        kept = heads[int(np.argmin([p @ y for p in heads]))]  # (3)
        for mass, place in zip(kept, y, strict=True):
            for k in range(3):
                target[row, k] += mass * max(0.0, 1 - abs(place - z[k]))
    x = np.concatenate([s, a], 1)

    def adamw(old: Any, gradient: Any) -> Any:
        """The first step: both moments are the gradient's own, so only its sign remains."""
        return old * (1 - lr * decay) - lr * gradient / (np.abs(gradient) + 1e-8)

    new_w, new_b = np.empty_like(double["critic"][0]), np.empty_like(double["critic"][1])
    for head in (0, 1):  # (4): the gradient of the mean cross-entropy with respect to the logits
        error = weight[:, None] * (softmax(logits("critic", head, x)) - target) / 2
        new_w[head] = adamw(double["critic"][0][head], x.T @ error)
        new_b[head] = adamw(double["critic"][1][head], error.sum(0))
    entropies = [-(target * np.log(softmax(logits("critic", h, x)))).sum(-1) for h in (0, 1)]
    loss = sum((weight * entropy).mean() for entropy in entropies)
    old_target = [v.copy() for v in double["critic_target"]]
    double["critic"] = [new_w, new_b]
    pi = np.tanh(s @ wp + bp)
    xp = np.concatenate([s, pi], 1)
    grad_u = np.zeros((2, 1))
    for row in range(2):  # (5): climb the smaller of the two means, of the critic just updated
        p = [softmax(logits("critic", h, xp[row])) for h in (0, 1)]
        head = int(np.argmin([q @ z for q in p]))
        dq_dlogits = p[head] * (z - p[head] @ z)
        dq_da = new_w[head][2] @ dq_dlogits
        grad_u[row, 0] = -0.5 * dq_da * (1 - pi[row, 0] ** 2)

    learned = agent.update(batch)

    assert learned.metrics["critic/loss"].item() == pytest.approx(loss, rel=1e-5)
    got = [p.detach().double().numpy() for p in agent.critic.net.parameters()]
    np.testing.assert_allclose(got[0], new_w, atol=2e-6)
    np.testing.assert_allclose(got[1], new_b, atol=2e-6)
    followed = [p.detach().double().numpy() for p in agent.critic_target.net.parameters()]
    for old, new, seen in zip(old_target, (new_w, new_b), followed, strict=True):
        np.testing.assert_allclose(seen, (1 - tau) * old + tau * new, atol=2e-6)  # (6)
    got = [p.detach().double().numpy() for p in agent.policy.net.parameters()]
    np.testing.assert_allclose(got[0], adamw(wp, s.T @ grad_u), atol=2e-6)
    np.testing.assert_allclose(got[1], adamw(bp, grad_u.sum(0)), atol=2e-6)


def test_clipped_double_q_keeps_the_whole_distribution_of_the_lower_head() -> None:
    agent = make_agent()
    batch = make_batch(make_spec(), rows=40)._replace(
        reward=torch.zeros(40), discount=torch.ones(40)
    )
    xi = torch.zeros(40, 2)
    kept, _ = agent.target_distribution(batch, xi)
    action = agent.policy(batch.next_obs).detach()
    heads = agent.critic_target(batch.next_obs, action).softmax(-1)
    means = heads @ agent.z
    lower = means.argmin(0)
    assert 0 < int(lower.sum()) < 40, (
        "both heads must be chosen somewhere for this to test anything"
    )
    wanted = torch.stack([heads[lower[i], i] for i in range(40)])
    torch.testing.assert_close(kept, wanted, atol=1e-5, rtol=1e-4)
    elementwise = heads.amin(0)
    assert (kept - elementwise).abs().max() > 1e-3

    both, _ = make_agent(replace(SMALL, clipped_double_q=False)).target_distribution(batch, xi)
    torch.testing.assert_close(both, heads, atol=1e-5, rtol=1e-4)


def test_without_clipped_double_q_the_policy_climbs_the_mean_of_the_heads() -> None:
    batch = make_batch(make_spec(), rows=40)
    for lowest in (True, False):
        agent = make_agent(replace(SMALL, clipped_double_q=lowest))
        with torch.no_grad():
            q = agent.critic(batch.obs, agent.policy(batch.obs)).softmax(-1) @ agent.z
        wanted = -(q.amin(0) if lowest else q.mean(0)).mean().item()
        assert agent.policy_loss(batch.obs).loss.item() == pytest.approx(wanted, abs=1e-5)
        assert q.amin(0).mean().item() < q.mean().item() - 1e-3


def test_every_schedule_ends_with_the_run() -> None:
    falling = AdamWConfig(lr=1e-2, lr_end=1e-3)
    cfg = replace(SMALL, policy_every=2, policy_optim=falling, critic_optim=falling)
    agent = cfg.build(make_spec(), gamma=0.9, total_updates=6, seed=0, device=CPU)
    for seed in range(6):
        agent.update(make_batch(make_spec(), seed=seed))
    for step in (agent.step_policy, agent.step_critic):
        assert step.lr.item() == pytest.approx(1e-3)


def test_the_choice_is_by_the_mean_after_clipping_to_the_support() -> None:
    """A head with a fat upper tail loses it to the clip, and with it the comparison."""
    agent = make_agent(replace(SMALL, num_atoms=3))
    batch = make_batch(make_spec(), rows=1)._replace(
        reward=torch.tensor([4.0]), discount=torch.ones(1)
    )

    class Planted(torch.nn.Module):
        def forward(self, obs: Obs, action: torch.Tensor) -> torch.Tensor:
            wide, narrow = torch.tensor([0.45, 0.0, 0.55]), torch.tensor([0.2, 0.65, 0.15])
            return torch.stack([wide, narrow]).clamp(min=1e-9).log().unsqueeze(1)

    agent.critic_target = Planted()  # type: ignore[assignment]
    # Before the clip: 0.5 against -0.25. After it (atoms at -1, 4, 5): 2.3 against 3.15.
    target, _ = agent.target_distribution(batch, torch.zeros(1, 2))
    assert float(target[0] @ agent.z) == pytest.approx(2.3, abs=1e-4)


def test_terminated_rows_learn_the_reward_alone() -> None:
    agent = make_agent()
    batch = make_batch(make_spec(), rows=3)._replace(
        reward=torch.tensor([1.0, -2.0, 9.0]), discount=torch.zeros(3)
    )
    target, _ = agent.target_distribution(batch, torch.zeros(3, 2))
    assert (target @ agent.z).tolist() == pytest.approx([1.0, -2.0, 5.0], abs=1e-5)
    assert target[0].max().item() == pytest.approx(1.0)


@pytest.mark.parametrize("every", [1, 2, 3])
def test_the_policy_learns_every_so_many_updates(every: int) -> None:
    agent = make_agent(replace(SMALL, policy_every=every))
    for seed in range(6):
        before = [p.detach().clone() for p in agent.policy.parameters()]
        learned = agent.update(make_batch(make_spec(), seed=seed))
        changed = any(
            not torch.equal(a, b) for a, b in zip(before, agent.policy.parameters(), strict=True)
        )
        assert changed == ("policy/loss" in learned.metrics) == (agent.updates % every == 0)


def test_updates_do_not_touch_statistics_and_observing_does() -> None:
    spec = make_spec(critic_shape=(5,))
    agent = make_agent(spec=spec)
    agent.update(make_batch(spec))
    assert agent.norms.actor.state_dict()["count"].item() == 0
    fresh = make_transition(spec)
    agent.observe(fresh)
    torch.testing.assert_close(agent.norms.actor.mean.float(), fresh.obs.actor.mean(0))
    torch.testing.assert_close(agent.norms.critic.mean.float(), fresh.obs.critic.mean(0))
    assert agent.critic_target.encoder.norm is agent.critic.encoder.norm


def test_the_policy_never_sees_what_is_privileged() -> None:
    spec = make_spec(critic_shape=(5,))
    agent = make_agent(spec=spec)
    batch = make_batch(spec)
    other = batch.obs._replace(critic=batch.obs.critic + 1)
    assert torch.equal(agent.policy(batch.obs), agent.policy(other))
    assert not torch.equal(agent.critic(batch.obs, batch.action), agent.critic(other, batch.action))


def test_tasks_have_embeddings_that_learn_and_stay_short() -> None:
    spec = make_spec(tasks=("a", "b"), task_ids=(0, 1, 0, 1))
    cfg = replace(SMALL, policy_every=1, normalize_reward=True)
    agent = make_agent(cfg, spec)
    before: list[Any] = [agent.policy.encoder.embed, agent.critic.encoder.embed]
    rows = [e.weight.detach().clone() for e in before if e is not None]
    agent.observe(make_transition(spec))
    agent.update(make_batch(spec))
    for embed, row in zip(before, rows, strict=True):
        assert embed is not None
        assert not torch.equal(embed.weight, row)
        assert float(embed.weight.detach().norm(dim=-1).max()) <= 1 + 1e-5
    assert agent.reward_scale is not None
    assert agent.reward_scale.divisor.shape == (2,)


def test_reward_normalisation_divides_the_folded_reward() -> None:
    agent = make_agent(replace(SMALL, normalize_reward=True))
    assert agent.reward_scale is not None
    agent.reward_scale.divisor.fill_(4.0)
    batch = make_batch(make_spec(), rows=1)._replace(
        reward=torch.tensor([8.0]), discount=torch.zeros(1)
    )
    target, _ = agent.target_distribution(batch, torch.zeros(1, 2))
    assert float(target[0] @ agent.z) == pytest.approx(2.0, abs=1e-5)


def test_rows_of_weight_zero_teach_nothing() -> None:
    batch = make_batch(make_spec(), rows=6)
    weight = torch.tensor([1.0, 1.0, 1.0, 0.0, 0.0, 0.0])
    spoiled = batch._replace(weight=weight, reward=batch.reward + 100 * (1 - weight))
    one, two = make_agent(), make_agent()
    one.update_critic(batch._replace(weight=weight))
    two.update_critic(spoiled)
    assert all(torch.equal(a, b) for a, b in zip(weights(one), weights(two), strict=True))


@pytest.mark.parametrize("net", [MLPConfig(hidden=(16,)), SimbaV2Config(width=8, blocks=1)])
def test_saved_and_restored_agents_go_on_exactly(net: Any) -> None:
    cfg = replace(SMALL, policy_net=net, critic_net=net, normalize_reward=True)
    one, two = make_agent(cfg, seed=0), make_agent(cfg, seed=1)
    for seed in range(3):
        one.observe(make_transition(make_spec(), seed))
        one.update(make_batch(make_spec(), seed=seed))
    two.load_state_dict(copy.deepcopy(one.state_dict()))
    for seed in range(3, 6):
        for agent in (one, two):
            agent.observe(make_transition(make_spec(), seed))
            agent.update(make_batch(make_spec(), seed=seed))
    assert all(torch.equal(a, b) for a, b in zip(weights(one), weights(two), strict=True))


def test_building_and_updating_leave_the_global_random_state_alone() -> None:
    before = torch.get_rng_state()
    make_agent().update(make_batch(make_spec()))
    assert torch.equal(before, torch.get_rng_state())


def test_wrong_input() -> None:
    with pytest.raises(UserError, match="v_min"):
        make_agent(replace(SMALL, v_min=3.0, v_max=3.0))
    with pytest.raises(UserError, match="continuous actions"):
        make_agent(spec=make_spec(action=Discrete(3)))
