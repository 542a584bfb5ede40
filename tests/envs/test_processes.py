"""Environments in several processes: contract, what crosses the memory, and processes that fail."""

from __future__ import annotations

import gc
import importlib.util
import os
from typing import Any

import numpy as np
import pytest
import torch

from fleetfoot.config import from_json, to_json
from fleetfoot.envs import humanoid_bench, render
from fleetfoot.envs.check import check_env
from fleetfoot.envs.humanoid_bench import HumanoidBenchConfig
from fleetfoot.envs.subprocess import worker as process_worker
from fleetfoot.envs.subprocess.env import ProcessEnv
from fleetfoot.envs.vec_env import EnvFault, TwoHalves
from fleetfoot.errors import Hung, UserError
from fleetfoot.topologies.multi_seed.env import ConcatVecEnv

CPU = torch.device("cpu")


def fake(num_envs: int, seed: int = 0, processes: int = 2, **kwargs: Any) -> ProcessEnv:
    return ProcessEnv("fake", "support.fake_gym:Fake-v0", kwargs, num_envs, processes, seed, CPU)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_contract() -> None:
    report = check_env(
        lambda num_envs, seed: fake(num_envs, seed, render_mode="rgb_array"),
        num_envs=3,
        vec_steps=40,
    )
    assert report.terminations > 0
    assert report.truncations > 0
    assert report.untried == ("state",)


def test_same_bits_for_any_number_of_processes() -> None:
    """Also what is drawn from numpy's global stream, the third feature."""
    actions = torch.rand(30, 5, 2, generator=torch.Generator().manual_seed(0)) * 2 - 1
    runs = []
    for processes in (1, 3, 9):
        env = fake(5, 4, processes)
        seen = [env.reset().actor] + [env.step(action).next_obs.actor for action in actions]
        runs.append(torch.stack(seen))
        assert len(env.workers) == min(processes, 5)
        env.close()
    assert torch.equal(runs[0], runs[1])
    assert torch.equal(runs[0], runs[2])
    assert len(set(runs[0][0, :, 2].tolist())) == 5


def test_drawing_leaves_the_run_as_it_is() -> None:
    """Though a picture takes numbers from numpy's global stream, as a reset does for the third feature."""
    actions = torch.rand(30, 3, 2, generator=torch.Generator().manual_seed(0)) * 2 - 1
    runs = []
    for drawn in (False, True):
        env = fake(3, render_mode="rgb_array")
        seen = [env.reset().actor]
        for action in actions:
            if drawn:
                assert [env.render(index).shape for index in range(3)] == [(6, 8, 3)] * 3
            seen.append(env.step(action).obs.actor)
        runs.append(torch.stack(seen))
        env.close()
    assert torch.equal(*runs)
    assert len(set(runs[0][:, 2, 2].tolist())) > 2  # with episodes that began after a picture


def test_numbers_of_info_come_back() -> None:
    env = fake(4)
    assert len(env.workers) > 1
    env.reset()
    steps = [env.step(torch.zeros(4, 2)) for _ in range(5)]
    assert set(steps[0].info) == {"success"}
    assert set(steps[1].info) == set(steps[2].info) == {"success", "env/clock"}
    clocks = [step.info["env/clock"].tolist() for step in steps[1:]]
    assert clocks == [[2] * 4, [2] * 4, [4] * 4, [4] * 4]  # held until it is told again
    assert steps[4].info["success"].tolist() == [0] * 4
    env.close()


def test_actions_reach_the_bounds_and_success_comes_back() -> None:
    env = fake(2)
    env.reset()
    step = env.step(torch.tensor([[-1.0, 0.0], [1.0, 5.0]]))
    assert step.reward.tolist() == [0, 10]
    moved = [env.step(torch.zeros(2, 2)) for _ in range(6)][-1]
    assert moved.info["success"].tolist() == [1, 1]
    with pytest.raises(UserError, match=r"takes actions \[2, 2\], not \[2, 3\]"):
        env.step(torch.zeros(2, 3))
    env.close()


@pytest.mark.parametrize(
    ("trouble", "says"),
    [
        ("killed", r"was ended by SIGKILL \(often: not enough memory\)"),
        ("exit", "ended with exit code 7"),
        ("raises", r"failed: ZeroDivisionError: three is enough \(fake_gym.py:\d+\)"),
    ],
)
def test_a_process_that_fails(trouble: str, says: str) -> None:
    env = fake(4, trouble=trouble, only=1)
    seeds = [seed for worker in env.workers for seed in worker.seeds]
    pids = [worker.process.pid for worker in env.workers]
    env.reset()
    for _ in range(2):
        env.step(torch.zeros(4, 2))
    with pytest.raises(EnvFault, match=says) as caught:
        env.step(torch.zeros(4, 2))
    assert (caught.value.index, caught.value.seed) == (1, seeds[1])  # the second in its process
    assert not any(map(alive, pids))
    with pytest.raises(RuntimeError, match="is closed"):
        env.step(torch.zeros(4, 2))
    env.close()


