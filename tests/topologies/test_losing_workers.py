"""SIGKILL of each kind of process during training: the run goes on, counts nothing twice, and (slow) learns its task.

Each test has a small run of seconds, and whole recipes whose return must be what an undisturbed run reaches. Processes
are out of step, so a whole run is judged by its best evaluation: the last may fall back.
"""

from __future__ import annotations

import os
import re
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fleetfoot import checkpoint, recipes
from fleetfoot.api import train
from fleetfoot.checkpoint import CheckpointConfig
from fleetfoot.evaluate import EvaluationConfig
from fleetfoot.log import LogConfig
from fleetfoot.recipe import Recipe, Result
from fleetfoot.topologies.apex.loop import ActorLearnerConfig
from fleetfoot.topologies.gorila.fleet import BundleFleet
from fleetfoot.topologies.gorila.loop import ParameterServerConfig
from support.extras import needs
from support.gorila import small as small_gorila
from support.losing import assert_adds_up, assert_counters_add_up, kill, lines, when

needs("ray")
pytestmark = pytest.mark.usefixtures("ray")

QUIET = LogConfig(every_vec_steps=10, tensorboard=False, console=False)


class Task(NamedTuple):
    recipe: Recipe
    least: float  # the best return must reach it


def small_apex() -> Recipe:
    base = recipes.get("apex_dqn/cartpole")
    return replace(
        base,
        topology=replace(base.topology, actors=2, block_vec_steps=5),  # type: ignore[type-var]
        evaluation=EvaluationConfig(every_vec_steps=50, episodes=2),
        num_envs=8,
        batch_size=16,
        total_vec_steps=330,  # a third of it is after the first checkpoint
    )


def apex(name: str) -> Task:
    least = {"small": 0.0, "cartpole": 475.0, "pendulum": -200.0}[name]
    if name == "small":
        recipe = small_apex()
    else:
        recipe = recipes.get({"cartpole": "apex_dqn/cartpole"}.get(name, "apex_dpg/pendulum"))
        assert isinstance(recipe.topology, ActorLearnerConfig)
        assert recipe.topology.actors == 4
    saved = CheckpointConfig(every_vec_steps=100)
    return Task(replace(recipe, log=QUIET, checkpoint=saved, device="cpu", threads=1), least)


