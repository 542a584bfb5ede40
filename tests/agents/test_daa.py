from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks.studies.many_actions import (
    Spread,
    gradient_samples,
    many_win,
    measured_spread,
    true_pendulum,
    variance,
    variance_over_actions,
)
from fleetfoot import recipes
from fleetfoot.agents.daa import DAA, DAAConfig
from fleetfoot.agents.ppo import PPO, PPOConfig
from fleetfoot.data import Continuous, Discrete, EnvSpec, Obs, Rollout, Transition
from fleetfoot.envs.tensor import TensorConfig
from fleetfoot.errors import UserError
from fleetfoot.nn.imagine import imagine
from fleetfoot.nn.mlp import MLPConfig
from fleetfoot.nn.world_model import Prediction, Windows, WorldModelConfig
from fleetfoot.optim import AdamConfig
from fleetfoot.recipe import Recipe

CPU = torch.device("cpu")
SPEC = EnvSpec("made up", 2, (3,), Continuous(2), CPU)
NET = MLPConfig(hidden=(8,), activation=("tanh",))


def normal(mean: Tensor, std: Tensor) -> Any:
    return torch.distributions.Normal(mean, std)


def made(total_updates: int = 10, spec: EnvSpec = SPEC, **changes: Any) -> DAA:
    fields: dict[str, Any] = {
        "actions": 2,
        "horizon": 3,
        "start_env_steps": 0,
        "model_steps": 2,
        "first_model_steps": 3,
        "model_batch": 4,
        "model_capacity": 64,
        "epochs": 2,
        "minibatches": 2,
        "policy_net": NET,
        "critic_net": NET,
        "model": WorldModelConfig(net=NET),
    }
    cfg = DAAConfig(**(fields | changes))
    return cfg.build(spec, gamma=0.9, total_updates=total_updates, seed=3, device=CPU)


def rollout(steps: int = 5, seed: int = 0) -> Rollout:
    random = torch.Generator().manual_seed(seed)

    def obs() -> Obs:
        actor = torch.randn(steps, 2, 3, generator=random)
        return Obs(actor, actor)

    return Rollout(
        obs=obs(),
        action=torch.randn(steps, 2, 2, generator=random),
        reward=torch.randn(steps, 2, generator=random),
        discount=torch.full((steps, 2), 0.9),
        ended=torch.zeros(steps, 2, dtype=torch.bool),
        next_obs=obs(),
    )


def observe(agent: Any, data: Rollout) -> None:
    never = torch.zeros(data.reward.shape[1], dtype=torch.bool)
    for t in range(len(data.reward)):
        obs, next_obs = (Obs(o.actor[t], o.actor[t]) for o in (data.obs, data.next_obs))
        agent.observe(Transition(obs, data.action[t], data.reward[t], never, never, next_obs, {}))


@pytest.mark.parametrize(
    "changes", [{"estimator": "none"}, {"start_env_steps": 1_000}], ids=["none", "not begun"]
)
def test_without_extra_actions_it_is_ppo(changes: dict[str, Any]) -> None:
    optim = AdamConfig(lr=1e-2, lr_end=0.0, schedule="linear", eps=1e-5, max_grad_norm=0.5)
    daa = made(normalize_advantage=True, policy_optim=optim, **changes)
    ppo = PPOConfig(
        epochs=2,
        minibatches=2,
        value_coef=0.5,
        entropy_coef=0.0,
        target_kl=None,
        tanh_mean=True,
        normalize_obs=False,
        policy_net=NET,
        critic_net=NET,
        policy_optim=optim,
    ).build(SPEC, gamma=0.9, total_updates=10, seed=3, device=CPU)
    assert isinstance(ppo, PPO)
    for seed in range(3):
        for agent in (daa, ppo):
            observe(agent, rollout(seed=seed))
            agent.update(rollout(seed=seed))
    theirs = ppo.networks.state_dict()
    for name, weight in daa.networks.state_dict().items():
        assert torch.equal(weight, theirs[name])