def test_a_second_process_that_fails() -> None:
    def seeds_of(env: ProcessEnv) -> list[int]:
        return [seed for worker in env.workers for seed in worker.seeds]

    # Before its first turn: the first of its own environments is named.
    env = fake(5)
    seeds, second = seeds_of(env), env.workers[1]
    assert second.first == 2
    second.process.kill()
    second.process.wait()
    with pytest.raises(EnvFault, match="was ended by SIGKILL") as caught:
        env.reset()
    assert (caught.value.index, caught.value.seed) == (2, seeds[2])

    env = fake(5, trouble="killed", only=2)  # only the second process has three
    seeds = seeds_of(env)
    env.reset()
    for _ in range(2):
        env.step(torch.zeros(5, 2))
    with pytest.raises(EnvFault, match="was ended by SIGKILL") as caught:
        env.step(torch.zeros(5, 2))
    assert (caught.value.index, caught.value.seed) == (4, seeds[4])

    # The one that was drawn, not the last that was stepped.
    env = fake(5, trouble="killed at render", render_mode="rgb_array", only=1)
    seeds, pids = seeds_of(env), [worker.process.pid for worker in env.workers]
    env.reset()
    env.step(torch.zeros(5, 2))
    assert env.render(2).shape == (6, 8, 3)
    with pytest.raises(EnvFault, match="was ended by SIGKILL") as caught:
        env.render(3)
    assert (caught.value.index, caught.value.seed) == (3, seeds[3])
    assert not any(map(alive, pids))


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, Hung])
def test_an_interrupted_picture_is_not_read_as_a_step(
    interruption: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    env = fake(2, render_mode="rgb_array")
    env.reset()

    def interrupted(source: Any, count: int) -> bytes:
        raise interruption

    with monkeypatch.context() as patch:
        patch.setattr(process_worker, "read_exactly", interrupted)
        with pytest.raises(EnvFault if interruption is Hung else interruption):
            env.render(1)
    with pytest.raises(RuntimeError, match="is closed"):
        env.step(torch.zeros(2, 2))
    with pytest.raises(RuntimeError, match="is closed"):
        env.render(1)


def test_an_interrupt_leaves_no_answer_for_the_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    env = fake(4)
    env.reset()

    def interrupted(request: bytes) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(env.workers[1], "send", interrupted)
        with pytest.raises(KeyboardInterrupt):
            env.step(torch.zeros(4, 2))
    with pytest.raises(RuntimeError, match="is closed"):
        env.step(torch.zeros(4, 2))


def test_sets_joined_are_the_single_ones() -> None:
    actions = torch.rand(20, 4, 2, generator=torch.Generator().manual_seed(0)) * 2 - 1
    joined, alone = ConcatVecEnv([fake(2, 0), fake(2, 1)], CPU), [fake(2, 0), fake(2, 1)]
    assert all(isinstance(part, TwoHalves) for part in alone)
    both: list[Any] = [joined, *alone]
    for env in both:
        env.reset()
    for action in actions:
        step = joined.step(action)
        wanted = [env.step(own) for env, own in zip(alone, action.split(2), strict=True)]
        assert torch.equal(step.obs.actor, torch.cat([w.obs.actor for w in wanted]))
        assert torch.equal(step.next_obs.actor, torch.cat([w.next_obs.actor for w in wanted]))
        assert torch.equal(step.terminated, torch.cat([w.terminated for w in wanted]))
    for env in both:
        env.close()


def test_closing_leaves_no_process() -> None:
    files = set(os.listdir("/proc/self/fd"))
    for close in (True, False):
        env = fake(3, trouble="slow")
        pids = [worker.process.pid for worker in env.workers]
        env.reset()
        if close:
            env.close()
            env.close()
        else:  # forgotten
            del env
            gc.collect()
        assert not any(map(alive, pids))
    assert len(set(os.listdir("/proc/self/fd")) - files) <= 1  # the listing itself


def test_processes_end_with_their_parent() -> None:
    env = fake(2)
    for worker in env.workers:
        worker.requests.close()  # as when the parent is gone
    for worker in env.workers:
        worker.process.wait(timeout=120)
    env.close()


def test_mistakes() -> None:
    with pytest.raises(UserError, match="fake cannot be made: ValueError: no such robot"):
        fake(2, trouble="making")
    with pytest.raises(UserError, match=r"only flat ones|vector with bounds"):
        ProcessEnv("x", "CartPole-v1", {}, 1, 1, 0, CPU)
    env = fake(1)
    env.reset()
    with pytest.raises(UserError, match="cannot be rendered here"):
        env.render()
    env.reset()  # goes on
    env.close()


def test_humanoid_bench_config() -> None:
    config = HumanoidBenchConfig(task="h1-run", processes=3)
    assert from_json(to_json(config)) == config
    with pytest.raises(UserError, match="Did you mean h1hand-walk"):
        HumanoidBenchConfig(task="h1hand-wlk").build(1, 0, CPU)
    with pytest.raises(UserError, match="processes must be at least 0"):
        HumanoidBenchConfig(processes=-1)


def test_humanoid_bench_without_opengl(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that cannot render trains all the same: the environments start no OpenGL."""
    made: list[tuple[Any, ...]] = []
    monkeypatch.setattr(humanoid_bench, "ProcessEnv", lambda *args: made.append(args))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: object())

    def none() -> str:
        raise UserError("cannot render")

    for backend in (none, lambda: "osmesa"):
        monkeypatch.setattr(render, "backend", backend)
        HumanoidBenchConfig().build(1, 0, CPU)
    without, with_opengl = ((args[2], args[-1]) for args in made)
    assert without[0] == {"render_mode": None}
    assert "MUJOCO_GL" not in without[1]
    assert with_opengl[0] == {}
    assert with_opengl[1]["MUJOCO_GL"] == "osmesa"


@pytest.mark.skipif(
    importlib.util.find_spec("humanoid_bench") is None,
    reason="HumanoidBench is installed from its repository, by hand",
)
@pytest.mark.parametrize("task", ["h1-walk", "h1hand-reach"])
def test_humanoid_bench(task: str) -> None:
    report = check_env(
        HumanoidBenchConfig(task=task, processes=2, kwargs={"max_episode_steps": 8}),
        num_envs=2,
        vec_steps=20,
        render=False,
    )
    assert report.truncations > 0
    assert np.prod(report.spec.obs_shape) > 0
