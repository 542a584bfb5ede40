from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fleetfoot import checkpoint, recipes
from fleetfoot.agents.dqn import DQN, DQNConfig
from fleetfoot.api import resume, train
from fleetfoot.data import Batch, Continuous, Discrete, EnvSpec, Obs, Transition
from fleetfoot.errors import UserError
from fleetfoot.explore import NoiseLadderConfig
from fleetfoot.nn.cnn import NatureCNNConfig
from fleetfoot.nn.dueling import DuelingHead
from fleetfoot.nn.mlp import MLPConfig
from fleetfoot.nn.torso import MLPTorsoConfig
from fleetfoot.optim import AdamConfig, LocalStepper
from support import made_up
from support.made_up import CPU, QUIET, make_obs, parameters, small_run
from support.train_until import train_until

SMALL = DQNConfig(
    target_every=3,
    torso=MLPTorsoConfig(hidden=(16,)),
    head=MLPConfig(hidden=(8,)),
    critic_optim=AdamConfig(lr=1e-2),
)
C51 = replace(SMALL, num_atoms=11, v_min=-5.0, v_max=5.0)


def make_spec(**changes: Any) -> EnvSpec:
    return made_up.make_spec(**({"action": Discrete(4)} | changes))


def make_agent(cfg: DQNConfig = SMALL, spec: EnvSpec | None = None, seed: int = 0) -> DQN:
    return cfg.build(spec or make_spec(), gamma=0.9, total_updates=100, seed=seed, device=CPU)


def make_batch(spec: EnvSpec | None = None, rows: int = 6, seed: int = 0) -> Batch:
    return made_up.make_batch(spec or make_spec(), rows, seed)


def make_transition(seed: int = 0) -> Transition:
    return made_up.make_transition(make_spec(), seed)


def weights(agent: DQN) -> list[torch.Tensor]:
    return parameters(agent.critic, agent.critic_target)


class Planted(torch.nn.Module):
    """A critic that says what it was told, [B, actions, K], whatever it sees."""

    def __init__(self, out: list[Any]):
        super().__init__()
        self.out = torch.tensor(out)

    def forward(self, obs: Obs) -> torch.Tensor:
        return self.out if self.out.dim() == 3 else self.out.unsqueeze(-1)


@pytest.mark.parametrize("loss", ["huber", "squared"])
def test_one_update_by_hand(loss: Any) -> None:
    """Linear dueling heads, four rows, every number computed again with numpy in float64."""
    lr, tau = 0.01, 0.25
    cfg = DQNConfig(
        loss=loss,
        target_every=1,
        tau=tau,
        torso=MLPTorsoConfig(hidden=()),
        head=MLPConfig(hidden=()),
        critic_optim=AdamConfig(lr=lr),
    )
    spec = make_spec(obs_shape=(2,), action=Discrete(3))
    agent = make_agent(cfg, spec)
    with torch.no_grad():  # a target that differs, so that it matters which network chooses
        for parameter in agent.critic_target.parameters():
            parameter.add_(torch.linspace(-0.5, 0.5, parameter.numel()).view_as(parameter))
    batch = make_batch(spec, rows=4, seed=2)
    batch = batch._replace(reward=batch.reward * torch.tensor([2.0, 0.3, 2.0, 0.3]))
    theta, target = (
        [p.detach().double().numpy().copy() for p in m.parameters()]
        for m in (agent.critic, agent.critic_target)
    )
    s, s2, reward, discount, weight = (
        x.double().numpy()
        for x in (
            batch.obs.actor,
            batch.next_obs.actor,
            batch.reward,
            batch.discount,
            batch.weight,
        )
    )
    action = batch.action.numpy()

    def q(parameters: Any, x: Any) -> Any:
        value_w, value_b, advantage_w, advantage_b = parameters
        advantage = x @ advantage_w + advantage_b
        return x @ value_w + value_b + advantage - advantage.mean(-1, keepdims=True)  # (1)

    chosen = q(theta, s2).argmax(-1)  # (2)
    assert (chosen != q(target, s2).argmax(-1)).any(), "or the test could not tell them apart"
    row = np.arange(4)
    delta = reward + discount * q(target, s2)[row, chosen] - q(theta, s)[row, action]  # (3)
    assert (np.abs(delta) > 1).any()
    assert (np.abs(delta) < 1).any()
    if loss == "huber":
        row_loss = np.where(np.abs(delta) > 1, np.abs(delta) - 0.5, delta**2 / 2)
        slope = np.clip(delta, -1, 1)
    else:
        row_loss, slope = delta**2 / 2, delta
    error = -weight * slope / 4  # of the loss (4) with respect to q(s, a)
    spread = error[:, None] * (np.eye(3)[action] - 1 / 3)  # and to the advantages
    gradients = [s.T @ error[:, None], error.sum(keepdims=True), s.T @ spread, spread.sum(0)]

    step = agent.step_critic
    assert isinstance(step, LocalStepper)
    for seen, wanted in zip(step.gradients(agent.critic_loss(batch).loss), gradients, strict=True):
        np.testing.assert_allclose(seen.double().numpy(), wanted, atol=1e-6)
    learned = agent.update(batch)

    assert learned.metrics["critic/loss"].item() == pytest.approx((weight * row_loss).mean(), 1e-5)
    assert learned.td_error is not None
    np.testing.assert_allclose(learned.td_error.numpy(), np.abs(delta), atol=1e-6)  # unweighted
    for i, (old, gradient) in enumerate(zip(theta, gradients, strict=True)):
        new = old - lr * gradient / (np.abs(gradient) + 1e-8)  # the first step of Adam
        got, followed = (list(m.parameters())[i] for m in (agent.critic, agent.critic_target))
        np.testing.assert_allclose(got.detach().numpy(), new, atol=2e-6)
        wanted = (1 - tau) * target[i] + tau * new  # (5)
        np.testing.assert_allclose(followed.detach().numpy(), wanted, atol=2e-6)


