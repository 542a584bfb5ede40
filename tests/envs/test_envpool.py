"""The EnvPool adapter: contract, restarts, limits, layouts, and several tasks as one set."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks.speed.envpool import bare_player, bench_envpool
from fleetfoot.config import from_json, to_json
from fleetfoot.data import Continuous, Step
from fleetfoot.envs.check import check_env
from fleetfoot.envs.envpool import EnvPoolConfig, EnvPoolEnv, EnvPoolTasksConfig
from fleetfoot.envs.envpool.pool import TaskKind, _check_gl, load
from fleetfoot.envs.envpool.tasks import SETS
from fleetfoot.envs.robot.config import stock_of
from fleetfoot.envs.vec_env import TwoHalves
from fleetfoot.errors import UserError
from fleetfoot.topologies.multi_seed.env import ConcatVecEnv
from support.extras import needs

needs("envpool")
CPU = torch.device("cpu")
SMALL = ("PendulumSwingup-v1", "ReacherEasy-v1", "CartpoleSwingup-v1")  # 3, 6 and 5 features


def script(length: int, num_envs: int, size: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(length, num_envs, size, generator=generator) * 2 - 1


def size_of(env: EnvPoolEnv) -> int:
    assert isinstance(env.spec.action, Continuous)
    return env.spec.action.size


def play(
    config: EnvPoolConfig | EnvPoolTasksConfig, actions: Tensor, seed: int = 3
) -> tuple[Tensor, list[Step]]:
    env = config.build(actions.shape[1], seed, CPU)
    first = env.reset().actor
    steps = [env.step(action) for action in actions]
    env.close()
    return first, steps


@pytest.mark.parametrize(
    "config",
    [
        EnvPoolConfig(task="WalkerRun-v1", max_episode_steps=25, action_repeat=2),
        EnvPoolConfig(task="MetaWorld/Reach-v3", max_episode_steps=15),
        EnvPoolConfig(task="Hopper-v5", max_episode_steps=25, threads=2),  # terminates too
        EnvPoolTasksConfig(set="", tasks=SMALL, max_episode_steps=20),
    ],
    ids=lambda config: getattr(config, "task", "several"),
)
def test_contract(config: EnvPoolConfig | EnvPoolTasksConfig) -> None:
    report = check_env(config, num_envs=4, vec_steps=45, render=False)
    assert report.truncations > 0
    assert (report.terminations > 0) == ("Hopper" in report.spec.name)
    assert not report.saves_state
    assert set(report.untried) == {"state", "render"}


def test_dummy_steps_never_show() -> None:
    """The bare EnvPool's run, less the steps after an end, is ours; each environment counts its own steps."""
    config = EnvPoolConfig(task="Hopper-v5", max_episode_steps=30)
    env = config.build(3, 3, CPU)
    bare: Any = load().make(
        "Hopper-v5",
        env_type="gymnasium",
        num_envs=3,
        env_seed=[pool_seed(3, i) for i in range(3)],
        max_episode_steps=30,
    )
    obs, begun = env.reset().actor, bare.reset()[0]
    assert torch.equal(obs, torch.from_numpy(begun).float())
    actions = script(80, 3, size_of(env))
    ours: list[list[tuple[Any, ...]]] = [[], [], []]
    for action in actions:
        step = env.step(action)
        for i in range(3):
            ends = bool(step.terminated[i]), bool(step.truncated[i])
            ours[i].append((step.next_obs.actor[i], step.reward[i], *ends, step.obs.actor[i]))
    for i in range(3):
        # Alone, for each environment would otherwise get the others' clock: ours take one action per real step.
        taken, restarted = 0, 0
        single: Any = load().make(
            "Hopper-v5", env_type="gymnasium", num_envs=1, env_seed=[pool_seed(3, i)]
        )
        single.reset()
        while taken < 80:
            row = actions[taken, i].double().numpy()[None]
            seen, reward, terminated, _, info = single.step(row)
            length = int(info["elapsed_step"][0])
            if length == 0:  # the step after an end
                assert torch.equal(ours[i][taken - 1][4], torch.from_numpy(seen[0]).float())
                restarted += 1
                continue
            wanted = ours[i][taken]
            assert torch.equal(wanted[0], torch.from_numpy(seen[0]).float())
            assert float(wanted[1]) == float(reward[0])
            assert wanted[2] == bool(terminated[0])
            assert wanted[3] == (length == 30 and not terminated[0])
            taken += 1
            if length == 30 and not terminated[0]:
                fresh = single.reset()[0]
                assert torch.equal(wanted[4], torch.from_numpy(fresh[0]).float())
        assert restarted > 0