def test_the_steps_of_all_ranks_count_before_the_model_begins() -> None:
    """Rollouts of 5 x 2 rows on each of two ranks: 20 steps are those of the first update."""
    agent = made(spec=replace(SPEC, num_envs=4), start_env_steps=20)
    begun = []
    for seed in range(3):
        data = rollout(seed=seed)

        def both(x: Tensor) -> Tensor:
            return torch.cat([x, x], 1)

        obs, next_obs = both(data.obs.actor), both(data.next_obs.actor)
        everyone = Rollout(
            obs=Obs(obs, obs),
            action=both(data.action),
            reward=both(data.reward),
            discount=both(data.discount),
            ended=both(data.ended),
            next_obs=Obs(next_obs, next_obs),
        )
        observe(agent, everyone)
        begun.append("imagined/actions" in agent.update(data).metrics)
    assert begun == [False, True, True]


def test_n_and_h_grow_as_published() -> None:
    agent = made(total_updates=488, actions=8, horizon=8)
    assert agent.sizes(0) == (1, 2)
    sizes = [agent.sizes(k) for k in range(488)]
    assert [n for n, _ in sizes].index(8) == 65
    assert [h for _, h in sizes].index(8) == 55
    assert sizes[-1] == (8, 8)
    assert made(total_updates=488, actions=8, estimator="model_states").sizes(487) == (8, 10)


def test_imagined_advantages_by_hand() -> None:
    """Two steps of a model that doubles the observation, pays the sum of the executed action, and goes on with 0.5."""
    agent = made()
    obs = torch.randn(4, 3)
    noise = 3.0 * torch.randn(2, 4, 2)  # large: many actions are clipped

    def model(obs: Tensor, action: Tensor) -> Prediction:
        assert action.abs().max() <= 1.0
        return Prediction(2.0 * obs, action.sum(-1), torch.full_like(obs[:, 0], 0.5))

    path = imagine(model, agent.actor, agent.critic, obs, noise, gamma=0.9, lam=0.8)
    value = [agent.critic(Obs(scale * obs, scale * obs)) for scale in (1.0, 2.0, 4.0)]
    delta = []
    for t in range(2):
        mean, log_std = agent.actor(Obs(2.0**t * obs, 2.0**t * obs))
        action = mean + log_std.exp() * noise[t]
        torch.testing.assert_close(path.action[t], action)  # not clipped
        density = normal(mean, log_std.exp()).log_prob(action).sum(-1)
        torch.testing.assert_close(path.log_prob[t], density)
        reward = action.clamp(-1.0, 1.0).sum(-1)
        delta.append(reward + 0.9 * 0.5 * value[t + 1] - value[t])
    torch.testing.assert_close(path.advantage[1], delta[1])
    torch.testing.assert_close(path.advantage[0], delta[0] + 0.8 * 0.9 * 0.5 * delta[1])
    assert path.action.abs().max() > 1.0


def test_actions_are_averaged_within_a_state_and_values_see_real_returns_alone() -> None:
    agent, data = made(), rollout()
    targets, _ = agent.prepare(data)
    index = torch.tensor([7, 0, 3])
    mean, log_std = agent.actor(Obs(*[data.obs.actor.flatten(0, 1)] * 2))
    old = normal(mean.detach(), log_std.exp().detach())
    action = old.sample((2,)).transpose(0, 1)  # [M, 2, A]
    extra = {
        "action": action,
        "log_prob": old.log_prob(action.transpose(0, 1)).sum(-1).T,
        "advantage": torch.randn(10, 2),
    }
    without, with_extra = (agent.loss(data, targets, e, index) for e in (None, extra))
    # The ratios are 1, so the loss is minus the mean advantage: over actions first, then over states.
    gain = (targets.advantage + extra["advantage"].sum(1)) / 3
    torch.testing.assert_close(with_extra.metrics["policy/loss"], -gain[index].mean())
    torch.testing.assert_close(without.metrics["policy/loss"], -targets.advantage[index].mean())
    critic = list(agent.critic.parameters())
    for one, other in zip(
        torch.autograd.grad(without.loss, critic),
        torch.autograd.grad(with_extra.loss, critic),
        strict=True,
    ):
        assert torch.equal(one, other)
    # Its gradient is that of the definition: the mean over all actions of grad log pi A.
    policy = list(agent.actor.parameters())
    taken = data.action.flatten(0, 1)[index]
    params = agent.actor(Obs(*[data.obs.actor.flatten(0, 1)[index]] * 2))
    score = agent.actor.log_prob(params, taken) * targets.advantage[index]
    for n in range(2):
        score = (
            score + agent.actor.log_prob(params, action[index, n]) * extra["advantage"][index, n]
        )
    wanted = torch.autograd.grad(-(score / 3).mean(), policy)
    fresh = agent.loss(data, targets, extra, index).loss
    for one, other in zip(torch.autograd.grad(fresh, policy), wanted, strict=True):
        torch.testing.assert_close(one, other)


