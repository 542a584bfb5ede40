from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fleetfoot import checkpoint, recipes
from fleetfoot.agents.ddpg import DDPG, DDPGConfig
from fleetfoot.api import resume, train
from fleetfoot.data import Continuous, Discrete, EnvSpec, Obs
from fleetfoot.errors import UserError
from fleetfoot.explore import EpsilonLadderConfig
from fleetfoot.nn.mlp import MLPConfig
from fleetfoot.ops.clip_gradient import clip_gradient
from fleetfoot.optim import AdamConfig, LocalStepper
from support.made_up import (
    CPU,
    QUIET,
    make_batch,
    make_spec,
    make_transition,
    parameters,
    small_run,
)
from support.train_until import train_until

SMALL = DDPGConfig(
    num_critics=2,
    target_every=3,
    policy_noise=0.1,
    policy_net=MLPConfig(hidden=(16,)),
    critic_net=MLPConfig(hidden=(32,)),
    policy_optim=AdamConfig(lr=1e-2),
    critic_optim=AdamConfig(lr=1e-2),
)
CATEGORICAL = replace(SMALL, num_atoms=11, v_min=-5.0, v_max=5.0)


def make_agent(cfg: DDPGConfig = SMALL, spec: EnvSpec | None = None, seed: int = 0) -> DDPG:
    return cfg.build(spec or make_spec(), gamma=0.9, total_updates=100, seed=seed, device=CPU)


def weights(agent: DDPG) -> list[torch.Tensor]:
    return parameters(agent.policy, agent.critic, agent.policy_target, agent.critic_target)


