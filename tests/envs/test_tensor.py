"""The torch tasks: contract, parity with Gymnasium, random streams, no waiting for the device."""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from fleetfoot.config import from_json, to_json
from fleetfoot.data import Discrete
from fleetfoot.envs.check import check_env
from fleetfoot.envs.counter import env_keys, mix, uniforms
from fleetfoot.envs.tensor import TensorConfig, TensorEnv, names
from fleetfoot.errors import UserError

CPU = torch.device("cpu")
CONFIGS = {
    "pendulum": TensorConfig(),
    "cartpole": TensorConfig(task="cartpole"),
    "catch": TensorConfig(task="catch"),
    "point_mass": TensorConfig(task="point_mass"),
    "privileged": TensorConfig(task="point_mass", privileged=True),
    "tasks": TensorConfig(task="point_mass", num_tasks=3),
    "pendulums": TensorConfig(task="pendulum", num_tasks=4),
    "privileged tasks": TensorConfig(task="point_mass", num_tasks=3, privileged=True),
}


def random_action(env: TensorEnv, generator: torch.Generator) -> torch.Tensor:
    rows, action = env.spec.num_envs, env.spec.action
    if isinstance(action, Discrete):
        return torch.randint(action.count, (rows,), generator=generator)
    return torch.rand(rows, action.size, generator=generator) * 2 - 1


@pytest.mark.parametrize("name", CONFIGS)
def test_contract(name: str) -> None:
    report = check_env(CONFIGS[name], vec_steps=410 if name.startswith("pendulum") else 205)
    assert report.saves_state
    assert report.renders
    assert report.terminations > 0 or name.startswith("pendulum")
    assert report.truncations > 0 or name in ("cartpole", "catch")


@pytest.mark.parametrize("name", CONFIGS)
def test_step_never_waits_for_the_device(name: str) -> None:
    # Tensors on `meta` have no values: reading one, or a shape that depends on one, raises.
    env = CONFIGS[name].build(6, 0, torch.device("meta"))
    action = random_action(env, torch.Generator()).to("meta")
    assert env.step(action).reward.shape == (6,)


def put(env: TensorEnv, states: np.ndarray) -> None:
    state = env.state_dict()
    env.load_state_dict({**state, "state": torch.tensor(states, dtype=torch.float32)})


def test_pendulum_equals_gymnasium() -> None:
    rng = np.random.default_rng(0)
    rows = 500
    states = rng.uniform((-math.pi, -8), (math.pi, 8), (rows, 2)).astype(np.float32)
    actions = rng.uniform(-1, 1, (rows, 1)).astype(np.float32)
    env = TensorConfig().build(rows, 0, CPU)
    put(env, states)
    step = env.step(torch.from_numpy(actions))
    gym: Any = gymnasium.make("Pendulum-v1").unwrapped
    gym.reset(seed=0)
    for i in range(rows):
        gym.state = states[i].astype(np.float64)
        obs, reward, terminated, _, _ = gym.step(2 * actions[i].astype(np.float64))
        np.testing.assert_allclose(step.next_obs.actor[i], obs, atol=1e-5, rtol=0)
        assert step.reward[i].item() == pytest.approx(reward, abs=1e-5)
        assert step.terminated[i].item() == terminated


def test_cartpole_equals_gymnasium() -> None:
    rng = np.random.default_rng(0)
    rows = 500
    edge = np.array([2.45, 3, 0.215, 3])  # a little more than what ends an episode
    states = rng.uniform(-edge, edge, (rows, 4)).astype(np.float32)
    actions = rng.integers(0, 2, rows)
    env = TensorConfig(task="cartpole").build(rows, 0, CPU)
    put(env, states)
    step = env.step(torch.from_numpy(actions))
    gym: Any = gymnasium.make("CartPole-v1").unwrapped
    ends = 0
    for i in range(rows):
        gym.reset(seed=0)
        gym.state = tuple(states[i].astype(np.float64))
        obs, reward, terminated, _, _ = gym.step(int(actions[i]))
        np.testing.assert_allclose(step.next_obs.actor[i], obs, atol=1e-5, rtol=0)
        assert step.reward[i].item() == reward
        assert step.terminated[i].item() == terminated
        ends += terminated
    assert 0 < ends < rows


def test_limits_and_starts_are_gymnasiums() -> None:
    for config, name in (
        (CONFIGS["pendulum"], "Pendulum-v1"),
        (CONFIGS["cartpole"], "CartPole-v1"),
    ):
        env = config.build(5000, 0, CPU)
        limit = gymnasium.spec(name).max_episode_steps
        assert env.spec.episode_length == limit
        gym = gymnasium.make(name)
        starts = np.stack([gym.reset(seed=i)[0] for i in range(500)])
        ours = env.reset().actor.numpy()
        np.testing.assert_allclose(ours.min(0), starts.min(0), atol=0.02)
        np.testing.assert_allclose(ours.max(0), starts.max(0), atol=0.02)
        np.testing.assert_allclose(ours.std(0), starts.std(0), rtol=0.1)