def pool_seed(seed: int, row: int) -> int:
    return int(np.random.SeedSequence(seed, spawn_key=(row,)).generate_state(1)[0]) >> 1


def test_an_end_in_the_last_step_is_no_truncation() -> None:
    free = EnvPoolConfig(task="Hopper-v5")
    actions = script(200, 1, 3)
    _, steps = play(free, actions)
    length = 1 + next(t for t, step in enumerate(steps) if step.terminated[0])
    _, steps = play(EnvPoolConfig(task="Hopper-v5", max_episode_steps=length), actions[:length])
    assert steps[-1].terminated[0]
    assert not steps[-1].truncated[0]


def test_action_repeat_sums_rewards_and_stops_at_the_end() -> None:
    actions = script(12, 2, 6)
    once = EnvPoolConfig(task="WalkerRun-v1", max_episode_steps=5)
    twice = EnvPoolConfig(task="WalkerRun-v1", max_episode_steps=5, action_repeat=2)
    _, steps = play(twice, actions)
    assert twice.build(1, 0, CPU).spec.episode_length == 3
    # Two of each action, but one of the third: the episode is five steps long.
    held = torch.cat([actions[i : i + 1].expand(1 + (i % 3 < 2), -1, -1) for i in range(12)])
    _, single = play(once, held)
    at = 0
    for i, step in enumerate(steps):
        parts = single[at : at + 1 + (i % 3 < 2)]
        at += len(parts)
        assert torch.equal(step.reward, torch.stack([p.reward for p in parts]).sum(0))
        assert torch.equal(step.next_obs.actor, parts[-1].next_obs.actor)
        assert torch.equal(step.obs.actor, parts[-1].obs.actor)
        assert bool(step.truncated.all()) == (i % 3 == 2)


@pytest.mark.parametrize(
    ("task", "size"),
    [
        ("WalkerRun-v1", 24),
        ("HumanoidRun-v1", 67),
        ("HumanoidRunPureState-v1", 55),
        ("DogRun-v1", 223),
        ("DogFetch-v1", 232),
        ("QuadrupedRun-v1", 78),
        ("QuadrupedEscape-v1", 101),
        ("FishSwim-v1", 24),
        ("FingerSpin-v1", 9),
        ("ManipulatorBringBall-v1", 44),
    ],
)
def test_sizes_are_those_of_dm_control(task: str, size: int) -> None:
    assert TaskKind(task, {}).obs_shape == (size,)


def test_order_of_a_dictionary() -> None:
    kind = TaskKind("FishSwim-v1", {})
    assert [key for key, _, _ in kind.layout] == [
        "obs:joint_angles",
        "obs:upright",
        "obs:target",  # EnvPool has it last
        "obs:velocity",
    ]
    env = EnvPoolConfig(task="FishSwim-v1").build(2, 0, CPU)
    row = env.reset().actor
    assert (row[:, 11:] == 0).all()  # it starts at rest
    assert (row[:, 8:11] != 0).all()  # away from its target


def test_privileged_observations() -> None:
    config = EnvPoolConfig(task="MuJoCoPlayground/Go1JoystickFlatTerrain-v1", threads=1)
    env = config.build(2, 0, CPU)
    assert env.spec.obs_shape == (48,)
    assert env.spec.critic_shape == (123,)
    assert env.spec.critic_prefix == 48
    assert env.spec.step_seconds == 0.02
    env.reset()
    step = env.step(script(1, 2, 12)[0])
    assert torch.equal(step.obs.actor, step.obs.critic[:, :48])
    env.close()


