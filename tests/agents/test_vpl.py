from __future__ import annotations

import copy
import math
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fleetfoot import recipes, resume, train
from fleetfoot.agents.vpl import VPL, VPLConfig
from fleetfoot.checkpoint import CheckpointConfig
from fleetfoot.data import Batch, Continuous, Discrete, Obs
from fleetfoot.errors import UserError
from fleetfoot.evaluate import EvaluationConfig
from fleetfoot.log.sinks import read_lines
from fleetfoot.nn.mlp import MLPConfig
from fleetfoot.nn.pessimism import FixedBoundConfig, LearnedBoundConfig
from fleetfoot.nn.spectral import SpectralLinear
from fleetfoot.optim import AdamConfig
from fleetfoot.recipe import Recipe
from fleetfoot.replay.held_out import HeldOutUniformConfig
from fleetfoot.replay.replay import ReplayConfig
from fleetfoot.replay.samplers import UniformConfig
from support.made_up import CPU, make_batch, make_spec, make_transition
from support.runs import agent_state, assert_same, small
from support.train_until import train_until

TINY = MLPConfig(hidden=(16,), start="orthogonal")
SMALL = VPLConfig(policy_net=TINY, critic_net=TINY)
HELD_OUT = HeldOutUniformConfig(share=1 / 4, rows=32)
GAMMA = 0.9


def make_agent(cfg: VPLConfig = SMALL, seed: int = 0, **spec: Any) -> VPL:
    return cfg.build(make_spec(**spec), gamma=GAMMA, total_updates=100, seed=seed, device=CPU)


def with_held_out(rows: int = 6, seed: int = 0) -> Batch:
    apart = make_batch(make_spec(), rows=rows, seed=seed + 100)
    return make_batch(make_spec(), rows=rows, seed=seed)._replace(held_out=apart)


def weights(agent: VPL) -> dict[str, Tensor]:
    return {
        f"{name}.{key}": p.detach().clone()
        for name in ("gaussian", "critic", "critic_target", "alpha", "bound")
        for key, p in getattr(agent, name).named_parameters()
    }


def test_one_update_by_hand() -> None:
    """Every loss written out; plain Adam's first step is the sign of the gradient."""
    lr, tau, alpha, beta = 3e-4, 0.25, 0.5, 1.5
    bound = LearnedBoundConfig(beta=beta)
    agent = make_agent(replace(SMALL, tau=tau, alpha=alpha, bound=bound))
    batch = with_held_out(rows=6)
    apart = batch.held_out
    assert apart is not None
    old = copy.deepcopy(agent)
    draws = [each.normal(6, 2) for each in (old.critic_noise, old.policy_noise, old.bound_noise)]
    found = agent.update(batch).metrics

    def stepped(module: nn.Module, loss: Tensor, new: nn.Module) -> None:
        gradients = torch.autograd.grad(loss, list(module.parameters()))
        for before, gradient, after in zip(
            module.parameters(), gradients, new.parameters(), strict=True
        ):
            wanted = before - lr * gradient / (gradient.abs() + 1e-8)
            torch.testing.assert_close(after.detach(), wanted.detach(), atol=2e-6, rtol=1e-5)

    def low(q: Tensor) -> Any:
        q1, q2 = q[..., 0]
        return (q1 + q2) / 2 - beta * (q1 - q2).abs() / 2

    with torch.no_grad():
        action, log_prob = old.gaussian.sample(batch.next_obs, draws[0])
        value = low(old.critic_target(batch.next_obs, action))
        y = batch.reward + batch.discount * (value - alpha * log_prob)  # (1)
    q1, q2 = old.critic(batch.obs, batch.action)[..., 0]
    critic_loss = (batch.weight * ((q1 - y) ** 2 + (q2 - y) ** 2)).mean()  # (2)
    assert found["critic/loss"].item() == pytest.approx(critic_loss.item(), rel=1e-4)
    stepped(old.critic, critic_loss, agent.critic)
    pairs = zip(
        old.critic_target.parameters(),
        agent.critic.parameters(),
        agent.critic_target.parameters(),
        strict=True,
    )
    for before, critic, after in pairs:  # (3)
        torch.testing.assert_close(after, ((1 - tau) * before + tau * critic).detach())

    action, log_prob = old.gaussian.sample(batch.obs, draws[1])
    loss = (alpha * log_prob - low(agent.critic(batch.obs, action))).mean()  # (4)
    stepped(old.gaussian, loss, agent.gaussian)
    sign = math.copysign(1, -log_prob.mean().item() + 1.0)  # (5), H* is -1 for two actions
    assert agent.alpha().log().item() == pytest.approx(math.log(alpha) - lr * sign, abs=1e-6)

    with torch.no_grad():  # (6), with all that is new but beta
        action, log_prob = agent.gaussian.sample(apart.next_obs, draws[2])
        q = agent.critic_target(apart.next_obs, action)
        y = apart.reward + apart.discount * (low(q) - agent.alpha() * log_prob)
        gap = y - agent.critic(apart.obs, apart.action)[..., 0].mean(0)
        slope = apart.discount * (q[0, :, 0] - q[1, :, 0]).abs() / 2
        gap, slope = (apart.weight / apart.weight.mean() * each for each in (gap, slope))
    assert found["bound/gap"].item() == pytest.approx(gap.mean().item(), rel=1e-4)
    free = gap + beta * slope  # what targets without pessimism are above predictions
    one, two = slice(0, 3), slice(3, 6)
    down = slope[one].mean() * free[two].mean() + slope[two].mean() * free[one].mean()
    step = -lr * 0.5 * down.item() / slope.mean().item() ** 2
    assert agent.bound.beta().item() == pytest.approx(beta + step, abs=1e-6)
    torch.testing.assert_close(agent.bound.get_buffer("running_slope"), slope.mean())


