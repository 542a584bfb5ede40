"""The embedded MuJoCo environment: parity with Gymnasium, seeds, resets, randomisation, saving, pictures."""

from __future__ import annotations

import dataclasses
from typing import Any

import gymnasium
import mujoco
import numpy as np
import pytest
import torch

from benchmarks.speed.env import bench_env
from fleetfoot.config import from_json, to_json
from fleetfoot.data import Continuous, Step
from fleetfoot.envs import render
from fleetfoot.envs.check import check_env
from fleetfoot.envs.mujoco import Draw, MuJoCoConfig, MuJoCoEnv, Physics, Task, names
from fleetfoot.envs.mujoco import tasks as mujoco_tasks
from fleetfoot.envs.mujoco.joints import Joints
from fleetfoot.envs.mujoco.physics import compile_spec, load_spec
from fleetfoot.errors import UserError

CPU = torch.device("cpu")
WITHOUT = {
    "Ant-v5": ("cfrc_ext",),
    "Humanoid-v5": ("cfrc_ext", "cinert", "cvel", "qfrc_actuator"),
}
# One position or velocity that is about to end the episode: (index in qpos, value, index in qvel, value).
NEARLY_OVER = {
    "Ant-v5": (2, 0.201, 2, -1.0),
    "Hopper-v5": (2, 0.195, 2, 2.0),
    "Walker2d-v5": (1, 0.81, 1, -2.0),
    "Humanoid-v5": (2, 1.002, 2, -1.0),
    "InvertedPendulum-v5": (1, 0.195, 1, 1.0),
}


def make(task: str, num_envs: int = 4, seed: int = 0, **options: Any) -> MuJoCoEnv:
    return MuJoCoConfig(task=task, **options).build(num_envs, seed, CPU)


def actions(env: MuJoCoEnv, steps: int, seed: int = 0) -> torch.Tensor:
    assert isinstance(env.spec.action, Continuous)
    generator = torch.Generator().manual_seed(seed)
    shape = (steps, env.spec.num_envs, env.spec.action.size)
    return torch.rand(shape, generator=generator) * 2 - 1


def gymnasium_env(name: str) -> Any:
    flags = {f"include_{part}_in_observation": False for part in WITHOUT.get(name, ())}
    return gymnasium.make(name, **flags).unwrapped


def interesting_states(name: str) -> tuple[np.ndarray, np.ndarray]:
    """First states, states in mid-motion, and one that is about to end."""
    env, found = gymnasium_env(name), []
    rng = np.random.default_rng(1)
    for seed in range(3):
        env.reset(seed=seed)
        found.append((env.data.qpos.copy(), env.data.qvel.copy()))
        for _ in range(10 + 10 * seed):
            env.step(rng.uniform(env.action_space.low, env.action_space.high))
        found.append((env.data.qpos.copy(), env.data.qvel.copy()))
    if name in NEARLY_OVER:
        position, value, velocity, speed = NEARLY_OVER[name]
        qpos, qvel = found[0][0].copy(), found[0][1].copy()
        qpos[position], qvel[velocity] = value, speed
        found.append((qpos, qvel))
    return np.stack([q for q, _ in found]), np.stack([v for _, v in found])


@pytest.mark.parametrize("name", names())
def test_parity_with_gymnasium(name: str) -> None:
    qpos, qvel = interesting_states(name)
    task = dataclasses.replace(
        mujoco_tasks.find(name), start=lambda draw, q, v: (qpos[: len(q)], qvel[: len(q)])
    )
    ours = MuJoCoEnv(task, len(qpos), 0, threads=2)
    obs = ours.reset().actor.numpy()
    theirs = [gymnasium_env(name) for _ in qpos]
    for i, env in enumerate(theirs):
        env.reset(seed=0)
        mujoco.mj_resetData(env.model, env.data)
        env.set_state(qpos[i], qvel[i])
        np.testing.assert_allclose(obs[i], env._get_obs(), rtol=1e-6, atol=1e-6)
    low, high = theirs[0].model.actuator_ctrlrange.T
    going = np.ones(len(qpos), dtype=bool)
    for action in actions(ours, 12):
        step = ours.step(action)
        control = (low + high) / 2 + (high - low) / 2 * action.double().numpy()
        for i in map(int, np.flatnonzero(going)):
            next_obs, reward, terminated, _, info = theirs[i].step(control[i])
            np.testing.assert_allclose(
                step.next_obs.actor[i].numpy(), next_obs, rtol=1e-6, atol=1e-6
            )
            assert step.reward[i].item() == pytest.approx(reward, rel=1e-6, abs=1e-6)
            assert step.terminated[i].item() == terminated
            terms = {f"env/{key}": v for key, v in info.items() if key.startswith("reward_")}
            ours_of_it = {key: row[i].item() for key, row in step.info.items()}
            assert ours_of_it == pytest.approx(terms, rel=1e-5, abs=1e-6)
        going &= ~step.terminated.numpy()
    assert going.any()
    assert (~going).any() == (name in NEARLY_OVER)