def test_playgrounds_robots_tell_what_ours_do() -> None:
    name = "MuJoCoPlayground/T1JoystickFlatTerrain-v1"
    env = EnvPoolConfig(task=name, threads=1).build(1, 0, CPU)
    stock = stock_of("T1JoystickFlatTerrain")
    assert stock is not None
    told = env.spec.description
    assert told["control_hz"] == pytest.approx(50)
    assert {**told, "control_hz": 50} == {**stock.description, "control_hz": 50}
    # The terms lie where they are said to lie: an observation holds the action before the last.
    sizes = {term["name"]: term["size"] for term in told["observation"]}
    assert sum(sizes.values()) == env.spec.obs_shape[0]
    at = sum(sizes[name] for name in list(sizes)[: list(sizes).index("last_action")])
    actions = 0.1 * script(3, 1, 23)
    env.reset()
    steps = [env.step(action) for action in actions]
    for before, step in zip(actions, steps[1:], strict=False):
        seen = step.next_obs.actor[:, at : at + 23]
        assert torch.allclose(seen, before, atol=1e-6)
    env.close()
    twice = EnvPoolConfig(task=name, threads=1, action_repeat=2).build(1, 0, CPU)
    assert twice.spec.description["control_hz"] == pytest.approx(25)
    twice.close()


def test_other_tasks_tell_the_scale_of_their_actions() -> None:
    env = EnvPoolConfig(task="WalkerRun-v1", threads=1).build(1, 0, CPU)
    assert env.spec.description == {"action": {"offset": [0.0] * 6, "scale": [1.0] * 6}}
    env.close()


def test_goals_of_meta_world_are_visible() -> None:
    first, _ = play(EnvPoolConfig(task="MetaWorld/Reach-v3"), script(0, 2, 4))
    assert (first[:, 36:] != 0).all()
    hidden = EnvPoolConfig(task="MetaWorld/Reach-v3", kwargs={"partially_observable": True})
    first, _ = play(hidden, script(0, 2, 4))
    assert (first[:, 36:] == 0).all()


def test_success() -> None:
    """The hand is driven to the goal: the task says when it is there."""
    env = EnvPoolConfig(task="MetaWorld/Reach-v3").build(2, 0, CPU)
    obs, hits = env.reset().actor, torch.zeros(2)
    for _ in range(100):
        action = torch.zeros(2, 4)
        action[:, :3] = (10 * (obs[:, 36:39] - obs[:, :3])).clamp(-1, 1)
        step = env.step(action)
        obs = step.next_obs.actor
        hits = torch.maximum(hits, step.info["success"])
    assert hits.tolist() == [1, 1]


def test_several_tasks_are_the_single_ones() -> None:
    config = EnvPoolTasksConfig(set="", tasks=SMALL, max_episode_steps=8)
    env = config.build(5, 3, CPU)
    assert env.spec.tasks == SMALL
    assert env.spec.task_ids == (0, 1, 2, 0, 1)
    assert env.spec.obs_shape == (6,)
    assert env.spec.action == Continuous(2)
    actions = script(20, 5, 2)
    first, steps = play(config, actions)
    for k, task in enumerate(SMALL):
        alone = EnvPoolConfig(task=task, max_episode_steps=8).build(5, 3, CPU)
        size, width = alone.spec.obs_shape[0], size_of(alone)
        rows = list(range(k, 5, 3))
        assert torch.equal(first[rows, :size], alone.reset().actor[rows])
        for action, step in zip(actions, steps, strict=True):
            wanted = alone.step(action[:, :width])
            for ours, theirs in ((step.obs, wanted.obs), (step.next_obs, wanted.next_obs)):
                assert torch.equal(ours.actor[rows, :size], theirs.actor[rows])
                assert (ours.actor[rows, size:] == 0).all()
            assert torch.equal(step.reward[rows], wanted.reward[rows])
            assert torch.equal(step.truncated[rows], wanted.truncated[rows])


@pytest.mark.parametrize("repeat", [1, 2])
def test_sets_joined_are_the_single_ones(repeat: int) -> None:
    config = EnvPoolConfig(task="Hopper-v5", max_episode_steps=25, action_repeat=repeat)
    actions = script(40, 3, 3)
    joined = ConcatVecEnv([config.build(1, seed, CPU) for seed in range(3)], CPU)
    assert all(isinstance(part, TwoHalves) for part in joined.sets)
    first = joined.reset().actor
    steps = [joined.step(action) for action in actions]
    for row in range(3):
        begun, wanted = play(config, actions[:, row : row + 1], seed=row)
        assert torch.equal(first[row], begun[0])
        assert any(step.terminated[0] for step in wanted)
        for ours, theirs in zip(steps, wanted, strict=True):
            assert torch.equal(ours.obs.actor[row], theirs.obs.actor[0])
            assert torch.equal(ours.next_obs.actor[row], theirs.next_obs.actor[0])
            assert ours.reward[row] == theirs.reward[0]
            assert ours.truncated[row] == theirs.truncated[0]
    joined.close()