def test_beta_is_all_that_held_out_rows_teach() -> None:
    first, second = make_agent(), make_agent()
    batch = with_held_out()
    other = make_batch(make_spec(), seed=77)._replace(reward=torch.full((6,), 50.0))
    first.update(batch)
    second.update(batch._replace(held_out=other))
    one, two = weights(first), weights(second)
    different = {name for name in one if not torch.equal(one[name], two[name])}
    assert different == {"bound.level"}
    loss, _, _ = first.bound_loss(batch, torch.zeros(6, 2))
    learned = [*first.critic.parameters(), *first.gaussian.parameters(), *first.alpha.parameters()]
    assert all(g is None for g in torch.autograd.grad(loss, learned, allow_unused=True))


def test_without_held_out_rows_beta_waits() -> None:
    agent = make_agent()
    batch = with_held_out()
    assert batch.held_out is not None
    none = batch.held_out._replace(weight=torch.zeros(6))
    agent.update(batch._replace(held_out=none))
    assert agent.bound.beta().item() == 1.0
    assert not agent.bound.get_buffer("running_slope").any()
    # Rows of weight 0 among others do not count.
    some = [copy.deepcopy(agent), copy.deepcopy(agent)]
    kept = torch.tensor([1.0, 1.0, 0.0, 1.0, 1.0, 0.0])
    wild = torch.where(kept > 0, batch.held_out.reward, 1e3)
    for each, reward in zip(some, (batch.held_out.reward, wild), strict=True):
        apart = batch.held_out._replace(weight=kept, reward=reward)
        each.update(batch._replace(held_out=apart))
    assert some[0].bound.beta().item() == some[1].bound.beta().item() != 1.0


class Planted(nn.Module):
    """Two critics, q(obs) + spread(obs) and q(obs) - spread(obs): both are features of the observation."""

    def forward(self, obs: Obs, action: Tensor) -> Tensor:
        q, spread = obs.critic[:, :1], obs.critic[:, 1:2]
        return torch.stack([q + spread, q - spread])


def planted(agent: VPL) -> None:
    """Critics as the observations say, and no entropy in the targets."""
    agent.critic = agent.critic_target = Planted()  # type: ignore[assignment]
    with torch.no_grad():
        agent.alpha.log_alpha.fill_(-100.0)