@pytest.mark.parametrize("name", ["HalfCheetah-v5", "Ant-v5", "Humanoid-v5"])
def test_long_runs_stay_beside_plain_mj_step(name: str) -> None:
    """The lost warm start must not add up: 30 control steps against one plain MjData."""
    task = dataclasses.replace(mujoco_tasks.find(name), terminated=mujoco_tasks.never)
    env = MuJoCoEnv(task, 2, 0)
    env.reset()
    model = mujoco.MjModel.from_xml_path(task.model)
    data = mujoco.MjData(model)
    data.qpos[:], data.qvel[:] = env._sim.qpos()[0], env._sim.qvel()[0]
    for action in actions(env, 30):
        env.step(action)
        data.ctrl[:] = env._control(action)[0]
        mujoco.mj_step(model, data, nstep=5)
    np.testing.assert_allclose(env._sim.qpos()[0], data.qpos, atol=1e-7)


def test_quaternions_integrate_as_in_mujoco() -> None:
    model = mujoco.MjModel.from_xml_string(
        "<mujoco><worldbody><body><freejoint/><geom size='1'/><body><joint type='ball'/>"
        "<geom size='1'/><body><joint/><geom size='1'/></body></body></body></worldbody></mujoco>"
    )
    rng = np.random.default_rng(0)
    qpos, qvel = rng.normal(size=(5, model.nq)), rng.normal(size=(5, model.nv)) * 10
    qvel[0] = 0.0
    for quat in (slice(3, 7), slice(7, 11)):
        qpos[:, quat] /= np.linalg.norm(qpos[:, quat], axis=1, keepdims=True)
    moved = np.empty_like(qpos)
    Joints(model).integrate(qpos, qvel, 0.03, moved)
    for i in range(5):
        expected = qpos[i].copy()
        mujoco.mj_integratePos(model, expected, qvel[i], 0.03)
        np.testing.assert_allclose(moved[i], expected, atol=1e-14)


@pytest.mark.parametrize("name", ["HalfCheetah-v5", "Hopper-v5", "Reacher-v5"])
def test_first_states_are_distributed_as_gymnasiums(name: str) -> None:
    ours = make(name, num_envs=4000)
    mine = ours.reset().actor.numpy()
    env = gymnasium_env(name)
    theirs = np.stack([env.reset(seed=i)[0] for i in range(1000)])
    np.testing.assert_allclose(
        mine.mean(0), theirs.mean(0), atol=5 * theirs.std(0).max() / 1000**0.5
    )
    np.testing.assert_allclose(mine.std(0), theirs.std(0), rtol=0.15, atol=1e-4)


def test_draw_is_uniform_normal_and_independent_of_the_rows() -> None:
    rows, zeros = np.arange(20000), np.zeros(20000, dtype=np.int64)
    draw = Draw(3, rows, zeros)
    uniform, normal = draw.uniform(-1.0, 3.0, 2), draw.normal(2)
    assert uniform.min() >= -1.0
    assert uniform.max() < 3.0
    counts, _ = np.histogram(uniform[:, 0], bins=20, range=(-1, 3))
    assert ((counts - 1000) ** 2 / 1000).sum() < 50  # chi-square with 19 degrees of freedom
    assert abs(normal.mean()) < 0.02
    assert abs(normal.std() - 1) < 0.02
    every = np.concatenate([uniform, normal], axis=1)
    assert np.abs(np.corrcoef(every.T) - np.eye(4)).max() < 0.03
    assert np.abs(np.corrcoef(every[1:, 0], every[:-1, 0])[0, 1]) < 0.03
    alone = Draw(3, rows[7:8], zeros[7:8])
    assert (alone.uniform(-1.0, 3.0, 2) == uniform[7:8]).all()
    assert (Draw(3, rows, zeros + 1).uniform(-1.0, 3.0, 2) != uniform).all()
    assert (Draw(4, rows, zeros).uniform(-1.0, 3.0, 2) != uniform).all()


