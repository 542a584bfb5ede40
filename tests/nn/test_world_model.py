"""The world model: its equations, its loss over windows, and that it learns."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fleetfoot.envs.tensor import CartPole
from fleetfoot.errors import UserError
from fleetfoot.nn.mlp import MLPConfig
from fleetfoot.nn.world_model import (
    OpenLoop,
    Prediction,
    Windows,
    WorldModel,
    WorldModelConfig,
    imagined_returns,
)
from fleetfoot.optim import AdamConfig
from fleetfoot.rng import seeded_init

NO = torch.tensor(False)


def small_model(**options: Any) -> WorldModel:
    with seeded_init(0):
        model = WorldModelConfig(net=MLPConfig(hidden=(8,)), **options).build(3, 2)
    generator = torch.Generator().manual_seed(0)
    obs = torch.randn(50, 3, generator=generator) * 4 + 1
    change = torch.randn(50, 3, generator=generator) * 0.1
    ended = torch.zeros(50, dtype=torch.bool)
    model.observe(obs, torch.randn(50, generator=generator), obs + change, ended)
    return model


@pytest.mark.parametrize("predict", ["delta", "absolute"])
def test_prediction_by_hand(predict: Any) -> None:
    model = small_model(predict=predict)
    obs, action = torch.randn(5, 3), torch.randn(5, 2)
    inputs = torch.cat([(obs - model.obs_norm.shift) * model.obs_norm.scale, action], -1)
    got = model(obs, action)
    norm = model.change_norm if predict == "delta" else model.obs_norm
    y = model.transition(inputs)
    wanted = norm.mean.float() + y * (norm.variance.sqrt().float() + norm.eps)
    torch.testing.assert_close(got.next_obs, wanted + (obs if predict == "delta" else 0))
    out = model.outcome(torch.cat([inputs, model.obs_norm(got.next_obs)], -1))
    reward = model.reward_norm
    std = reward.variance.sqrt().float() + reward.eps
    torch.testing.assert_close(got.reward, reward.mean.float() + std * out[:, 0])
    torch.testing.assert_close(got.continues, torch.sigmoid(out[:, 1]))


def test_few_rewards_are_classes() -> None:
    model = small_model(reward_values=(-1.0, 0.0, 1.0))
    out = torch.tensor([[1.0, 2.0, 4.0]])
    p = out.softmax(-1)[0]
    assert float(model._reward(out, torch.ones(1))) == pytest.approx(float(p[2] - p[0]))
    assert float(model._reward_loss(out, torch.tensor([-1.0]), NO)) == pytest.approx(
        float(-p[0].log())
    )
    with pytest.raises(UserError, match="reward_values"):
        WorldModelConfig(reward_values=(1.0,))


def test_squashed_rewards() -> None:
    model = small_model(squash_reward=True)
    reward = torch.tensor([-100.0, 0.0, 0.5])
    squashed = reward.sign() * (1 + reward.abs()).log()
    out = model.reward_norm(squashed).unsqueeze(-1)  # what the network should say
    torch.testing.assert_close(model._reward(out, torch.ones(1)), reward, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(model._reward_loss(out, reward, NO), torch.zeros(3))
    with pytest.raises(UserError, match="squash_reward"):
        WorldModelConfig(squash_reward=True, reward_values=(0.0, 1.0))


def test_large_errors_count_linearly() -> None:
    model, error = small_model(linear_beyond=2.0), torch.tensor([0.5, -2.0, 5.0])
    assert float(model._obs_loss(error)) == pytest.approx((0.25 + 4.0 + 2.0 * (10.0 - 2.0)) / 3)
    with pytest.raises(UserError, match="linear_beyond"):
        WorldModelConfig(linear_beyond=0.0)


def test_open_loop_by_hand() -> None:
    """Of three numbers one is predicted, one is not, and one does not move."""
    squares = torch.tensor([[0.0, 0.5, 1e-4], [0.0, 0.9, 1e-4]])
    unchanged = torch.tensor([[0.3, 0.5, 0.0], [0.6, 0.7, 0.0]])
    found = OpenLoop(squares, unchanged)
    assert found.error.tolist() == pytest.approx([(0.5001 / 3) ** 0.5, (0.9001 / 3) ** 0.5])
    assert float(found.unexplained) == pytest.approx((0.0 + 1.0 + 0.1) / 3)


def test_loss_by_hand() -> None:
    """Two windows of two steps: the first ends after one (its last observation is lost), the second goes on."""
    model = small_model()
    obs, action, next_obs = torch.randn(2, 3), torch.randn(2, 2, 2), torch.randn(2, 2, 3)
    reward = torch.randn(2, 2)
    terminated = torch.tensor([[True, False], [True, False]])
    counts = torch.tensor([[True, True], [False, True]])
    known = torch.tensor([[False, True], [False, True]])
    loss = model.loss(Windows(obs, action, next_obs, reward, terminated, counts, known))

    first = model(obs, action[0])
    second = model(first.next_obs, action[1])
    scale = model.change_norm.scale
    on_obs = (
        ((first.next_obs[1] - next_obs[0, 1]) * scale).square().mean()
        + ((second.next_obs[1] - next_obs[1, 1]) * scale).square().mean()
    ) / 2
    rewards = torch.stack([first.reward[0], first.reward[1], second.reward[1]])
    true = torch.stack([reward[0, 0], reward[0, 1], reward[1, 1]])
    on_reward = ((rewards - true) * model.reward_norm.scale).square().mean()
    on_end = F.binary_cross_entropy(
        torch.stack([first.continues[0], first.continues[1], second.continues[1]]),
        torch.tensor([0.0, 1.0, 1.0]),
    )
    torch.testing.assert_close(loss.metrics["model/obs_loss"], on_obs.detach())
    torch.testing.assert_close(loss.metrics["model/reward_loss"], on_reward.detach())
    torch.testing.assert_close(loss.metrics["model/end_loss"], on_end.detach())
    torch.testing.assert_close(loss.loss, on_obs + on_reward + on_end)


def test_imagined_returns_by_hand() -> None:
    """Rewards are the observation, which grows by the action; one task goes on with probability 0.5."""

    def model(obs: Tensor, action: Tensor) -> Prediction:
        return Prediction(obs + action, obs[..., 0], torch.tensor([1.0, 0.5]))

    got = imagined_returns(
        model,
        torch.tensor([[1.0], [1.0]]),
        torch.tensor([[2.0], [2.0]]),
        lambda obs, step: torch.full_like(obs, float(step)),
        lambda obs: 10 * obs[..., 0],
        horizon=3,
        gamma=0.9,
    )
    # Observations 1, 3, 4, 6; the actions after the first are 1 and 2.
    goes_on = [
        1 + 0.9 * 30,
        1 + 0.9 * 3 + 0.81 * 40,
        1 + 0.9 * 3 + 0.81 * 4 + 0.729 * 60,
    ]
    half = [1 + 0.45 * 30, 1 + 0.45 * 3 + 0.2025 * 40]
    half += [1 + 0.45 * 3 + 0.2025 * 4 + 0.091125 * 60]
    torch.testing.assert_close(got, torch.tensor([goes_on, half]).T)


def cartpole_windows(rows: int, length: int, seed: int) -> Windows:
    task, generator = CartPole(), torch.Generator().manual_seed(seed)
    obs = (2 * torch.rand(rows, 4, generator=generator) - 1) * torch.tensor([2.4, 2, 0.2, 2])
    alive, state = torch.ones(rows, dtype=torch.bool), obs
    columns: list[list[Tensor]] = [[], [], [], [], []]
    for _ in range(length):
        action = torch.randint(2, (rows,), generator=generator)
        state, reward, terminated = task.advance(state, action)
        step = (F.one_hot(action, 2).float(), state, reward, terminated, alive)
        for column, value in zip(columns, step, strict=True):
            column.append(value)
        alive = alive & ~terminated
    action, next_obs, reward, terminated, counts = map(torch.stack, columns)
    return Windows(obs, action, next_obs, reward, terminated, counts, counts)


@pytest.mark.parametrize("predict", ["delta", "absolute"])
def test_it_learns_the_cartpole(predict: Any) -> None:
    with seeded_init(0):
        model = WorldModelConfig(predict=predict, net=MLPConfig(hidden=(64, 64))).build(4, 2)
    step = AdamConfig(lr=3e-3).build(model, 300)
    data, fresh = cartpole_windows(4096, 3, seed=0), cartpole_windows(512, 10, seed=1)
    model.observe(data.obs, data.reward[0], data.next_obs[0], data.terminated[0])
    untrained = model.open_loop(fresh)
    for number in range(300):
        rows = torch.arange(128) + 128 * (number % 32)
        batch = Windows(data.obs[rows], *(column[:, rows] for column in data[1:]))
        step(model.loss(batch).loss)
    trained = model.open_loop(fresh)
    assert trained.unexplained < (0.02 if predict == "delta" else 0.5)
    assert trained.error[0] < trained.error[-1] < untrained.error[-1]
    with torch.no_grad():
        continues = model(fresh.obs, fresh.action[0]).continues
    ends = fresh.terminated[0]
    assert continues[ends].mean() < 0.7 < 0.9 < continues[~ends].mean()


def test_the_reward_of_an_end_is_learned_apart() -> None:
    """Whether the task ends is a matter of chance here: the mean of the reward is that of both cases."""
    with seeded_init(0):
        model = WorldModelConfig(end_reward=True, net=MLPConfig(hidden=(32,))).build(1, 2)
    generator = torch.Generator().manual_seed(0)
    obs = 2 * torch.rand(4096, 1, generator=generator) - 1
    action = F.one_hot(torch.randint(2, (4096,), generator=generator), 2).float()
    ends = (torch.rand(4096, generator=generator) < 0.2) & (action[:, 0] > 0)
    reward = torch.where(ends, 100.0 * obs[:, 0].sign(), 0.5 * action[:, 1])
    yes = torch.ones(1, 4096, dtype=torch.bool)
    model.observe(obs, reward, obs, ends)
    assert float(model.reward_norm.shift + 3 / model.reward_norm.scale) < 2.0  # without the ends
    step = AdamConfig(lr=1e-2).build(model, 400)
    data = Windows(obs, action[None], obs[None], reward[None], ends[None], yes, yes)
    for _ in range(400):
        step(model.loss(data).loss)
    with torch.no_grad():
        at = torch.tensor([[-0.7], [0.7], [0.7]])
        found = model(at, F.one_hot(torch.tensor([0, 0, 1]), 2).float())
    assert found.continues.tolist() == pytest.approx([0.8, 0.8, 1.0], abs=0.05)
    assert found.reward.tolist() == pytest.approx([-20.0, 20.0, 0.5], abs=4.0)
    assert float(found.reward[2]) == pytest.approx(0.5, abs=0.3)


def test_an_end_reward_needs_plain_rewards() -> None:
    with pytest.raises(UserError, match="end_reward"):
        WorldModelConfig(end_reward=True, squash_reward=True)
