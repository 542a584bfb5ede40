"""Learning while the next vec step is simulated: what is computed is fixed, whoever is faster."""

from __future__ import annotations

import sys
import threading
import time
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fleetfoot import checkpoint
from fleetfoot.api import resume, train
from fleetfoot.config import part
from fleetfoot.data import Transition
from fleetfoot.envs.tensor import TensorConfig, TensorEnv
from fleetfoot.errors import Halted, UserError
from fleetfoot.recipe import Recipe
from fleetfoot.replay.replay import Replay
from fleetfoot.run.build import build_parts, open_run
from fleetfoot.topologies import overlap as overlap_module
from fleetfoot.topologies.overlap import TURN_SECONDS, vec_steps
from fleetfoot.topologies.synchronous import SynchronousConfig
from support.runs import (
    agent_state,
    assert_same,
    interrupted_at,
    small,
    tensors,
)

OVERLAP = SynchronousConfig(overlap=True)


def overlapped(name: str = "fast_td3/pendulum", **changes: Any) -> Recipe:
    return small(name, **({"topology": OVERLAP, "total_vec_steps": 120} | changes))


def with_step(env: TensorEnv, step: Any) -> TensorEnv:
    env.step = step  # type: ignore[method-assign]
    return env


@part
class JerkyConfig:
    """The pendulum on a machine that is now and then busy with something else."""

    def build(self, num_envs: int, seed: int, device: torch.device) -> TensorEnv:
        env = TensorConfig().build(num_envs, seed, device)
        inner, random = env.step, np.random.default_rng()

        def step(action: torch.Tensor) -> Any:
            time.sleep(random.choice([0.0, 0.0, 0.003]))
            return inner(action)

        return with_step(env, step)

    def for_evaluation(self) -> TensorConfig:
        return TensorConfig()


@pytest.mark.parametrize("name", ["fast_td3/pendulum", "fast_sac/pendulum"])
def test_same_seed_same_bits_however_long_a_step_takes(name: str, tmp_path: Path) -> None:
    for folder in "ab":
        train(overlapped(name, env=JerkyConfig()), tmp_path / folder)
    train(overlapped(name), tmp_path / "c")
    a, b, c = (agent_state(tmp_path / folder) for folder in "abc")
    assert_same(a, b)
    assert_same(a, c)


def test_the_policy_is_one_vec_steps_updates_older_and_nothing_else_differs(
    tmp_path: Path,
) -> None:
    """Against a loop by hand: act, step, learn from what was stored before, store."""
    recipe = overlapped(total_vec_steps=60)
    train(recipe, tmp_path / "run")
    wanted = tensors(checkpoint.load(tmp_path / "run").state)

    run = build_parts(recipe)
    agent, replay, obs, owed = run.agent, run.replay, run.obs, 0
    assert isinstance(replay, Replay)

    def learn() -> None:
        for _ in range(owed):
            agent.update(replay.sample(recipe.batch_size))

    for _ in range(recipe.total_vec_steps):
        action = run.explorer.act(agent.behaviour, obs)
        step = run.env.step(action)
        run.explorer.restart(step.terminated | step.truncated)
        learn()
        fresh = Transition(
            obs, action, step.reward, step.terminated, step.truncated, step.next_obs, {}
        )
        agent.observe(fresh)
        replay.append(fresh)
        run.episodes.update(fresh.reward, fresh.terminated | fresh.truncated)
        run.episodes.metrics()
        owed, obs = run.pace.owed(), step.obs
    learn()
    run.close()
    parts = ("agent", "explorer", "replay", "env")
    found = tensors({name: getattr(run, name).state_dict() for name in parts})
    assert_same(found, {k: v for k, v in wanted.items() if k.split("/")[1] in parts})


def test_in_turns_the_policy_is_another(tmp_path: Path) -> None:
    train(overlapped(total_vec_steps=60), tmp_path / "overlap")
    train(overlapped(total_vec_steps=60, topology=SynchronousConfig()), tmp_path / "turns")
    one, two = (agent_state(tmp_path / k) for k in ("overlap", "turns"))
    assert any(not torch.equal(one[k], two[k]) for k in one)


@pytest.mark.parametrize("ratio", [2.0, 1.5, 0.25])
def test_as_many_updates_as_in_turns(ratio: float, tmp_path: Path) -> None:
    pace = replace(small().pace, updates_per_vec_step=ratio)
    counters = [
        train(overlapped(pace=pace, topology=topology, total_vec_steps=51), tmp_path / name)
        for name, topology in (("overlap", OVERLAP), ("turns", SynchronousConfig()))
    ]
    assert len({(c.counters.updates, c.counters.vec_steps) for c in counters}) == 1
    assert counters[0].counters.updates == pace.updates_after(51) > 0