def test_cartpole_is_truncated_at_500() -> None:
    # A simple controller holds the pole for the whole episode.
    env = TensorConfig(task="cartpole").build(3, 0, CPU)
    obs = env.reset()
    for t in range(1, 501):
        lean = obs.actor @ torch.tensor([0.05, 0.2, 1.0, 0.5])
        step = env.step((lean > 0).long())
        obs = step.obs
        assert not step.terminated.any()
        assert step.truncated.tolist() == [t == 500] * 3


def splitmix(x: int) -> int:
    """The definition, on unbounded integers."""
    word = 2**64 - 1
    x = (x + 0x9E3779B97F4A7C15) & word
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & word
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & word
    return x ^ (x >> 31)


def test_mix_is_splitmix64() -> None:
    counters = [0, 1, 2**31, 2**62 + 12345, 2**63 - 1, -1, -(2**63), -987654321]
    mixed = mix(torch.tensor(counters)).tolist()
    assert [value % 2**64 for value in mixed] == [splitmix(c % 2**64) for c in counters]
    assert splitmix(0) == 0xE220A8397B1DCDAF  # the published first output of seed 0


def test_uniforms_are_uniform_and_independent() -> None:
    key = env_keys(0, 4000, CPU)
    first, second = uniforms(key, key * 0 + 1, 3), uniforms(key, key * 0 + 2, 3)
    draws = torch.cat([first, second], 1)  # [4000, 6]
    assert draws.min() >= 0
    assert draws.max() < 1
    counts = torch.histc(draws, bins=20, min=0, max=1)
    expected = draws.numel() / 20
    chi2 = ((counts - expected) ** 2 / expected).sum()
    assert chi2 < 43.8  # 19 degrees of freedom, 0.1 %
    off_diagonal = torch.corrcoef(draws.T) - torch.eye(6)
    assert off_diagonal.abs().max() < 0.06
    assert len(draws.unique()) > 0.99 * draws.numel()  # type: ignore[no-untyped-call]


def test_keys_depend_on_seed_and_index_alone() -> None:
    assert torch.equal(env_keys(7, 5, CPU), env_keys(7, 100, CPU)[:5])
    assert len(torch.cat([env_keys(s, 1000, CPU) for s in range(5)]).unique()) == 5000  # type: ignore[no-untyped-call]
    assert env_keys(2**64 + 3, 2, CPU).tolist() == env_keys(3, 2, CPU).tolist()


def test_catch_pays_for_being_below_the_ball() -> None:
    env = TensorConfig(task="catch").build(64, 0, CPU)
    image = env.reset().actor
    assert image.shape == (64, 1, 10, 10)
    for _ in range(8):
        ball = image[:, 0, :9].sum(1, dtype=torch.int64).argmax(1)
        paddle = image[:, 0, 9].argmax(1)
        step = env.step((ball - paddle).sign() + 1)
        assert not step.terminated.any()
        assert not step.reward.any()
        image = step.obs.actor
    step = env.step(torch.ones(64, dtype=torch.int64))
    assert step.terminated.all()
    assert step.reward.tolist() == [1.0] * 64
    for _ in range(9):
        step = env.step(torch.zeros(64, dtype=torch.int64))  # now in the leftmost column
    caught = step.next_obs.actor[:, 0, 9, 0] > 0
    landed_left = step.next_obs.actor[:, 0, 9].sum(1, dtype=torch.int64) == 255
    assert caught.all()
    assert torch.equal(step.reward > 0, landed_left)
    assert 0 < landed_left.sum() < 64


def test_point_mass_is_solved_by_pushing_towards_the_goal() -> None:
    env = TensorConfig(task="point_mass").build(200, 0, CPU)
    obs = env.reset()
    start = obs.actor[:, 2:4].norm(dim=1)
    total, running = torch.zeros(200), torch.ones(200, dtype=torch.bool)
    for _ in range(99):
        step = env.step((8 * obs.actor[:, 2:4] - 2 * obs.actor[:, 4:6]).clamp(-1, 1))
        total += step.reward * running
        running &= ~step.terminated
        obs = step.obs
    assert not running.any()
    # The distances gained add up to the start's, less the 0.1 or less that remained.
    assert (total - (start + 1)).abs().max() <= 0.1001


def test_point_mass_ends_with_a_penalty_outside() -> None:
    env = TensorConfig(task="point_mass").build(50, 0, CPU)
    for _ in range(60):
        step = env.step(torch.tensor([[1.0, 0.0]]).expand(50, 2))
        left = step.next_obs.actor[:, 0] > 1
        near = step.next_obs.actor[:, 2:4].norm(dim=1) < 0.1
        assert torch.equal(step.terminated, left | near)
        assert (step.reward[left & ~near] < 0).all()
        if left.any():
            return
    pytest.fail("nothing left the arena")