def same(one: list[torch.Tensor], two: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize("bound", [None, 0.1])
def test_one_update_by_hand(bound: float | None) -> None:
    """Linear networks, twin critics, every number computed again with numpy in float64."""
    lr, tau, noise_clip = 0.01, 0.25, 0.05
    cfg = DDPGConfig(
        num_critics=2,
        target_every=1,
        tau=tau,
        policy_noise=0.1,
        noise_clip=noise_clip,
        max_action_gradient=bound,
        reward_scale=0.5,
        policy_net=MLPConfig(hidden=()),
        critic_net=MLPConfig(hidden=()),
        policy_optim=AdamConfig(lr=lr),
        critic_optim=AdamConfig(lr=lr),
    )
    spec = make_spec(obs_shape=(2,), action=Continuous(1))
    agent = make_agent(cfg, spec)
    with (
        torch.no_grad()
    ):  # targets that differ, and critics of which each is the smaller one somewhere
        for module in (agent.critic_target, agent.policy_target):
            for parameter in module.parameters():
                parameter.add_(torch.linspace(-0.6, 0.6, parameter.numel()).view_as(parameter))
    batch = make_batch(spec, rows=5, seed=3)
    state = agent.critic_noise.generator.get_state()
    xi = torch.randn(5, 1, generator=agent.critic_noise.generator).double().numpy()
    agent.critic_noise.generator.set_state(state)
    names = ("policy", "critic", "policy_target", "critic_target")
    old = {
        n: [p.detach().double().numpy().copy() for p in getattr(agent, n).net.parameters()]
        for n in names
    }
    s, a, s2, reward, discount, weight = (
        x.double().numpy()
        for x in (
            batch.obs.actor,
            batch.action,
            batch.next_obs.actor,
            batch.reward,
            batch.discount,
            batch.weight,
        )
    )

    def act(parameters: Any, x: Any) -> Any:
        return np.tanh(x @ parameters[0] + parameters[1])

    def q(parameters: Any, x: Any, action: Any) -> Any:
        both = np.concatenate([x, action], 1)
        return np.stack([both @ w[:, 0] + b[0] for w, b in zip(*parameters, strict=True)])

    def adam(weight: Any, gradient: Any) -> Any:
        return weight - lr * gradient / (np.abs(gradient) + 1e-8)  # its first step

    noise = np.clip(0.1 * xi, -noise_clip, noise_clip)
    a2 = np.clip(act(old["policy_target"], s2) + noise, -1, 1)  # (1)
    heads = q(old["critic_target"], s2, a2)
    assert 0 < heads.argmin(0).sum() < 5
    y = 0.5 * reward + discount * heads.min(0)  # (2)
    delta = y - q(old["critic"], s, a)
    loss = (weight * delta**2 / 2).mean(1).sum()  # (3)
    both = np.concatenate([s, a], 1)
    error = -weight * delta / 5
    gradients = [np.stack([both.T @ e[:, None] for e in error]), error.sum(1)[:, None]]
    critic = [adam(w, g) for w, g in zip(old["critic"], gradients, strict=True)]
    pi = act(old["policy"], s)
    lower = q(critic, s, pi).argmin(0)  # (4): of the critics just updated
    dq_da = critic[0][lower, 2]  # [B, 1]
    if bound is not None:
        assert 0 < (np.abs(dq_da) > bound).sum() < 5
        dq_da = np.clip(dq_da, -bound, bound)
    slope = -dq_da / 5 * (1 - pi**2)
    policy_gradients = [s.T @ slope, slope.sum(0)]
    policy = [adam(w, g) for w, g in zip(old["policy"], policy_gradients, strict=True)]

    step = agent.step_critic
    assert isinstance(step, LocalStepper)
    seen = step.gradients(agent.critic_loss(batch, torch.tensor(xi).float()).loss)
    for got, wanted in zip(seen, gradients, strict=True):
        np.testing.assert_allclose(got.numpy(), wanted, atol=1e-6)
    learned = agent.update(batch)

    assert learned.metrics["critic/loss"].item() == pytest.approx(loss, rel=1e-5)
    assert learned.td_error is not None
    np.testing.assert_allclose(learned.td_error.numpy(), np.abs(delta).mean(0), atol=1e-6)
    norm = np.sqrt(sum((g**2).sum() for g in policy_gradients))
    assert learned.metrics["policy/grad_norm"].item() == pytest.approx(norm, rel=1e-4)
    followed = {
        "policy": policy,
        "critic": critic,
        "critic_target": [
            (1 - tau) * w + tau * new for w, new in zip(old["critic_target"], critic, strict=True)
        ],
        "policy_target": [  # [2]: before the policy's own update
            (1 - tau) * w + tau * new
            for w, new in zip(old["policy_target"], old["policy"], strict=True)
        ],
    }
    for name in names:
        for parameter, wanted in zip(
            getattr(agent, name).net.parameters(), followed[name], strict=True
        ):
            np.testing.assert_allclose(parameter.detach().numpy(), wanted, atol=2e-6, err_msg=name)


def test_clipped_gradients_are_the_identity_forward() -> None:
    x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    (clip_gradient(x, 0.5) * torch.tensor([0.25, -2.0, 7.0])).sum().backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None
    assert x.grad.tolist() == [0.25, -0.5, 0.5]
    assert torch.equal(clip_gradient(x, 0.5), x)


class Planted(nn.Module):
    """Critics that say what they were told, [E, 1, K]."""

    def __init__(self, probs: list[list[float]]):
        super().__init__()
        self.logits = torch.tensor(probs).clamp(min=1e-12).log().unsqueeze(1)

    def forward(self, obs: Obs, action: torch.Tensor) -> torch.Tensor:
        return self.logits


HEADS = [[0.2, 0.6, 0.2], [0.5, 0.0, 0.5]]  # means 0 and 0, and after the shift below 0.4 and 0.25


def test_twin_distributions_by_hand() -> None:
    """Atoms at -1, 0, 1 moved by +0.5: they land at -0.5, 0.5 and (clipped) 1."""
    batch = make_batch(rows=1)._replace(reward=torch.tensor([0.5]), discount=torch.ones(1))
    cfg = replace(CATEGORICAL, num_atoms=3, v_min=-1.0, v_max=1.0)
    projected = [[0.1, 0.4, 0.5], [0.25, 0.25, 0.5]]
    for twin, wanted in (("lowest_mean", projected[1]), ("published", [0.1, 0.25, 0.5])):
        agent = make_agent(replace(cfg, twin=twin))  # type: ignore[arg-type]
        agent.critic_target = Planted(HEADS)  # type: ignore[assignment]
        assert agent.z is not None
        target, _ = agent.target_distribution(batch, torch.zeros(1, 2), agent.z)
        assert target[0].tolist() == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize("size", [0.01, 1.0, 100.0])
def test_pql_clips_the_critics_gradient_where_the_published_loss_would(size: float) -> None:
    """PQL's loss has no factor 1/2, and its gradient is clipped to 0.5. Adam does not see a common factor."""
    cfg = recipes.get("pql/pendulum-published").agent
    assert isinstance(cfg, DDPGConfig)
    agent, batch = make_agent(cfg), make_batch(rows=8)
    loss = size * agent.critic_loss(batch, torch.zeros(8, 2)).loss
    assert isinstance(agent.step_critic, LocalStepper)
    halved = agent.step_critic.gradients(loss)
    published = [2.0 * gradient for gradient in halved]
    optim: Any = cfg.critic_optim
    for gradients, bound in ((halved, optim.max_grad_norm), (published, 0.5)):
        norm = torch.nn.utils.get_total_norm(gradients)
        torch._foreach_mul_(gradients, (bound / norm).clamp(max=1.0))
    for ours, theirs in zip(halved, published, strict=True):
        torch.testing.assert_close(2.0 * ours, theirs)


def test_published_distance_is_the_binary_cross_entropy() -> None:
    random = torch.Generator().manual_seed(0)
    target, logits = (
        torch.rand(4, 11, generator=random) / 11,
        torch.randn(2, 4, 11, generator=random),
    )
    published = DDPG.binary_cross_entropy(logits, target)
    probs = logits.softmax(-1)
    wanted = nn.functional.binary_cross_entropy(probs, target.expand_as(probs), reduction="none")
    torch.testing.assert_close(published, wanted.mean(-1))
    sure = torch.tensor([[[100.0, 0.0, 0.0]]], requires_grad=True)
    DDPG.binary_cross_entropy(sure, torch.zeros(1, 3)).sum().backward()  # type: ignore[no-untyped-call]
    assert sure.grad is not None
    assert bool(torch.isfinite(sure.grad).all())


def test_hard_copies_of_both_targets_come_every_so_many_updates() -> None:
    agent = make_agent()
    policy, critic = len(list(agent.policy.parameters())), len(list(agent.critic.parameters()))
    cut = policy + critic
    targets = weights(agent)[cut:]
    for update in range(1, 7):
        before = weights(agent)[:policy]
        agent.update(make_batch(seed=update))
        now = weights(agent)
        if update % 3 == 0:
            assert same(now[cut:], before + now[policy:cut])
        else:
            assert same(now[cut:], targets)
        targets = now[cut:]


def test_without_a_target_policy_the_policy_itself_proposes() -> None:
    agent = make_agent(replace(SMALL, target_policy=False))
    assert agent.policy_target is agent.policy
    assert "policy_target" not in agent.state_dict()
    batch, still = make_batch(), torch.zeros(6, 2)
    before = agent.target(batch, still)
    agent.update_policy(batch.obs)
    assert not torch.equal(before, agent.target(batch, still))
    slow = make_agent()
    before = slow.target(batch, still)
    slow.update_policy(batch.obs)
    assert torch.equal(before, slow.target(batch, still))


@pytest.mark.parametrize("cfg", [SMALL, CATEGORICAL, replace(CATEGORICAL, twin="published")])
def test_a_single_step_task_is_learned(cfg: DDPGConfig) -> None:
    """Reward 1 - |a - (0.5, -0.5)|^2, no future: the policy must find the best action."""
    agent: Any = make_agent(cfg)
    best = torch.tensor([0.5, -0.5])
    for seed in range(500):
        batch = make_batch(rows=64, seed=seed)
        reward = 1 - (batch.action - best).square().sum(1)
        agent.update(batch._replace(reward=reward, discount=torch.zeros(64)))
    action = agent.policy(make_batch(seed=1000, rows=50).obs)
    assert (action - best).abs().mean().item() < 0.15


@pytest.mark.parametrize("every", [1, 2])
def test_the_policy_learns_every_so_many_updates(every: int) -> None:
    agent = make_agent(replace(SMALL, policy_every=every))
    learned = [agent.update(make_batch(seed=seed)) for seed in range(6)]
    told = ["policy/loss" in each.metrics for each in learned]
    assert told == [(update + 1) % every == 0 for update in range(6)]


def test_policy_updates_leave_the_critics_alone_and_the_other_way_round() -> None:
    agent = make_agent()
    policy = len(list(agent.policy.parameters()))
    before = weights(agent)
    agent.update_policy(make_batch().obs)
    between = weights(agent)
    assert same(before[policy:], between[policy:])
    assert not any(
        torch.equal(a, b) for a, b in zip(before[:policy], between[:policy], strict=True)
    )
    agent.update_critic(make_batch())
    assert same(between[:policy], weights(agent)[:policy])


def test_clamped_observations() -> None:
    spec = make_spec(critic_shape=(5,))
    cfg = replace(SMALL, normalize_obs=True, obs_clamp=0.5, target_policy=False)
    agent = make_agent(cfg, spec)
    agent.observe(make_transition(spec))
    torch.testing.assert_close(
        agent.norms.critic.state_dict()["mean"].float(), make_transition(spec).obs.critic.mean(0)
    )
    far = Obs(torch.full((2, 3), 100.0), torch.full((2, 5), -100.0))
    farther = Obs(far.actor * 2, far.critic * 2)
    assert torch.equal(agent.policy(far), agent.policy(farther))
    assert torch.equal(agent.critic(far, torch.ones(2, 2)), agent.critic(farther, torch.ones(2, 2)))
    assert agent.critic.encoder(far).unique().tolist() == [-0.5]
    assert agent.critic_target.encoder.norm is agent.critic.encoder.norm


def test_activations_by_name() -> None:
    net = MLPConfig(hidden=(4, 4), activation=("tanh", "elu")).build(3, 2)
    kinds = [type(m) for m in net.modules() if isinstance(m, (nn.ReLU, nn.ELU, nn.Tanh))]
    assert kinds == [nn.Tanh, nn.ELU]
    for wrong in ((), ("tanh", "elu", "relu"), ("gelu",)):
        with pytest.raises(UserError, match="activation"):
            MLPConfig(hidden=(4, 4), activation=wrong).build(3, 2)  # type: ignore[arg-type]


@pytest.mark.parametrize("cfg", [SMALL, CATEGORICAL])
def test_rows_of_weight_zero_teach_the_critics_nothing(cfg: DDPGConfig) -> None:
    weight = torch.tensor([1.0, 1.0, 1.0, 0.0, 0.0, 0.0])
    batch = make_batch()._replace(weight=weight)
    one, two = make_agent(cfg), make_agent(cfg)
    one.update_critic(batch)
    two.update_critic(batch._replace(reward=batch.reward + 100 * (1 - weight)))
    assert same(weights(one), weights(two))


@pytest.mark.parametrize(
    "cfg",
    [
        replace(SMALL, normalize_obs=True, obs_clamp=5.0),
        replace(CATEGORICAL, target_policy=False, target_every=1, tau=0.05),
    ],
)
def test_saved_and_restored_agents_go_on_exactly(cfg: DDPGConfig) -> None:
    one, two = make_agent(cfg, seed=0), make_agent(cfg, seed=1)
    for seed in range(4):  # not a multiple of target_every
        one.observe(make_transition(seed=seed))
        one.update(make_batch(seed=seed))
    two.load_state_dict(copy.deepcopy(one.state_dict()))
    for seed in range(4, 9):
        for agent in (one, two):
            agent.observe(make_transition(seed=seed))
            agent.update(make_batch(seed=seed))
    assert same(weights(one), weights(two))


def test_building_and_updating_leave_the_global_random_state_alone() -> None:
    before = torch.get_rng_state()
    make_agent().update(make_batch())
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"num_critics": 0}, "critics"),
        ({"target_every": 0}, "target_every"),
        ({"policy_every": 0}, "policy_every"),
        ({"tau": 1.5}, "tau"),
        ({"num_atoms": 1}, "atoms"),
        ({"num_atoms": 3, "v_max": -10.0}, "v_min"),
        ({"obs_clamp": 0.0}, "obs_clamp"),
        ({"max_action_gradient": -1.0}, "max_action_gradient"),
    ],
)
def test_settings_that_cannot_work_are_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        make_agent(replace(SMALL, **changes))