def test_imagined_advantages_are_shifted_and_scaled_like_the_real_ones() -> None:
    agent, data = made(normalize_advantage=True), rollout()
    targets, _ = agent.prepare(data)
    action = torch.randn(10, 2, 2)
    params = agent.actor(Obs(*[data.obs.actor.flatten(0, 1)] * 2))
    shared = tuple(param.unsqueeze(1).detach() for param in params)
    imagined = torch.randn(10, 2)
    extra = {
        "action": action,
        "log_prob": agent.actor.log_prob(shared, action),
        "advantage": imagined,
    }
    index = torch.tensor([7, 0, 3])
    real = targets.advantage
    both = torch.cat([real.unsqueeze(1), imagined], 1)
    gain = ((both - real.mean()) / real.std(correction=0)).mean(1)
    found = agent.loss(data, targets, extra, index).metrics["policy/loss"]
    torch.testing.assert_close(found, -gain[index].mean())  # the ratios are 1


def test_the_target_of_q_by_hand() -> None:
    """A termination ends the value, and a row whose successor nobody knows teaches nothing."""
    agent = made(estimator="q_actions")
    data = rollout(steps=8)
    for t in range(8):
        terminated, truncated = torch.tensor([t == 2, False]), torch.tensor([False, t == 4])
        obs, next_obs = (Obs(o.actor[t], o.actor[t]) for o in (data.obs, data.next_obs))
        flags = terminated, truncated
        agent.observe(Transition(obs, data.action[t], data.reward[t], *flags, next_obs, {}))
    uniform = torch.linspace(0.0, 0.999, 64)
    rows = agent.memory.draw(uniform, 1)
    total, kinds = 0.0, set()
    for i in range(64):
        now, then = (Obs(*[rows.obs[step, i][None]] * 2) for step in (0, 1))
        known, ended = bool(rows.known[0, i]), bool(rows.terminated[0, i])
        kinds.add((known, ended))
        if not known and not ended:
            continue
        with torch.no_grad():
            after = 0.0 if ended else 0.9 * agent.critic(then).item()
            assert agent.q is not None
            q = agent.q(now, rows.action[0, i][None].clamp(-1.0, 1.0)).item()
        total += (q - rows.reward[0, i].item() - after) ** 2 / 64
    assert {(True, False), (False, False)} <= kinds
    assert any(ended for _, ended in kinds)
    assert agent.model_loss(uniform).loss.item() == pytest.approx(total, rel=1e-4)


@pytest.mark.parametrize("estimator", ["model_actions", "q_actions", "model_states"])
def test_extra_samples_stay_with_their_rows(estimator: str) -> None:
    """Copies of row i are in row i: their log-probabilities are those of the old policy in its state."""
    agent, data = made(estimator=estimator), rollout()
    observe(agent, data)
    steps, rows = {"model_actions": (3, 20), "q_actions": (1, 20), "model_states": (4, 10)}[
        estimator
    ]
    extra = agent.extra_samples(data, torch.randn(steps, rows, 2))
    assert extra["advantage"].shape == (10, 2)
    obs = extra.get("obs", data.obs.actor.flatten(0, 1).unsqueeze(1).expand(10, 2, 3)).flatten(0, 1)
    log_prob = agent.actor.log_prob(agent.actor(Obs(obs, obs)), extra["action"].flatten(0, 1))
    torch.testing.assert_close(extra["log_prob"].flatten(), log_prob)
    if estimator == "model_states":  # those that follow from the real one
        assert not torch.isclose(extra["obs"][:, 0], data.obs.actor.flatten(0, 1)).all()