@pytest.mark.parametrize("task", ["InvertedPendulum-v5", "Reacher-v5"])
def test_environment_depends_on_seed_and_index_alone(task: str) -> None:
    few, many, other = make(task, 3, seed=5), make(task, 9, seed=5), make(task, 3, seed=6)
    a, b, c = few.reset().actor, many.reset().actor, other.reset().actor
    assert torch.equal(a, b[:3])
    assert not torch.equal(a, c)
    assert not torch.equal(a[0], a[1])
    restarted = 0
    for wide in actions(many, 120):
        x, y = few.step(wide[:3]), many.step(wide)
        assert torch.equal(x.obs.actor, y.obs.actor[:3])
        assert torch.equal(x.next_obs.actor, y.next_obs.actor[:3])
        assert torch.equal(x.reward, y.reward[:3])
        restarted += int((x.terminated | x.truncated).sum())
    assert restarted >= 6


@pytest.mark.parametrize("task", ["Hopper-v5", "Ant-v5"])
def test_number_of_threads_changes_no_bit(task: str) -> None:
    one, two = make(task, 16, threads=1), make(task, 16, threads=2)
    assert torch.equal(one.reset().actor, two.reset().actor)
    for action in actions(one, 20):
        assert torch.equal(one.step(action).next_obs.actor, two.step(action).next_obs.actor)


def test_final_observation_and_restart() -> None:
    env = make("Hopper-v5", 16)
    obs = env.reset()
    ended = 0
    for action in actions(env, 60):
        step = env.step(action)
        over = step.terminated | step.truncated
        assert torch.equal(step.next_obs.actor[~over], step.obs.actor[~over])
        fallen = step.next_obs.actor[over]
        assert ((fallen[:, 0] <= 0.7) | (fallen[:, 1].abs() >= 0.2)).all()
        fresh = step.obs.actor[over]
        assert ((fresh[:, 0] - 1.25).abs() <= 0.0051).all()
        assert (step.obs.actor != obs.actor).any()
        ended += int(over.sum())
        obs = step.obs
    assert ended >= 16


def test_what_was_handed_out_is_not_written_to() -> None:
    env = make("InvertedPendulum-v5", 8)
    kept: list[tuple[Step, list[torch.Tensor]]] = []
    env.reset()
    for action in actions(env, 30):
        step = env.step(action)
        copy = [t.clone() for t in (step.obs.actor, step.next_obs.actor, step.reward)]
        kept.append((step, copy))
    for step, (obs, next_obs, reward) in kept:
        assert torch.equal(step.obs.actor, obs)
        assert torch.equal(step.next_obs.actor, next_obs)
        assert torch.equal(step.reward, reward)


def test_truncation_at_the_episode_length_and_not_where_terminated() -> None:
    env = make("Reacher-v5", 3)
    env.reset()
    for t, action in enumerate(actions(env, 101), start=1):
        step = env.step(action)
        assert step.truncated.all().item() == (t % 50 == 0)
        assert not step.terminated.any()

    def over_at_five(after: Physics) -> np.ndarray:
        return after.sensor["clock"][:, 0] > 0.15 - 1e-9

    def add_clock(spec: mujoco.MjSpec) -> None:
        spec.add_sensor(name="clock", type=mujoco.mjtSensor.mjSENS_CLOCK)

    task = dataclasses.replace(
        mujoco_tasks.find("HalfCheetah-v5"),
        edit=add_clock,
        terminated=over_at_five,
        episode_length=4,
    )
    # The clock sensor is one timestep (0.01 s) old: it exceeds 0.15 s in the fourth control step of 0.05 s.
    both = MuJoCoEnv(task, 2, 0)
    both.reset()
    steps = [both.step(action) for action in actions(both, 4)]
    assert [bool(s.terminated.any()) for s in steps] == [False, False, False, True]
    assert not steps[-1].truncated.any()