def test_fewer_environments_than_tasks_keep_the_sizes() -> None:
    env = EnvPoolTasksConfig(set="", tasks=SMALL).build(1, 0, CPU)
    assert env.spec.tasks == SMALL
    assert env.reset().actor.shape == (1, 6)


def test_sets() -> None:
    known = set(load().list_all_envs())
    assert {name: len(tasks) for name, tasks in SETS.items()} == {
        "mt10": 10,
        "mt50": 50,
        "dogs": 4,
        "humanoids": 3,
        "dogs_and_humanoids": 7,
    }
    assert all(task in known for tasks in SETS.values() for task in tasks)
    assert all(len(set(tasks)) == len(tasks) for tasks in SETS.values())
    env = EnvPoolTasksConfig(set="dogs_and_humanoids").build(1, 0, CPU)
    assert env.spec.obs_shape == (223,)
    assert env.spec.action == Continuous(38)
    assert env.spec.episode_length == 1000


def test_picture() -> None:
    env = EnvPoolConfig(task="PendulumSwingup-v1").build(2, 0, CPU)
    env.reset()
    try:  # this alone: what rendering itself says must fail the test
        _check_gl()
    except (
        UserError
    ) as why:  # no EGL on this machine, or another module of this process imported EnvPool first
        pytest.skip(str(why))
    picture = env.render(1)
    assert picture.shape == (360, 480, 3)
    assert picture.std() > 0


@pytest.mark.parametrize(
    "config",
    [EnvPoolConfig(task="DogRun-v1", action_repeat=2), EnvPoolTasksConfig(set="", tasks=SMALL)],
)
def test_json(config: Any) -> None:
    assert from_json(to_json(config)) == config


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: EnvPoolConfig(task="WalkerRnu-v1").build(1, 0, CPU), "Did you mean WalkerRun-v1"),
        (lambda: EnvPoolConfig(task="LqrLqr21-v1").build(1, 0, CPU), "without bounds"),
        (lambda: EnvPoolConfig(kwargs={"no": 1}).build(1, 0, CPU), "cannot be made with"),
        (lambda: EnvPoolConfig().build(0, 0, CPU), "at least 1, not 0"),
        (lambda: EnvPoolConfig(action_repeat=0), "action_repeat must be at least 1"),
        (lambda: EnvPoolTasksConfig(set="mt11"), "Did you mean mt10"),
        (lambda: EnvPoolTasksConfig(tasks=SMALL), "either env.set or env.tasks"),
        (lambda: EnvPoolTasksConfig(set="", tasks=("WalkerRun-v1",)), "two or more"),
        (
            lambda: EnvPoolTasksConfig(set="", tasks=("Pong-v5", "WalkerRun-v1")).build(1, 0, CPU),
            "cannot be one set",
        ),
        (lambda: EnvPoolConfig().build(1, 0, CPU).step(torch.zeros(1, 5)), r"float32 \[1, 6\]"),
        (lambda: EnvPoolConfig().build(1, 0, CPU).load_state_dict({}), "cannot be restored"),
    ],
)
def test_mistakes(make: Any, says: str) -> None:
    with pytest.raises(UserError, match=says):
        make()


def test_bench() -> None:
    result = bench_envpool(task="PendulumSwingup-v1", num_envs=2, seconds=0.2, rounds=1, threads=1)
    assert set(result["env_steps_per_second"]) == {"fleetfoot", "bare"}
    assert result["ratio_to_bare"] > 0
    with pytest.raises(UserError, match="continuous actions"):
        bench_envpool(task="Pong-v5")


def test_the_bare_contestant_does_none_of_our_work(monkeypatch: pytest.MonkeyPatch) -> None:
    step, own = bare_player("PendulumSwingup-v1", 2, 1, 0, script(3, 2, 1).numpy())
    monkeypatch.setattr(TaskKind, "convert", None)
    step(own[0])


def test_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(UserError, match="pip install 'envpool"):
        EnvPoolConfig().build(1, 0, CPU)