@pytest.mark.parametrize("estimator", ["model_actions", "q_actions", "model_states"])
def test_it_goes_on_exactly_from_its_state(estimator: str) -> None:
    one, other = made(estimator=estimator), made(estimator=estimator)
    observe(one, rollout())
    result = one.update(rollout())
    assert {"imagined/actions", "imagined/horizon"} <= result.metrics.keys()
    other.load_state_dict(copy.deepcopy(one.state_dict()))
    for agent in (one, other):
        observe(agent, rollout(seed=1))
        agent.update(rollout(seed=1))
    theirs = other.networks.state_dict()
    for name, weight in one.networks.state_dict().items():
        assert torch.equal(weight, theirs[name])


def bandit(seed: int) -> tuple[Any, Any, Any]:
    """Five states and four actions: Y [S, A, P] of a softmax policy with a table of logits, and its probabilities."""
    random = np.random.default_rng(seed)
    logits, reward = random.normal(size=(2, 5, 4))
    probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    gradient = np.zeros((5, 4, 5, 4))
    for s in range(5):
        gradient[s, :, s, :] = np.eye(4) - probs[s]
    return (gradient * reward[:, :, None, None]).reshape(5, 4, 20), probs, random


def exact_spread(upsilon: Any, probs: Any) -> Spread:
    mean = (probs[:, :, None] * upsilon).sum(1)
    of_actions = (probs[:, :, None] * (upsilon - mean[:, None]) ** 2).sum((1, 2)).mean()
    return Spread(((mean - mean.mean(0)) ** 2).sum(1).mean(), of_actions)


def draws(upsilon: Any, probs: Any, random: Any, estimates: int, states: int, actions: int) -> Any:
    """Gradient estimates [estimates, P], each from so many states with so many actions."""
    s = random.integers(5, size=(estimates, states))
    cumulative = probs.cumsum(1)[s]
    u = random.random((estimates, states, actions))
    a = (u[..., None] > cumulative[:, :, None, :-1]).sum(-1)
    return upsilon[s[..., None], a].mean((1, 2))


@pytest.mark.parametrize("actions", [1, 2, 4, 8])
def test_the_law_of_variance_holds_in_a_bandit(actions: int) -> None:
    upsilon, probs, random = bandit(0)
    spread = exact_spread(upsilon, probs)
    found = draws(upsilon, probs, random, 100_000, 1, actions).var(0).sum()
    assert found == pytest.approx(variance(spread, actions), rel=0.03)


def test_the_spread_is_measured_without_bias() -> None:
    upsilon, probs, random = bandit(1)
    s = random.integers(5, size=40_000)
    a = (random.random((40_000, 3, 1)) > probs.cumsum(1)[s][:, None, :-1]).sum(-1)
    found = measured_spread(torch.from_numpy(upsilon[s[:, None], a]))
    assert tuple(found) == pytest.approx(tuple(exact_spread(upsilon, probs)), rel=0.03)


@pytest.mark.parametrize("price", [0.05, 0.2, 0.5, 1.0])
def test_many_actions_win_where_the_condition_says_so(price: float) -> None:
    """Y is scaled so that the states' part lies once below the bound of (2) and once above it."""
    actions, states, estimates = 4, 20, 10_000
    upsilon, probs, random = bandit(2)
    mean = (probs[:, :, None] * upsilon).sum(1, keepdims=True)
    spread = exact_spread(upsilon, probs)
    bound = spread.of_actions * (1.0 - price) / (price * actions)
    for factor, wins in ((0.5, True), (2.0, False)):
        scale = np.sqrt(factor * max(bound, 0.05 * spread.of_actions) / spread.of_states)
        scaled = mean * scale + (upsilon - mean)
        expected = wins and bound > 0.0
        assert many_win(exact_spread(scaled, probs), actions, price) == expected
        longer = round(states * (1.0 + price * (actions - 1)))
        many = draws(scaled, probs, random, estimates, states, actions).var(0).sum()
        single = draws(scaled, probs, random, estimates, longer, 1).var(0).sum()
        assert (many < single) == expected


def pendulum_agent() -> DAA:
    recipe = recipes.get("daa/pendulum")
    agent = recipe.build_agent(TensorConfig().build(2, 0, CPU).spec, CPU)
    assert isinstance(agent, DAA)
    return agent