def test_randomisation_changes_the_motion_and_is_off_in_evaluation() -> None:
    config = MuJoCoConfig(task="Hopper-v5", mass_range=(0.8, 1.2))
    plain = config.for_evaluation()
    assert plain == MuJoCoConfig(task="Hopper-v5")
    friction = MuJoCoConfig(task="Hopper-v5", friction_range=(0.3, 0.5))
    gain = MuJoCoConfig(task="Hopper-v5", gain_range=(0.5, 0.6))
    runs = []
    for one in (plain, config, config, friction, gain):
        env = one.build(3, 0, CPU)
        env.reset()
        runs.append(torch.stack([env.step(a).next_obs.actor for a in actions(env, 20)]))
    assert torch.equal(runs[1], runs[2])
    for varied in (runs[1], runs[3], runs[4]):
        assert (varied != runs[0]).any(2).any(0).all()  # every environment, at some step
    env = config.build(3, 0, CPU)
    masses = np.stack([model.body_mass for model in env._sim.models])
    factors = masses[:, 1:] / env._sim.model.body_mass[1:]
    assert factors.min() >= 0.8
    assert factors.max() <= 1.2
    assert len(np.unique(factors)) == factors.size


@pytest.mark.parametrize(
    "config",
    [
        MuJoCoConfig(task="Hopper-v5"),
        MuJoCoConfig(task="Humanoid-v5"),
        MuJoCoConfig(task="Reacher-v5", mass_range=(0.5, 2.0)),
    ],
    ids=lambda config: config.task,
)
def test_saved_state_goes_on_bit_for_bit(config: MuJoCoConfig) -> None:
    env = config.build(6, 3, CPU)
    env.reset()
    script = actions(env, 80)
    for action in script[:33]:
        last = env.step(action)
    saved = env.state_dict()
    expected = [env.step(action) for action in script[33:]]
    assert any((s.terminated | s.truncated).any() for s in expected)
    other = config.build(6, 3, CPU)
    assert torch.equal(other.load_state_dict(saved).actor, last.obs.actor)
    for action, wanted in zip(script[33:], expected, strict=True):
        seen = other.step(action)
        for a, b in zip(seen[:2], wanted[:2], strict=True):
            assert torch.equal(a.actor, b.actor)
        assert torch.equal(seen.reward, wanted.reward)
        assert torch.equal(seen.terminated, wanted.terminated)
        assert torch.equal(seen.truncated, wanted.truncated)


def test_actions_are_mapped_onto_the_control_range_and_clipped() -> None:
    beyond, within = make("InvertedPendulum-v5", 2), make("InvertedPendulum-v5", 2)
    beyond.reset(), within.reset()
    a, b = beyond.step(torch.full((2, 1), 7.0)), within.step(torch.ones(2, 1))
    assert torch.equal(a.next_obs.actor, b.next_obs.actor)
    assert beyond._control(torch.full((2, 1), -0.5)).tolist() == [[-1.5], [-1.5]]  # range [-3, 3]


@pytest.mark.parametrize("task", ["Reacher-v5", "InvertedPendulum-v5"])
def test_the_contract(task: str) -> None:
    report = check_env(MuJoCoConfig(task=task), vec_steps=120, render=False)
    assert report.spec.name == task


def test_config_survives_json() -> None:
    config = MuJoCoConfig(task="Ant-v5", mass_range=(0.9, 1.1))
    assert from_json(to_json(config)) == config


def test_clear_errors() -> None:
    with pytest.raises(UserError, match="Did you mean HalfCheetah-v5"):
        make("HalfCheeta-v5")
    with pytest.raises(UserError, match="num_envs"):
        make("Hopper-v5", num_envs=0)
    with pytest.raises(UserError, match="threads"):
        make("Hopper-v5", threads=-1)
    with pytest.raises(UserError, match="mass_range"):
        make("Hopper-v5", mass_range=(1.2, 0.8))
    env = make("Hopper-v5", num_envs=2)
    with pytest.raises(UserError, match="reset"):
        env.step(torch.zeros(2, 3))
    env.reset()
    with pytest.raises(UserError, match="shape"):
        env.step(torch.zeros(3, 3))
    with pytest.raises(UserError, match="NaN"):
        env.step(torch.full((2, 3), torch.nan))
    with pytest.raises(UserError, match="no environment 2"):
        env.render(2)
    with pytest.raises(UserError, match="of 2 environments"):
        make("Hopper-v5", num_envs=3).load_state_dict(env.state_dict())
    with pytest.raises(UserError, match="Hopper-v5"):
        make("Ant-v5", num_envs=2).load_state_dict(env.state_dict())
    varied = MuJoCoConfig(task="Hopper-v5", mass_range=(0.5, 2.0))
    saved = varied.build(2, 0, CPU)
    with pytest.raises(UserError, match="seed 0"):
        varied.build(2, 1, CPU).load_state_dict(saved.state_dict())