def test_double_lets_the_network_choose_and_the_target_value() -> None:
    online, target = [[1.0, 3.0, 2.0, 0.0]], [[9.0, 5.0, 7.0, 8.0]]
    batch = make_batch(rows=1)._replace(reward=torch.tensor([1.0]), discount=torch.tensor([0.5]))
    for double, wanted in ((True, 1 + 0.5 * 5.0), (False, 1 + 0.5 * 9.0)):
        agent = make_agent(replace(SMALL, double=double))
        agent.critic, agent.critic_target = Planted(online), Planted(target)  # type: ignore[assignment]
        assert agent.target(batch).item() == pytest.approx(wanted)


def test_dueling_advantages_have_mean_zero() -> None:
    head = DuelingHead(MLPConfig(hidden=(8,)), 5, 4, 3)
    x = torch.randn(7, 5, generator=torch.Generator().manual_seed(0))
    out = head(x)
    assert out.shape == (7, 4, 3)
    torch.testing.assert_close(out.mean(1), head.value(x))
    before = out - head.value(x).unsqueeze(1)
    with torch.no_grad():
        head.advantage.head.bias.add_(5.0)  # type: ignore[operator, union-attr]
    torch.testing.assert_close(head(x) - head.value(x).unsqueeze(1), before)
    assert before.abs().max() > 1e-3


def test_hard_copies_come_every_so_many_updates_and_no_sooner() -> None:
    agent = make_agent()
    first = [p.clone() for p in agent.critic_target.parameters()]
    for update in range(1, 7):
        agent.update(make_batch(seed=update))
        online, target = weights(agent)[: len(first)], weights(agent)[len(first) :]
        if update % 3 == 0:
            assert all(torch.equal(a, b) for a, b in zip(online, target, strict=True))
            first = target
        else:
            assert all(torch.equal(a, b) for a, b in zip(first, target, strict=True))
            assert not any(torch.equal(a, b) for a, b in zip(online, target, strict=True))


def test_categorical_target_by_hand() -> None:
    """Three atoms at -1, 0, 1: the chosen action's distribution, moved to 0.5 + 0.5 z, falls on 0, 1/2, 1."""
    cfg = replace(SMALL, num_atoms=3, v_min=-1.0, v_max=1.0)
    agent = make_agent(cfg, make_spec(action=Discrete(2)))
    online = [[[0.2, 0.2, 0.6], [0.6, 0.2, 0.2]]]  # action 0 has the larger mean here
    target = [[[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]]]  # and action 1 there
    agent.critic = Planted(np.log(online).tolist())  # type: ignore[assignment]
    agent.critic_target = Planted(np.log(target).tolist())  # type: ignore[assignment]
    batch = make_batch(make_spec(action=Discrete(2)), rows=1)
    batch = batch._replace(reward=torch.tensor([0.5]), discount=torch.tensor([0.5]))
    batch = batch._replace(action=torch.tensor([1]), weight=torch.tensor([2.0]))
    wanted = [0.0, 0.5 + 0.3 / 2, 0.2 + 0.3 / 2]
    assert agent.z is not None
    (found,), clipped = agent.target_distribution(batch, agent.z)
    assert found.tolist() == pytest.approx(wanted, abs=1e-6)
    assert clipped == 0.0
    loss, metrics, aux = agent.critic_loss(batch)
    cross_entropy = -(0.65 * np.log(0.2) + 0.35 * np.log(0.2))
    assert loss.item() == pytest.approx(2 * cross_entropy, rel=1e-5)  # (7)
    assert metrics["critic/q"].item() == pytest.approx(-0.4, abs=1e-6)
    assert aux["td_error"].item() == pytest.approx(0.35 + 0.4, abs=1e-6)