def rows_of(q: Tensor, next_q: Tensor, next_spread: Tensor, reward: Tensor) -> Batch:
    obs = torch.stack([q, torch.ones_like(q)], 1)
    next_obs = torch.stack([next_q, next_spread], 1)
    count = len(q)
    return Batch(
        obs=Obs(obs, obs),
        action=torch.zeros(count, 1),
        reward=reward,
        discount=torch.full((count,), GAMMA),
        next_obs=Obs(next_obs, next_obs),
        weight=torch.ones(count),
        row_id=torch.arange(count),
    )


def settle(agent: VPL, rows: Batch, steps: int) -> float:
    draw = torch.Generator().manual_seed(0)
    assert agent.step_bound is not None
    for _ in range(steps):
        some = torch.randint(len(rows.reward), (256,), generator=draw)
        fields: list[Any] = [
            Obs(field.actor[some], field.critic[some]) if isinstance(field, Obs) else field[some]
            for field in rows[:7]
            if field is not None
        ]
        loss, _, aux = agent.bound_loss(Batch(*fields), torch.zeros(256, 1))
        agent.step_bound(loss)
        agent.bound.follow_(aux["slope"])
    return agent.bound.beta().item()


FAST = AdamConfig(lr=0.02, beta1=0.5)
FLAT: dict[str, Any] = {"obs_shape": (2,), "action": Continuous(1), "critic_shape": None}


@pytest.mark.parametrize("c", [0.5, -0.5])
@pytest.mark.parametrize("form", ["bias", "mse"])
@pytest.mark.parametrize("kind", ["free", "softplus"])
def test_beta_goes_the_right_way_and_settles(kind: Any, form: Any, c: float) -> None:
    """Spread 1 everywhere, and at beta 1 targets c above the predictions: beta ends at 1 + c / gamma."""
    bound = LearnedBoundConfig(form=form, kind=kind)
    agent = make_agent(replace(SMALL, bound=bound, bound_optim=FAST), **FLAT)
    planted(agent)
    ones = torch.ones(300)
    next_q = torch.linspace(-1, 1, 300)
    rows = rows_of(c * -1 + GAMMA * (next_q - ones), next_q, ones, 0 * ones)
    first = settle(agent, rows, 1)
    assert (first > 1.0) == (c > 0)
    assert settle(agent, rows, 200) == pytest.approx(1 + c / GAMMA, abs=0.02)


@pytest.mark.parametrize("start", [-1.0, 3.0])
def test_beta_finds_a_planted_overestimation(start: float) -> None:
    """A table with known values: predictions are true, the next values too high by 0.7 spreads on average."""
    draw = np.random.default_rng(1)
    move = draw.dirichlet(np.ones(6), size=6)  # one policy: state to state
    reward = draw.normal(size=6)
    value = np.linalg.solve(np.eye(6) - GAMMA * move, reward)
    at = draw.integers(6, size=4000)
    then = np.array([draw.choice(6, p=move[i]) for i in at])
    spread = draw.uniform(0.5, 1.5, size=4000)
    next_q = value[then] + 0.7 * spread + draw.normal(0, 0.2, size=4000)
    bound = LearnedBoundConfig(beta=start, form="bias")
    agent = make_agent(replace(SMALL, bound=bound, bound_optim=FAST), **FLAT)
    planted(agent)
    columns = (
        torch.tensor(x, dtype=torch.float32) for x in (value[at], next_q, spread, reward[at])
    )
    assert settle(agent, rows_of(*columns), 500) == pytest.approx(0.7, abs=0.1)


@pytest.mark.parametrize("policy_beta", [None, 0.0, 1.0])
def test_the_policys_own_pessimism(policy_beta: float | None) -> None:
    bound = FixedBoundConfig(beta=2.0)
    agent = make_agent(replace(SMALL, bound=bound, policy_beta=policy_beta))
    batch, noise = make_batch(make_spec()), torch.zeros(6, 2)
    loss, _, _ = agent.policy_loss(batch.obs, noise)
    action, log_prob = agent.gaussian.sample(batch.obs, noise)
    q1, q2 = agent.critic(batch.obs, action)[..., 0]
    beta = 2.0 if policy_beta is None else policy_beta
    value = (q1 + q2) / 2 - beta * (q1 - q2).abs() / 2
    assert loss.item() == pytest.approx((log_prob - value).mean().item(), rel=1e-4)
    before = agent.bound.beta().item()
    agent.update(batch)  # a fixed beta needs no rows held out
    assert agent.bound.beta().item() == before