def test_wrong_environments_and_explorers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="continuous actions"):
        make_agent(spec=make_spec(action=Discrete(3)))
    with pytest.raises(UserError, match="NoiseLadderConfig"):
        train(small_run("ddpg/pendulum", explorer=EpsilonLadderConfig()), tmp_path / "run")


def test_a_resumed_run_ends_with_the_same_weights(tmp_path: Path) -> None:
    recipe = small_run("ddpg/pendulum", agent=SMALL, total_vec_steps=90)
    train(recipe, tmp_path / "whole")
    train(replace(recipe, total_vec_steps=53), tmp_path / "parts")
    resume(tmp_path / "parts", total_vec_steps=90)
    one, two = (checkpoint.load(tmp_path / k).state["agent"] for k in ("whole", "parts"))
    assert one["updates"] == two["updates"] == 140
    for name in ("policy", "critic", "critic_target", "policy_target"):
        assert len(one[name]) >= 4
        assert all(torch.equal(one[name][k], two[name][k]) for k in one[name])


@pytest.mark.learning
@pytest.mark.parametrize(
    # A policy that has learned nothing has about -1,200; one that swings the pendulum up, -200.
    "enough",
    [-600, pytest.param(-200, marks=pytest.mark.slow)],
)
def test_solves_the_pendulum(enough: int, tmp_path: Path) -> None:
    recipe = recipes.get("ddpg/pendulum")
    recipe = replace(recipe, log=QUIET, device="cpu", threads=1, total_vec_steps=1000)
    assert train_until(recipe, tmp_path / "run", enough, every=75).best_return >= enough