def test_tasks_differ_in_goal_and_reward_scale() -> None:
    env = TensorConfig(task="point_mass", num_tasks=3).build(6, 0, CPU)
    assert env.spec.task_ids == (0, 1, 2, 0, 1, 2)
    assert env.spec.obs_shape == (4,)  # position and velocity: the goal is hidden
    put(env, np.concatenate([np.zeros((6, 4)), env.state[:, 4:].numpy()], 1))
    goals = env.state[:, 4:]
    step = env.step(goals / goals.norm(dim=1, keepdim=True))
    assert len({tuple(goal) for goal in goals.tolist()}) == 3
    assert step.reward[1] / step.reward[0] == pytest.approx(10, rel=1e-4)
    assert step.reward[2] / step.reward[0] == pytest.approx(100, rel=1e-4)


def test_privileged_critic_sees_velocity_and_distance() -> None:
    env = TensorConfig(task="point_mass", privileged=True).build(4, 0, CPU)
    step = env.step(torch.ones(4, 2))
    obs = step.next_obs
    assert torch.equal(obs.critic[:, :4], obs.actor)
    assert torch.allclose(obs.critic[:, 4:6], torch.full((4, 2), 0.2))
    assert torch.equal(obs.critic[:, 6], obs.actor[:, 2:4].norm(dim=1))


@pytest.mark.parametrize("name", CONFIGS)
def test_pictures_show_the_state(name: str) -> None:
    env = CONFIGS[name].build(2, 0, CPU)
    before = env.render(1)
    generator = torch.Generator().manual_seed(0)
    for _ in range(5):
        env.step(random_action(env, generator))
    assert before.shape == (240, 240, 3)
    assert (before != 255).any()
    assert (env.render(1) != before).any()
    assert (env.render(0) != env.render(1)).any()


def test_a_hanging_pendulum_is_drawn_downwards() -> None:
    env = TensorConfig().build(2, 0, CPU)
    put(env, np.array([[0.0, 0.0], [math.pi, 0.0]]))
    up, down = (np.argwhere(env.render(i).sum(2) < 765)[:, 0].mean() for i in range(2))
    assert up < 120 < down


def test_pendulums_are_mirror_images_that_pay_differently() -> None:
    one, four = TensorConfig().build(1, 0, CPU), TensorConfig(num_tasks=4).build(4, 0, CPU)
    put(one, np.array([[0.3, -0.5]]))
    put(four, np.array([[0.3, -0.5]] * 4))
    torque = torch.tensor([[0.7], [-0.7], [0.7], [-0.7]])
    alone, together = one.step(torque[:1]), four.step(torque)
    assert torch.equal(together.next_obs.actor, alone.next_obs.actor.expand(4, -1))
    pays = torch.tensor([1.0, 10.0, 100.0, 1000.0])
    torch.testing.assert_close(together.reward, alone.reward * pays)


def test_bad_configs_get_one_line() -> None:
    with pytest.raises(UserError, match="Did you mean pendulum"):
        TensorConfig(task="pendulun").build(1, 0, CPU)
    with pytest.raises(UserError, match="only point_mass has one"):
        TensorConfig(privileged=True).build(1, 0, CPU)
    with pytest.raises(UserError, match="point_mass and pendulum have one"):
        TensorConfig(task="catch", num_tasks=2).build(1, 0, CPU)
    with pytest.raises(UserError, match="at least 1"):
        TensorConfig().build(0, 0, CPU)


def test_a_foreign_state_is_refused_and_changes_nothing() -> None:
    env, other = TensorConfig().build(3, 0, CPU), TensorConfig().build(4, 1, CPU)
    before = env.state_dict()
    with pytest.raises(UserError, match="same task and number"):
        env.load_state_dict(other.state_dict())
    with pytest.raises(UserError, match="'clock' is None"):
        env.load_state_dict({"state": before["state"]})
    assert all(torch.equal(before[name], now) for name, now in env.state_dict().items())


def test_configs_survive_json_and_list_their_tasks() -> None:
    for config in CONFIGS.values():
        assert from_json(to_json(config)) == config
        assert config.for_evaluation() == config
    assert set(names()) == {"pendulum", "cartpole", "catch", "point_mass"}


@pytest.mark.gpu
@pytest.mark.parametrize("name", CONFIGS)
def test_contract_on_the_gpu_without_synchronisation(name: str) -> None:
    check_env(CONFIGS[name], vec_steps=205, device="cuda")
    env = CONFIGS[name].build(64, 0, torch.device("cuda"))
    action = random_action(env, torch.Generator()).to("cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            env.step(action)
    finally:
        torch.cuda.set_sync_debug_mode("default")
