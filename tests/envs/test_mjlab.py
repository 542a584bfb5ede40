"""The mjlab adapter: contract, true last observations, ends, and what it asks of mjlab."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fleetfoot.config import from_json, to_json
from fleetfoot.data import Continuous, Step
from fleetfoot.envs.check import check_env
from fleetfoot.envs.lab import mjlab
from fleetfoot.envs.lab.mjlab import MjlabConfig, MjlabEnv, names, task_config
from fleetfoot.errors import UserError

CPU = torch.device("cpu")
CARTPOLE = "Mjlab-Cartpole-Balance"
GO1, G1 = "Mjlab-Velocity-Flat-Unitree-Go1", "Mjlab-Velocity-Flat-Unitree-G1"


@pytest.fixture
def simulator() -> None:
    pytest.importorskip("mjlab")


def script(length: int, env: MjlabEnv, seed: int = 0) -> Tensor:
    assert isinstance(env.spec.action, Continuous)
    generator = torch.Generator().manual_seed(seed)
    shape = (length, env.spec.num_envs, env.spec.action.size)
    return torch.rand(shape, generator=generator) * 2 - 1


def build(task: str = CARTPOLE, num_envs: int = 3, seed: int = 4, **options: Any) -> MjlabEnv:
    env = MjlabConfig(task=task, **options).build(num_envs, seed, CPU)
    env.reset()
    return env


def play(env: MjlabEnv, length: int) -> list[Step]:
    return [env.step(action) for action in script(length, env)]


def same(one: Step, other: Step) -> bool:
    pairs = [(one.reward, other.reward), *zip(one.next_obs[:2], other.next_obs[:2], strict=True)]
    return all(torch.equal(left, right) for left, right in pairs)


@pytest.mark.usefixtures("simulator")
@pytest.mark.parametrize(
    ("task", "seconds", "sizes"),
    [
        pytest.param(CARTPOLE, 1.0, (5, 5, 1, 20), id="cartpole"),
        pytest.param(GO1, 0.4, (48, 72, 12, 20), id="go1", marks=pytest.mark.slow),
        pytest.param(G1, 0.4, (99, 111, 29, 20), id="g1", marks=pytest.mark.slow),
    ],
)
def test_contract(task: str, seconds: float, sizes: tuple[int, ...]) -> None:
    config = MjlabConfig(task=task, changes={"episode_length_s": seconds})
    # The copies draw from one stream, so they do depend on their number.
    report = check_env(config, vec_steps=45, independent_seeds=False)
    spec = report.spec
    assert (spec.obs_shape, spec.critic_shape) == ((sizes[0],), (sizes[1],))
    assert (spec.action, spec.episode_length) == (Continuous(sizes[2]), sizes[3])
    assert report.truncations == 8
    assert report.renders
    assert spec.exact_final_obs


@pytest.mark.usefixtures("simulator")
@pytest.mark.slow
def test_contract_on_rough_ground() -> None:
    task = "Mjlab-Velocity-Rough-Unitree-Go1"
    config = MjlabConfig(task=task, changes={"episode_length_s": 0.4})
    report = check_env(config, vec_steps=22, num_envs=2, independent_seeds=False, render=False)
    assert report.truncations == 2
    assert report.spec.episode_length is None  # the edge of the ground truncates too


@pytest.mark.usefixtures("simulator")
@pytest.mark.parametrize(
    ("task", "seconds", "dt"),
    [(CARTPOLE, 0.5, 0.05), pytest.param(GO1, 0.2, 0.02, marks=pytest.mark.slow)],
    ids=["cartpole", "go1"],
)
def test_the_last_observation_is_what_followed_the_last_action(
    task: str, seconds: float, dt: float
) -> None:
    # The same seed with a longer time: until the first episode ends both are the same, noise and all.
    short = play(build(task, changes={"episode_length_s": seconds}), 10)
    long = play(build(task), 10)
    assert short[0].info.keys() == long[0].info.keys()
    for one, other in zip(short, long, strict=True):
        assert same(one, other)
    assert short[-1].truncated.all()
    assert not long[-1].truncated.any()
    assert not torch.equal(short[-1].obs.actor, short[-1].next_obs.actor)
    assert torch.equal(long[-1].obs.actor, long[-1].next_obs.actor)


@pytest.mark.usefixtures("simulator")
def test_an_episode_that_ends_alone_leaves_the_others_as_they_are() -> None:
    env, twin = build(), build()
    clock = env.envs.episode_length_buf
    clock[1] = env.envs.max_episode_length - 3
    for t, action in enumerate(script(8, env)):
        step, wanted = env.step(action), twin.step(action)
        assert step.truncated.tolist() == [False, t == 2, False]
        for seen, other in zip(step.next_obs[:2], wanted.next_obs[:2], strict=True):
            assert torch.equal(seen[[0, 2]], other[[0, 2]])
            assert torch.equal(seen[1], other[1]) == (t <= 2)  # the last one is still the true one
        assert (step.obs.actor != step.next_obs.actor).any(1).tolist() == [False, t == 2, False]
    assert clock.tolist() == [8, 5, 8]


@pytest.mark.usefixtures("simulator")
@pytest.mark.slow
def test_sensor_noise_is_drawn_once_per_step() -> None:
    env = build(GO1)
    env.envs.episode_length_buf[1] = env.envs.max_episode_length - 1
    step = env.step(script(1, env)[0])
    assert step.truncated.tolist() == [False, True, False]
    # mjlab gave the others new noise when it restarted one; it is not taken.
    assert torch.equal(step.obs.actor[[0, 2]], step.next_obs.actor[[0, 2]])
    assert not torch.equal(env.envs.obs_buf["actor"][[0, 2]], step.obs.actor[[0, 2]])


@pytest.mark.usefixtures("simulator")
@pytest.mark.slow
def test_a_fall_is_a_termination_also_in_the_last_step() -> None:
    always = {"terminations.fell_over.params.limit_angle": -1.0}
    for seconds in (20.0, 0.02):
        step = play(build(GO1, changes=always | {"episode_length_s": seconds}), 1)[0]
        assert step.terminated.all()
        assert not step.truncated.any()


@pytest.mark.usefixtures("simulator")
def test_equals_the_bare_environment() -> None:
    from mjlab.envs import ManagerBasedRlEnv
    from mjlab.tasks.registry import load_env_cfg

    for exact in (True, False):
        changes = {"episode_length_s": 0.25}
        env = build(exact_final_obs=exact, action_scale=2.0, changes=changes)
        cfg = load_env_cfg(CARTPOLE)
        cfg.scene.num_envs, cfg.seed, cfg.episode_length_s = 3, 4, 0.25
        bare = ManagerBasedRlEnv(cfg, device="cpu")  # it restarts inside `step`
        bare.reset()
        for action in script(4, env):
            seen, reward, _, _, _ = bare.step(2 * action)
            step = env.step(action)
            assert torch.equal(step.next_obs.actor, seen["actor"])
            assert torch.equal(step.next_obs.critic, seen["critic"])
            assert torch.equal(step.reward, reward)
            assert torch.equal(step.info["env/reward_smooth_reward"] * 0.05, reward)
        last = env.step(action)
        assert last.truncated.all()
        assert torch.equal(last.obs.actor, last.next_obs.actor) == (not exact)
        assert env.spec.exact_final_obs == exact
        seen = bare.step(2 * action)[0]
        assert torch.equal(last.obs.actor, seen["actor"])  # the same restart, drawn alike


@pytest.mark.usefixtures("simulator")
def test_two_sets_in_turn_are_as_each_alone() -> None:
    alone = play(build(changes={"episode_length_s": 0.25}), 12)
    one, two = (build(seed=seed, changes={"episode_length_s": 0.25}) for seed in (4, 5))
    before = torch.get_rng_state()
    for action, wanted in zip(script(12, one), alone, strict=True):
        assert same(one.step(action), wanted)
        two.step(action)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.usefixtures("simulator")
def test_first_episodes_end_anywhere_when_asked() -> None:
    env = build(num_envs=40, spread_ends=True, changes={"episode_length_s": 0.25})
    assert env.spec.episode_length is None
    ends = torch.stack([step.truncated for step in play(env, 5)])
    assert ends.sum(0).tolist() == [1] * 40
    assert ends.any(1).all()


@pytest.mark.usefixtures("simulator")
def test_the_end_of_a_finite_task_is_a_termination() -> None:
    env = build(changes={"episode_length_s": 0.1, "is_finite_horizon": True})
    assert env.spec.episode_length is None
    steps = play(env, 2)
    assert steps[-1].terminated.all()
    assert not steps[-1].truncated.any()


@pytest.mark.usefixtures("simulator")
def test_evaluation_is_mjlabs_play_variant_with_an_end() -> None:
    config = MjlabConfig(task=GO1, spread_ends=True, action_scale=0.5)
    assert config.for_evaluation() == MjlabConfig(task=GO1, play=True, action_scale=0.5)
    train, seen = task_config(config), task_config(config.for_evaluation())
    assert seen.episode_length_s == train.episode_length_s == 20.0
    assert "push_robot" in train.events
    assert "push_robot" not in seen.events
    assert train.observations["actor"].enable_corruption
    assert not seen.observations["actor"].enable_corruption


@pytest.mark.usefixtures("simulator")
@pytest.mark.slow
def test_tasks_that_know_success_tell_it() -> None:
    env = build("Mjlab-Lift-Cube-Yam", changes={"commands.lift_height.success_threshold": 0.0})
    assert play(env, 1)[0].info["success"].tolist() == [0.0] * 3
    env = build("Mjlab-Lift-Cube-Yam", changes={"commands.lift_height.success_threshold": 9.0})
    assert play(env, 1)[0].info["success"].tolist() == [1.0] * 3


@pytest.mark.usefixtures("simulator")
def test_mistakes_get_one_line() -> None:
    assert {CARTPOLE, GO1, G1} <= set(names())
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"task": "Mjlab-Velocity-Flat-Unitree-Go2"}, "Did you mean .*Go1"),
        (
            {"changes": {"rewards.uprigth.weight": 1.0}},
            "there is no 'uprigth'. Did you mean upright",
        ),
        ({"changes": {"episode_length_s.x": 1.0}}, "there is no 'x'"),
        ({"task": "Mjlab-Lift-Cube-Yam-Rgb"}, "camera"),
        ({"task": "Mjlab-Tracking-Flat-Unitree-G1"}, "motion_file"),
    ]
    for options, message in wrong:
        with pytest.raises(UserError, match=message) as caught:
            MjlabConfig(**options).build(1, 0, CPU)
        assert "\n" not in str(caught.value)


def test_wrong_options_are_refused_without_mjlab() -> None:
    for scale in (0.0, -1.0, float("inf")):
        with pytest.raises(UserError, match=r"env\.action_scale"):
            MjlabConfig(action_scale=scale)
    with pytest.raises(UserError, match="num_envs"):
        MjlabConfig().build(0, 0, CPU)
    config = MjlabConfig(changes={"rewards.upright.weight": 2.0})
    assert from_json(to_json(config)) == config


def test_without_mjlab_one_line_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "mjlab"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "mjlab", None)
    for call in (mjlab.names, lambda: MjlabConfig().build(1, 0, CPU)):
        with pytest.raises(UserError, match=r"pip install 'mjlab~=") as caught:
            call()
        assert "\n" not in str(caught.value)


def test_an_incomplete_mjlab_is_not_called_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "mjlab"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "mjlab", None)  # so that the one below does not stay
    del sys.modules["mjlab"]
    (tmp_path / "mjlab").mkdir()
    (tmp_path / "mjlab" / "__init__.py").touch()
    (tmp_path / "mjlab" / "tasks.py").write_text("import mjlab.robots")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match=r"cannot be imported: No module named 'mjlab.robots'"):
        mjlab.names()