def test_a_reset_brings_back_the_first_beta() -> None:
    agent = make_agent(replace(SMALL, reset_every_updates=3))
    fresh = weights(agent)
    for seed in range(3):
        agent.observe(make_transition(make_spec(), seed))
        agent.update(with_held_out(seed=seed))
    moved = weights(agent)
    assert not any(
        torch.equal(moved[name], fresh[name]) for name in ("bound.level", "alpha.log_alpha")
    )
    agent.observe(make_transition(make_spec(), 3))
    assert all(torch.equal(v, fresh[k]) for k, v in weights(agent).items())
    assert not agent.bound.get_buffer("running_slope").any()
    assert agent.step_bound is not None
    assert agent.step_bound.steps == 0


def test_a_reset_brings_back_spectral_norms_too() -> None:
    """The singular vectors are no parameters, so they belong to the weights from before."""
    net = MLPConfig(hidden=(16, 16), start="orthogonal", spectral_norm=True)
    agent = make_agent(VPLConfig(policy_net=net, critic_net=net, reset_every_updates=1))
    spectral = [m for n in ("gaussian", "critic", "critic_target") for m in layers(agent, n)]
    agent.update(with_held_out())
    with torch.no_grad():
        for layer in spectral:
            layer.u.copy_(layer.u.roll(1, -1))
    agent.observe(make_transition(make_spec(), 0))
    for layer in spectral:
        norms = torch.linalg.matrix_norm(layer.normalized(), 2)
        torch.testing.assert_close(norms, torch.ones_like(norms), atol=1e-3, rtol=0)


def layers(agent: VPL, name: str) -> list[SpectralLinear]:
    return [m for m in getattr(agent, name).modules() if isinstance(m, SpectralLinear)]


def test_metrics_stay_what_they_were() -> None:
    """The beta that an update tells is not the one that later updates change."""
    agent = make_agent()
    told = agent.update(with_held_out()).metrics["bound/beta"]
    before = told.item()
    agent.update(with_held_out(seed=1))
    assert told.item() == before != agent.bound.beta().item()


def test_saved_and_restored_agents_go_on_exactly() -> None:
    cfg = replace(SMALL, reset_every_updates=5)
    one, two = make_agent(cfg), make_agent(cfg)
    for seed in range(3):
        one.observe(make_transition(make_spec(), seed))
        one.update(with_held_out(seed=seed))
    two.load_state_dict(copy.deepcopy(one.state_dict()))
    for seed in range(3, 8):
        for agent in (one, two):
            agent.observe(make_transition(make_spec(), seed))
            agent.update(with_held_out(seed=seed))
    second = weights(two)
    assert all(torch.equal(value, second[name]) for name, value in weights(one).items())


def brief(**changes: Any) -> Recipe:
    replay = ReplayConfig(capacity=8 * 100, sampler=HELD_OUT)
    return small("vpl/pendulum", replay=replay, **changes)


def test_a_resumed_run_equals_one_that_was_not_interrupted(tmp_path: Path) -> None:
    """Wrapped ring, several episodes, and the sets that rows are in."""
    kept = CheckpointConfig(every_vec_steps=105, replay=True)
    whole = brief(total_vec_steps=210, checkpoint=kept)
    train(whole, tmp_path / "whole")
    train(replace(whole, total_vec_steps=105), tmp_path / "parts")
    resume(tmp_path / "parts", total_vec_steps=210)
    assert_same(agent_state(tmp_path / "whole"), agent_state(tmp_path / "parts"))


@pytest.mark.parametrize("name", ["vpl/pendulum", "fast_sac/pendulum"])
def test_diagnosed_runs_hold_both_sets_against_each_other(name: str, tmp_path: Path) -> None:
    examined = EvaluationConfig(every_vec_steps=120, episodes=2, max_vec_steps=40, diagnose=True)
    replay = ReplayConfig(capacity=8 * 100, sampler=HELD_OUT)
    run = small(name, replay=replay, evaluation=examined, total_vec_steps=120)
    train(run, tmp_path / "run")
    (line,) = (x for x in read_lines(tmp_path / "run" / "metrics.jsonl") if "eval/return" in x)
    assert line["diagnose/overfitting"] > 0
    assert "diagnose/overestimation" in line