@pytest.mark.parametrize("cfg", [SMALL, C51, replace(C51, dueling=False, double=False)])
def test_behaviour_says_values_and_the_policy_takes_the_largest(cfg: DQNConfig) -> None:
    agent, batch = make_agent(cfg), make_batch(rows=50)
    q = agent.behaviour(batch.obs)
    assert q.shape == (50, 4)
    action = agent.policy(batch.obs)
    assert action.dtype == torch.int64
    assert torch.equal(action, q.argmax(1))
    if cfg.num_atoms is not None:
        assert q.abs().max() <= 5.0
        probs = agent.critic(batch.obs).softmax(-1)
        torch.testing.assert_close(q, (probs * torch.linspace(-5, 5, 11)).sum(-1))


@pytest.mark.parametrize("cfg", [SMALL, C51])
def test_a_single_step_task_is_learned(cfg: DQNConfig) -> None:
    """Reward 1 for action 2, otherwise -1, no future: the values must become those rewards."""
    agent = make_agent(cfg)
    for seed in range(300):
        batch = make_batch(rows=64, seed=seed)
        reward = torch.where(batch.action == 2, 1.0, -1.0)
        agent.update(batch._replace(reward=reward, discount=torch.zeros(64)))
    q = agent.behaviour(make_batch(seed=1000).obs).mean(0)
    assert q.tolist() == pytest.approx([-1.0, -1.0, 1.0, -1.0], abs=0.15)


@pytest.mark.parametrize("cfg", [SMALL, C51])
def test_rows_of_weight_zero_teach_nothing(cfg: DQNConfig) -> None:
    weight = torch.tensor([1.0, 1.0, 1.0, 0.0, 0.0, 0.0])
    batch = make_batch()._replace(weight=weight)
    one, two = make_agent(cfg), make_agent(cfg)
    one.update(batch)
    two.update(batch._replace(reward=batch.reward + 100 * (1 - weight)))
    assert all(torch.equal(a, b) for a, b in zip(weights(one), weights(two), strict=True))


def test_images_are_scaled_inside_the_network() -> None:
    spec = make_spec(obs_shape=(4, 84, 84), obs_dtype=torch.uint8)
    agent = make_agent(DQNConfig(head=MLPConfig(hidden=(8,))), spec)
    assert agent.critic.torso.size == 64 * 7 * 7  # as in Nature DQN
    obs = make_obs(spec, 2, torch.Generator().manual_seed(0))
    x = obs.actor.float() / 255
    for layer in agent.critic.torso.convolutions:  # type: ignore[union-attr]
        x = layer(x)
    torch.testing.assert_close(agent.critic.torso(obs.actor), x.flatten(1))
    before = weights(agent)
    agent.update(make_batch(spec, rows=2))
    half = len(before) // 2
    assert not any(torch.equal(a, b) for a, b in zip(before, weights(agent)[:half], strict=False))


def test_statistics_change_by_observing_alone_and_are_shared_with_the_target() -> None:
    agent = make_agent(replace(SMALL, normalize_obs=True))
    agent.update(make_batch())
    assert agent.critic.norm.state_dict()["count"].item() == 0
    fresh = make_transition()
    agent.observe(fresh)
    assert agent.critic_target.norm is agent.critic.norm
    mean = agent.critic.norm.state_dict()["mean"]
    torch.testing.assert_close(mean.float(), fresh.obs.actor.mean(0))


def test_tasks_have_embeddings_that_learn() -> None:
    spec = make_spec(tasks=("a", "b"), task_ids=(0, 1, 0, 1))
    agent, batch = make_agent(spec=spec), make_batch(spec)
    assert batch.obs.task is not None
    other = batch.obs._replace(task=1 - batch.obs.task)
    assert not torch.equal(agent.behaviour(batch.obs), agent.behaviour(other))
    assert agent.critic.embed is not None
    before = agent.critic.embed.weight.detach().clone()
    agent.update(batch)
    assert not torch.equal(before, agent.critic.embed.weight)