def test_the_true_pendulum_is_what_the_environment_does() -> None:
    env = TensorConfig().build(6, 0, CPU)
    obs = env.reset().actor
    for _ in range(5):
        action = torch.rand(6, 1) * 2 - 1
        step, told = env.step(action), true_pendulum(obs, action)
        torch.testing.assert_close(told.next_obs, step.next_obs.actor, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(told.reward, step.reward, rtol=1e-4, atol=1e-4)
        obs = step.obs.actor


def test_with_the_true_model_the_variance_falls_and_the_mean_stays() -> None:
    agent = pendulum_agent()
    rows = variance_over_actions(agent, (1, 9), states=16, repeats=60)  # N = 0 and N = 8
    assert rows[0]["variance"] > 2.0 * rows[1]["variance"]
    for row in rows:
        assert row["variance"] == pytest.approx(row["predicted"], rel=0.4)
    samples = torch.stack([gradient_samples(agent, 16, 9, seed) for seed in range(100, 140)])
    first, all_of_them = samples[:, :, 0].mean(1), samples.mean((1, 2))  # [40, P]
    error = ((first.var(0) + all_of_them.var(0)) / 40).sum().sqrt()
    assert (first.mean(0) - all_of_them.mean(0)).norm() < 2.0 * error


def test_a_learned_model_explains_the_pendulum_after_5000_transitions() -> None:
    agent = pendulum_agent()
    model, cfg = agent.world_model, agent.cfg
    assert model is not None
    env = TensorConfig().build(50, 1, CPU)
    random = torch.Generator().manual_seed(0)
    obs, stored = env.reset(), []
    for _ in range(120):
        action = torch.rand(50, 1, generator=random) * 2 - 1
        step = env.step(action)
        stored.append((obs.actor, action, step.next_obs.actor, step.reward))
        obs = step.obs
    s, a, s_next, r = (torch.cat(column) for column in zip(*stored, strict=True))
    model.observe(s[:5_000], r[:5_000], s_next[:5_000], torch.zeros(5_000, dtype=torch.bool))
    optim = cfg.model_optim.build(model, 1_500)
    never, always = torch.zeros(1, 128, dtype=torch.bool), torch.ones(1, 128, dtype=torch.bool)
    for _ in range(1_500):
        rows = torch.randint(5_000, (128,), generator=random)
        windows = Windows(
            s[rows], a[rows][None], s_next[rows][None], r[rows][None], never, always, always
        )
        optim(model.loss(windows).loss)
    held_out = slice(5_000, 6_000)
    with torch.no_grad():
        told = model(s[held_out], a[held_out])
    for wanted, given in ((s_next[held_out], told.next_obs), (r[held_out], told.reward)):
        unexplained = (wanted - given).square().mean(0) / wanted.var(0)
        assert float(unexplained.max()) < 0.01


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"actions": 0}, r"agent\.actions"),
        ({"horizon": 0}, r"agent\.horizon"),
        ({"ramp": 0.0}, r"agent\.ramp"),
        ({"model_steps": 0}, r"agent\.model_steps"),
    ],
)
def test_bad_input(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        made(**changes)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (EnvSpec("d", 1, (3,), Discrete(2), CPU), "DAA needs continuous actions"),
        (EnvSpec("p", 1, (3,), Continuous(1), CPU, critic_shape=(5,)), "the critic sees more"),
        (
            EnvSpec("t", 1, (3,), Continuous(1), CPU, tasks=("a", "b"), task_ids=(0,)),
            "several tasks",
        ),
    ],
)
def test_what_it_cannot_imagine_is_refused(spec: EnvSpec, message: str) -> None:
    with pytest.raises(UserError, match=message):
        DAAConfig().build(spec, gamma=0.9, total_updates=1, seed=0, device=CPU)


def test_the_published_setting() -> None:
    recipe: Recipe = recipes.get("daa/cheetah-run")
    assert recipe.agent == DAAConfig()
    assert (recipe.num_envs, recipe.batch_size, recipe.gamma) == (1, 2_048, 0.99)
    assert recipe.total_updates() == 488  # the schedules of rate, N and H depend on it


def test_the_twins_differ_in_the_estimator_alone() -> None:
    for name in ("daa/pendulum", "daa/walker-walk-small"):
        ours, twin = recipes.get(name), recipes.get(f"{name}-none")
        assert isinstance(twin.agent, DAAConfig)
        assert twin.agent.estimator == "none"
        agent = replace(twin.agent, estimator="model_actions")
        assert replace(twin, name=ours.name, agent=agent) == ours