@pytest.mark.parametrize("ratio", [2.0, 1.5])
def test_interrupted_and_resumed_equals_uninterrupted(
    ratio: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = overlapped(pace=replace(small().pace, updates_per_vec_step=ratio))
    train(recipe, tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(overlap_module, "rollout", interrupted_at(83))
        assert not train(recipe, tmp_path / "parts").finished
    saved = checkpoint.load(tmp_path / "parts")
    assert saved.step == 83
    assert saved.state["owed"] > 0, "updates that are due but not made belong to the state"
    assert resume(tmp_path / "parts").finished
    one, two = (checkpoint.load(tmp_path / k).state for k in ("whole", "parts"))
    assert_same(tensors(one), tensors(two))
    assert one["updates"] == two["updates"] == recipe.total_updates()
    assert one["owed"] == two["owed"] == 0


class FellOverError(Exception):
    pass


@part
class BreaksConfig:
    """The pendulum, until it breaks."""

    at: int = 40

    def build(self, num_envs: int, seed: int, device: torch.device) -> TensorEnv:
        env = TensorConfig().build(num_envs, seed, device)
        inner, count = env.step, 0

        def step(action: torch.Tensor) -> Any:
            nonlocal count
            count += 1
            if count == self.at:
                raise FellOverError("the simulator fell over")
            return inner(action)

        return with_step(env, step)

    def for_evaluation(self) -> TensorConfig:
        return TensorConfig()


def simulating() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("simulate")]


@pytest.mark.parametrize("at", [1, 40])
def test_what_the_simulator_raises_in_its_thread_surfaces_as_itself(
    at: int, tmp_path: Path
) -> None:
    with pytest.raises(Halted, match="FellOverError: the simulator fell over"):
        train(overlapped(env=BreaksConfig(at=at)), tmp_path / "run")
    assert not simulating()
    if at > 1:  # what it had learned is saved: every update that was begun counts
        state = checkpoint.load(tmp_path / "run").state
        assert state["vec_steps"] == at - 1
        assert state["updates"] == state["agent"]["updates"] > 0


def test_what_the_learner_raises_surfaces_as_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def update(batch: Any) -> Any:
        raise UserError("the learner gave up")

    with open_run(overlapped(), tmp_path / "run", None) as (journal, parts):
        monkeypatch.setattr(parts.agent, "update", update)
        steps = vec_steps(journal, parts, parts.learner(journal))
        with pytest.raises(UserError, match="gave up"):
            list(islice(steps, 40))
    assert not simulating()


def test_the_two_really_happen_at_the_same_time(tmp_path: Path) -> None:
    """Each vec step's simulation waits for an update in the middle of it, and that update for the simulation."""
    pace = replace(small().pace, updates_per_vec_step=1.0, warmup_vec_steps=10)
    with open_run(overlapped(pace=pace), tmp_path / "run", None) as (journal, parts):
        meeting, met, inner, update = threading.Barrier(2), [], parts.env.step, parts.agent.update

        def step(action: torch.Tensor) -> Any:
            if parts.owed:
                met.append(meeting.wait(timeout=120))
            return inner(action)

        def update_together(batch: Any) -> Any:
            meeting.wait(timeout=120)
            return update(batch)

        parts.env.step = step  # type: ignore[method-assign]
        parts.agent.update = update_together  # type: ignore[method-assign]
        steps = vec_steps(journal, parts, parts.learner(journal))
        for _ in range(20):
            next(steps)
        steps.close()
    assert len(met) == journal.updates == 9  # the last vec step's update is still owed
    assert parts.owed == 1
    assert not simulating()


@pytest.mark.gpu
@pytest.mark.parametrize("execution", ["eager", "captured"])
def test_on_a_gpu_same_seed_same_bits(
    execution: Any, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if execution == "eager":  # the projection's `scatter_add_` adds in any order, unless asked
        request.addfinalizer(lambda: torch.use_deterministic_algorithms(False))
        torch.use_deterministic_algorithms(True, warn_only=True)
    for folder in "ab":
        train(overlapped(device="cuda", execution=execution), tmp_path / folder)
    assert_same(agent_state(tmp_path / "a"), agent_state(tmp_path / "b"))


def test_without_its_replay_a_resumed_run_owes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The updates that were owed when it stopped would learn from an empty ring."""
    recipe = overlapped(total_vec_steps=60)
    recipe = replace(
        recipe,
        pace=replace(recipe.pace, warmup_vec_steps=0),
        checkpoint=replace(recipe.checkpoint, replay=False),
    )
    with monkeypatch.context() as patch:
        patch.setattr(overlap_module, "rollout", interrupted_at(33))
        train(recipe, tmp_path / "run")
    state = checkpoint.load(tmp_path / "run").state
    assert state["owed"] > 0
    with open_run(recipe, tmp_path / "other", state) as (_, parts):
        assert parts.replay.size == parts.owed == 0


def test_an_environment_that_needs_the_default_stream_is_refused(tmp_path: Path) -> None:
    with open_run(overlapped(), tmp_path / "run", None) as (journal, parts):
        parts.env.spec = replace(parts.env.spec, any_stream=False)
        with pytest.raises(UserError, match="no-overlap"):
            next(vec_steps(journal, parts, parts.learner(journal)))


def test_threads_take_quick_turns_only_while_there_are_some(tmp_path: Path) -> None:
    before, seen = sys.getswitchinterval(), list[float]()
    recipe = overlapped(total_vec_steps=3)
    with open_run(recipe, tmp_path / "run", None) as (journal, parts):
        steps = vec_steps(journal, parts, parts.learner(journal))
        next(steps)
        seen.append(sys.getswitchinterval())
        steps.close()
    assert seen == [pytest.approx(TURN_SECONDS)]
    assert sys.getswitchinterval() == before