@pytest.mark.parametrize("cfg", [replace(SMALL, normalize_obs=True), C51])
def test_saved_and_restored_agents_go_on_exactly(cfg: DQNConfig) -> None:
    one, two = make_agent(cfg, seed=0), make_agent(cfg, seed=1)
    for seed in range(4):  # not a multiple of target_every
        one.observe(make_transition(seed))
        one.update(make_batch(seed=seed))
    two.load_state_dict(copy.deepcopy(one.state_dict()))
    for seed in range(4, 9):
        for agent in (one, two):
            agent.observe(make_transition(seed))
            agent.update(make_batch(seed=seed))
    assert all(torch.equal(a, b) for a, b in zip(weights(one), weights(two), strict=True))
    fresh = make_agent(cfg, seed=2)
    fresh.policy.load_state_dict(one.state_dict()["policy"])  # all that evaluation needs
    batch = make_batch(rows=20)
    assert torch.equal(fresh.behaviour(batch.obs), one.behaviour(batch.obs))


def test_building_and_updating_leave_the_global_random_state_alone() -> None:
    before = torch.get_rng_state()
    make_agent().update(make_batch())
    assert torch.equal(before, torch.get_rng_state())


IMAGE = make_spec(obs_shape=(4, 84, 84), obs_dtype=torch.uint8)


@pytest.mark.parametrize(
    ("cfg", "spec", "says"),
    [
        (SMALL, make_spec(action=Continuous(2)), "discrete actions"),
        (SMALL, IMAGE, "NatureCNNConfig"),
        (DQNConfig(), make_spec(), "MLPTorsoConfig"),
        (DQNConfig(), make_spec(obs_shape=(1, 12, 12)), "too small"),
        (DQNConfig(torso=NatureCNNConfig(strides=(4, 2))), IMAGE, "one number each"),
        (DQNConfig(), make_spec(obs_shape=(1, 86, 84)), "never see the last 2"),
        (DQNConfig(normalize_obs=True), IMAGE, "for vectors"),
        (replace(SMALL, num_atoms=1), make_spec(), "atoms"),
        (replace(C51, v_min=5.0), make_spec(), "v_min"),
        (replace(SMALL, target_every=0), make_spec(), "target_every"),
        (replace(SMALL, tau=0.0), make_spec(), "tau"),
        (replace(SMALL, critic_optim=AdamConfig(lr=0.0)), make_spec(), "learning rates"),
        (replace(SMALL, head=MLPConfig(activation=("elu", "elu"))), make_spec(), "activation"),
    ],
)
def test_wrong_input(cfg: DQNConfig, spec: EnvSpec, says: str) -> None:
    with pytest.raises(UserError, match=says) as caught:
        make_agent(cfg, spec)
    assert "\n" not in str(caught.value)


def test_a_resumed_run_ends_with_the_same_weights(tmp_path: Path) -> None:
    recipe = small_run("dqn/cartpole", agent=SMALL, total_vec_steps=120)
    train(recipe, tmp_path / "whole")
    train(replace(recipe, total_vec_steps=83), tmp_path / "parts")
    resume(tmp_path / "parts", total_vec_steps=120)
    one, two = (checkpoint.load(tmp_path / k).state["agent"] for k in ("whole", "parts"))
    assert one["updates"] == two["updates"] == 280
    for name in ("policy", "critic_target"):
        assert len(one[name]) > 5
        assert all(torch.equal(one[name][k], two[name][k]) for k in one[name])


def test_an_explorer_for_continuous_actions_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="EpsilonLadderConfig"):
        train(small_run("dqn/cartpole", explorer=NoiseLadderConfig()), tmp_path / "run")


@pytest.mark.learning
def test_solves_the_cartpole(tmp_path: Path) -> None:
    recipe = recipes.get("dqn/cartpole")
    recipe = replace(recipe, log=QUIET, device="cpu", threads=1, total_vec_steps=750)
    assert train_until(recipe, tmp_path / "run", 475, every=75).best_return >= 475


@pytest.mark.learning
def test_catches_the_ball_from_images(tmp_path: Path) -> None:
    recipe = recipes.get("dqn/catch")
    recipe = replace(recipe, log=QUIET, device="cpu", threads=1, total_vec_steps=750)
    assert train_until(recipe, tmp_path / "run", 0.9, every=50).best_return >= 0.9