def test_wrong_input() -> None:
    with pytest.raises(UserError, match="continuous actions"):
        make_agent(action=Discrete(3))
    with pytest.raises(UserError, match="tau"):
        make_agent(replace(SMALL, tau=0.0))
    with pytest.raises(UserError, match="HeldOutUniformConfig"):
        make_agent().update(make_batch(make_spec()))
    with pytest.raises(UserError, match="two halves of the rows"):
        make_agent().update(with_held_out(rows=1))
    with pytest.raises(UserError, match="softplus"):
        make_agent(replace(SMALL, bound=LearnedBoundConfig(kind="softplus", beta=-1.0)))


@pytest.mark.learning
@pytest.mark.slow
def test_learns_the_pendulum(tmp_path: Path) -> None:
    recipe = replace(recipes.get("vpl/pendulum"), threads=1, device="cpu")
    assert train_until(recipe, tmp_path / "run", -200).best_return >= -200


class Seen(NamedTuple):
    beta: list[float]
    """As it was logged."""
    bias: float
    """What the bound says too much at the end, relative to returns."""
    earned: float


def fifteen_thousand_steps(
    folder: Path, bound: LearnedBoundConfig | FixedBoundConfig, *, held_out: bool, seed: int = 0
) -> Seen:
    """One update per env step."""
    base = recipes.get("vpl/pendulum")
    agent: Any = base.agent
    recipe = replace(
        base,
        agent=replace(agent, bound=bound),
        replay=base.off_policy_replay()
        if held_out
        else replace(base.off_policy_replay(), sampler=UniformConfig()),
        pace=replace(base.pace, updates_per_vec_step=10.0),
        evaluation=EvaluationConfig(every_vec_steps=500, episodes=32, diagnose=True),
        log=replace(base.log, console=False),
        total_vec_steps=1_500,
        device="cpu",
        threads=1,
        seed=seed,
    )
    earned = train(recipe, folder).last_return
    lines = read_lines(folder / "metrics.jsonl")
    told = [line["diagnose/overestimation"] for line in lines if "diagnose/overestimation" in line]
    return Seen([line["bound/beta"] for line in lines if "bound/beta" in line], told[-1], earned)


@pytest.mark.slow
@pytest.mark.learning
def test_beta_ends_in_one_place_and_values_are_better_than_with_the_wrong_one(
    tmp_path: Path,
) -> None:
    learned = [
        fifteen_thousand_steps(tmp_path / f"{start}", LearnedBoundConfig(beta=start), held_out=True)
        for start in (-1.0, 1.0, 3.0)
    ]
    fixed = [
        fifteen_thousand_steps(tmp_path / f"as {beta}", FixedBoundConfig(beta=beta), held_out=False)
        for beta in (0.0, 1.0, 2.0)
    ]
    ends = [run.beta[-1] for run in learned]
    assert max(ends) - min(ends) < 0.7
    worst = max(abs(run.bias) for run in fixed)
    best = max(run.earned for run in fixed)
    for run in learned:
        assert abs(run.bias) < 0.7 * worst
        assert run.earned >= best - 0.05 * abs(best)


@pytest.mark.slow
@pytest.mark.learning
def test_rows_that_critics_learn_from_say_nothing_about_beta(tmp_path: Path) -> None:
    """They always say zero. So from zero on, rows held out move beta at least three times as far. At first values fall
    so fast that beta follows on any rows: that is left out."""
    start = LearnedBoundConfig(beta=0.0)
    apart = fifteen_thousand_steps(tmp_path / "1", start, held_out=True)
    known = fifteen_thousand_steps(
        tmp_path / "2", replace(start, learns_from="batch"), held_out=False
    )
    moved, barely = (max(run.beta[2:]) - min(run.beta[2:]) for run in (apart, known))
    assert moved > 3 * barely