def train_and_kill(role: str, recipe: Recipe, folder: Path) -> Result:
    """SIGKILL when a third of the run is done."""
    killing = when(folder, recipe.total_vec_steps // 3, lambda: kill(role))
    result = train(recipe, folder)
    killing.join()
    return result


slow = pytest.mark.slow
each_cartpole = pytest.mark.parametrize("name", ["small", "cartpole"])
each_apex = pytest.mark.parametrize("name", ["small", "cartpole", "pendulum"])
LOST = "is lost (its process died); restart 1 of 10"


def test_a_killed_actor_and_then_the_learner(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each alone, and in runs that learn, further down. The actor is replaced before the second checkpoint, from which
    the next learner goes on."""
    recipe, _ = apex("small")
    later = when(tmp_path / "run", 220, lambda: kill("Learner"))
    assert train_and_kill("Actor", recipe, tmp_path / "run").finished
    later.join()
    printed = capfd.readouterr().err
    assert printed.count("is lost") == 2
    assert re.search(rf"fleetfoot: actor \d {re.escape(LOST)}", printed)
    assert f"fleetfoot: the learner {LOST}" in printed
    assert_counters_add_up(tmp_path / "run", recipe)
    steps = [line["vec_steps"] for line in lines(tmp_path / "run") if "critic/loss" in line]
    assert steps == sorted(set(steps)), "what the lost learner wrote after its checkpoint is gone"
    assert sorted(checkpoint.load(tmp_path / "run").state["incarnations"]) == [1, 2]
    counted = [
        line["fleet/restarts"] for line in lines(tmp_path / "run") if "fleet/restarts" in line
    ]
    assert max(counted) == 1, "the next learner counts anew"


@slow
@each_apex
def test_a_killed_actor(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    recipe, least = apex(name)
    result = train_and_kill("Actor", recipe, tmp_path / "run")
    printed = capfd.readouterr().err
    assert printed.count("is lost") == 1
    assert "fleetfoot: actor " in printed
    assert LOST in printed
    assert_counters_add_up(tmp_path / "run", recipe)
    incarnations = checkpoint.load(tmp_path / "run").state["incarnations"]
    assert sorted(incarnations) == [0] * (len(incarnations) - 1) + [1]
    assert lines(tmp_path / "run")[-1]["fleet/restarts"] == 1
    assert result.best_return >= least


@slow
@each_apex
def test_a_killed_learner(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    recipe, least = apex(name)
    result = train_and_kill("Learner", recipe, tmp_path / "run")
    printed = capfd.readouterr().err
    assert printed.count("is lost") == 1
    assert f"fleetfoot: the learner {LOST}" in printed
    assert_counters_add_up(tmp_path / "run", recipe)
    steps = [line["vec_steps"] for line in lines(tmp_path / "run") if "critic/loss" in line]
    assert steps == sorted(set(steps)), "what the lost learner wrote after its checkpoint is gone"
    assert set(checkpoint.load(tmp_path / "run").state["incarnations"]) == {1}
    assert result.best_return >= least


@slow
@each_cartpole
def test_a_killed_evaluator(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    recipe, least = apex(name)
    result = train_and_kill("RemoteEvaluator", recipe, tmp_path / "run")
    printed = capfd.readouterr().err
    assert printed.count("is lost") == 1
    assert f"fleetfoot: the evaluator {LOST}" in printed
    assert_counters_add_up(tmp_path / "run", recipe)
    assert set(checkpoint.load(tmp_path / "run").state["incarnations"]) == {0}
    evaluated = [line["vec_steps"] for line in lines(tmp_path / "run") if "eval/return" in line]
    assert evaluated[-1] == recipe.total_vec_steps
    assert result.best_return >= least


def gorila(name: str) -> Task:
    topology = ParameterServerConfig(bundles=2, shards=2, shift_vec_steps=25)
    if name == "small":
        quiet = replace(QUIET, every_vec_steps=20)
        recipe = small_gorila(topology=topology, total_vec_steps=300, log=quiet)
        return Task(recipe, 0.0)
    recipe = replace(recipes.get("gorila_dqn/cartpole"), log=replace(QUIET, every_vec_steps=200))
    return Task(replace(recipe, topology=topology, threads=1), 450.0)


class Killed:
    """Kills one process of a Gorila run, chosen by kind and number, after a good third of the run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, ray: Any):
        self.ray = ray
        self.fleets: list[BundleFleet] = []
        begin = BundleFleet.start

        def start(fleet: BundleFleet) -> None:
            begin(fleet)
            self.fleets.append(fleet)

        monkeypatch.setattr(BundleFleet, "start", start)

    def kill(self, kind: str, number: int) -> None:
        (fleet,) = self.fleets
        handles = fleet.workers.handles if kind == "bundle" else fleet.server.shards
        process = handles[number].__ray_call__.remote(lambda _: os.getpid())
        os.kill(self.ray.get(process), signal.SIGKILL)

    def train(self, kind: str, number: int, recipe: Recipe, folder: Path) -> Result:
        # Between two checkpoints: right after one, nothing is lost.
        third = recipe.total_vec_steps // 3 + recipe.checkpoint.every_vec_steps // 4
        killing = when(folder, third, lambda: self.kill(kind, number))
        result = train(recipe, folder)
        killing.join()
        return result


def assert_went_back(state: Any, result: Result, recipe: Recipe, warm_ups: int) -> None:
    """The server went back to a checkpoint: what was learned since then is gone, and what was under way; no more."""
    assert state["generation"] == 2, "once back to a checkpoint, and once more when it is resumed"
    most = 2 * (recipe.total_vec_steps - warm_ups * recipe.pace.warmup_vec_steps)
    back = recipe.checkpoint.every_vec_steps
    assert most - 2 * back - 2 * 2 * 25 <= result.counters.updates < most


def test_a_killed_bundle_and_then_a_shard(
    ray: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each alone, and in runs that learn, further down."""
    recipe, _ = gorila("small")
    killed = Killed(monkeypatch, ray)
    later = when(tmp_path / "run", 200, lambda: killed.kill("shard", 0))
    result = killed.train("bundle", 1, recipe, tmp_path / "run")
    later.join()
    assert result.counters.vec_steps == recipe.total_vec_steps
    assert assert_adds_up(tmp_path / "run")["fleet/restarts"] == 2
    printed = capsys.readouterr().err
    assert "bundle 1 (environments of seed" in printed
    assert "shard 0 of the server is lost" in printed
    state = checkpoint.load(tmp_path / "run").state
    assert state["incarnations"] == [0, 1]
    assert_went_back(state, result, recipe, warm_ups=3)


@slow
@each_cartpole
def test_a_killed_bundle(
    name: str,
    ray: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    recipe, least = gorila(name)
    result = Killed(monkeypatch, ray).train("bundle", 1, recipe, tmp_path / "run")
    assert result.counters.vec_steps == recipe.total_vec_steps
    assert assert_adds_up(tmp_path / "run")["fleet/restarts"] == 1
    assert "bundle 1 (environments of seed" in capsys.readouterr().err
    state = checkpoint.load(tmp_path / "run").state
    assert state["incarnations"] == [0, 1]
    stats = state["server"][0]["gradient_stats"]
    arrived = sum(sum(stats[kind].values()) for kind in ("accepted", "stale", "outlying"))
    # What was reported: two updates per vec step, less three warm-ups. The killed bundle's last shift was not.
    reported = 2 * (recipe.total_vec_steps - 3 * recipe.pace.warmup_vec_steps)
    assert reported <= arrived <= reported + 2 * 25
    assert result.best_return >= least


@slow
@each_cartpole
@pytest.mark.parametrize("shard", [0, 1])
def test_a_killed_shard(
    name: str,
    shard: int,
    ray: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The first decides for all and counts the gradients; the server goes back to its checkpoint whichever is lost."""
    recipe, least = gorila(name)
    result = Killed(monkeypatch, ray).train("shard", shard, recipe, tmp_path / "run")
    assert result.counters.vec_steps == recipe.total_vec_steps
    assert assert_adds_up(tmp_path / "run")["fleet/restarts"] == 1
    assert f"shard {shard} of the server is lost" in capsys.readouterr().err
    state = checkpoint.load(tmp_path / "run").state
    assert state["incarnations"] == [0, 0]
    assert_went_back(state, result, recipe, warm_ups=2)
    assert result.best_return >= least