@pytest.mark.parametrize(
    ("model", "complaint"),
    [
        ("nowhere.xml", "no MJCF file"),
        ("<mujoco><nonsense/></mujoco>", "cannot read"),
        ("<mujoco><worldbody><geom size='1'/></worldbody></mujoco>", "no actuators"),
        (
            "<mujoco><worldbody><body><joint name='j'/><geom size='1'/></body></worldbody>"
            "<actuator><motor name='m' joint='j'/></actuator></mujoco>",
            "'m' has no ctrlrange",
        ),
    ],
)
def test_models_that_cannot_be_used(model: str, complaint: str) -> None:
    task = Task(
        name="x",
        model=model,
        frame_skip=1,
        observe=lambda now: now.qpos,
        reward=lambda before, control, after: np.zeros(len(control)),
    )
    with pytest.raises(UserError, match=complaint) as raised:
        MuJoCoEnv(task, 1, 0)
    assert "\n" not in str(raised.value)


def test_bench_measures_all_four() -> None:
    seen = bench_env("InvertedPendulum-v5", num_envs=2, seconds=0.4, rounds=1)
    speed = seen["env_steps_per_second"]
    assert set(speed) == {"fleetfoot", "raw", "gymnasium_sync", "gymnasium_async"}
    assert min(speed.values()) > 0
    assert seen["ratio_to_raw"] == speed["fleetfoot"] / speed["raw"]
    best = max(speed["gymnasium_sync"], speed["gymnasium_async"])
    assert seen["ratio_to_best_gymnasium"] == speed["fleetfoot"] / best
    with pytest.raises(UserError, match="rounds"):
        bench_env(rounds=0)


def test_picture_shows_the_robot_and_follows_it() -> None:
    try:
        render.backend()
    except UserError as error:  # this machine has no OpenGL of any kind
        pytest.skip(str(error))
    env = make("HalfCheetah-v5", 2, render_width=160, render_height=120)
    env.reset()
    here = env.render(0)
    assert here.shape == (120, 160, 3)
    assert here.dtype == np.uint8
    assert here.std() > 20
    assert (env.render(0) == here).all()
    moved = env.state_dict()
    moved["state"][0, 1] += 4.0  # whole tiles of the floor further along x
    env.load_state_dict(moved)
    there = env.render(0)
    # The orange robot stays where it was in the picture.
    robot = [(f[..., 0].astype(int) - f[..., 2] > 40).nonzero() for f in (here, there)]
    assert len(robot[0][0]) > 50
    assert abs(robot[0][1].mean() - robot[1][1].mean()) < 3
    env.close()


def test_no_backend_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    monkeypatch.setattr(render, "_works", lambda name: False)
    render.backend.cache_clear()
    try:
        with pytest.raises(UserError, match=r"libegl1.*libosmesa6") as raised:
            render.backend()
        assert "\n" not in str(raised.value)
    finally:
        render.backend.cache_clear()


@pytest.mark.parametrize(
    ("task", "ways", "tile"),
    [
        ("HalfCheetah-v5", (0,), 80 / 60),
        ("Ant-v5", (0, 1), 80 / 60),
        ("Swimmer-v5", (0, 1), 80 / 30),
        ("InvertedPendulum-v5", (), 1.0),  # on a rail
        ("Reacher-v5", (), 1.0),
    ],
)
def test_nobody_runs_off_the_ground_of_a_picture(
    task: str, ways: tuple[int, ...], tile: float
) -> None:
    model = compile_spec(load_spec(mujoco_tasks.find(task).model))
    qpos = np.arange(100.0, 100.0 + model.nq)
    moved = render.back_on_ground(model, qpos)
    for at in range(model.nq):
        tiles = (qpos[at] - moved[at]) / tile
        assert tiles == pytest.approx(round(tiles))
        assert (abs(moved[at]) <= tile / 2) if at in ways else (tiles == 0)


def test_without_a_pattern_the_ground_stays() -> None:
    model = mujoco.MjModel.from_xml_string(
        "<mujoco><worldbody><geom type='plane' size='4 4 1'/>"
        "<body><freejoint/><geom size='1'/></body></worldbody></mujoco>"
    )
    qpos = np.array([100.0, -100.0, 1.0, 1.0, 0.0, 0.0, 0.0])
    assert (render.back_on_ground(model, qpos) == qpos).all()
