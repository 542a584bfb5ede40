"""The loop as a whole: it learns, it is the same twice, it goes on exactly, and it stops when it must."""

from __future__ import annotations

import json
import os
import signal
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from fleetfoot import checkpoint, recipes
from fleetfoot.api import resume, train
from fleetfoot.checkpoint import CheckpointConfig
from fleetfoot.envs.tensor import TensorConfig
from fleetfoot.errors import Halted, UserError
from fleetfoot.evaluate import EvaluationConfig
from fleetfoot.execution import Compiled
from fleetfoot.explore import AsSampledConfig, NoiseLadderConfig
from fleetfoot.guard import Guarded
from fleetfoot.log import NonFinite
from fleetfoot.nn.simba import SimbaV2Config
from fleetfoot.recipe import Recipe
from fleetfoot.replay.replay import ReplayConfig
from fleetfoot.rollout import rollout as true_rollout
from fleetfoot.run import folder as folders
from fleetfoot.run.build import open_run
from fleetfoot.run.clock import Clock
from fleetfoot.topologies import synchronous as synchronous_module
from support.forked import Child
from support.runs import (
    QUIET,
    SpoiledConfig,
    agent_state,
    assert_same,
    interrupted_at,
    small,
    tensors,
)
from support.train_until import train_until


@pytest.mark.parametrize("name", ["fast_td3/pendulum", "fast_sac/pendulum"])
def test_same_seed_same_bits(name: str, tmp_path: Path) -> None:
    train(small(name), tmp_path / "a")
    train(small(name), tmp_path / "b")
    train(small(name, seed=1), tmp_path / "c")
    a, b, c = (agent_state(tmp_path / k) for k in "abc")
    assert_same(a, b)
    assert any(not torch.equal(a[k], c[k]) for k in a)


def test_evaluation_never_disturbs_training(tmp_path: Path) -> None:
    train(small(), tmp_path / "often")
    train(small(evaluation=EvaluationConfig(every_vec_steps=0, episodes=1)), tmp_path / "once")
    assert_same(agent_state(tmp_path / "often"), agent_state(tmp_path / "once"))


ENVS: list[Any] = [
    ("fast_td3/pendulum", None),
    ("fast_sac/pendulum", None),
    ("fast_td3/pendulum", TensorConfig(task="point_mass", privileged=True, num_tasks=2)),
]


def test_with_mirror_images_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They draw nothing, so there is nothing of theirs to save."""
    env = TensorConfig(task="point_mass", privileged=True)
    replay = ReplayConfig(capacity=8 * 100, n_step=3, storage="bf16", mirror=True)
    recipe = small(env=env, replay=replay, batch_size=15)
    interrupt_and_compare(recipe, tmp_path, monkeypatch)


@pytest.mark.parametrize(("name", "env"), ENVS)
def test_a_run_that_was_interrupted_and_resumed_ends_with_the_same_state(
    name: str, env: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C at a step where nothing was due, then resume: every tensor of the state is the same bit for bit."""
    changes = {} if env is None else {"env": env}
    recipe = small(name, **changes)
    if env is not None:
        agent: Any = recipe.agent
        recipe = replace(recipe, agent=replace(agent, v_max=10.0, normalize_reward=True))
    interrupt_and_compare(recipe, tmp_path, monkeypatch)


def interrupt_and_compare(recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(recipe, tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(synchronous_module, "rollout", interrupted_at(133))
        assert not train(recipe, tmp_path / "parts").finished
    assert checkpoint.load(tmp_path / "parts").step == 133
    assert resume(tmp_path / "parts").finished
    one, two = (tensors(checkpoint.load(tmp_path / k).state) for k in ("whole", "parts"))
    assert_same(one, two)


def train_and_die(step: int, folder: Path) -> None:
    def dying(*args: Any) -> Any:
        for count, transition in enumerate(true_rollout(*args)):
            if count == step:
                os.kill(os.getpid(), signal.SIGKILL)
            yield transition

    vars(synchronous_module)["rollout"] = dying
    train(small(), folder)


def test_a_run_killed_without_warning_and_resumed_ends_with_the_same_state(tmp_path: Path) -> None:
    train(small(), tmp_path / "whole")
    wanted = tensors(checkpoint.load(tmp_path / "whole").state)
    for step in (95, 173):
        killed = tmp_path / f"killed{step}"
        ended = Child(tmp_path, partial(train_and_die, step, killed)).wait()
        assert ended.code == -signal.SIGKILL, ended.err
        assert checkpoint.load(killed).step < step
        resume(killed)
        assert_same(wanted, tensors(checkpoint.load(killed).state))


def test_without_the_replay_a_resumed_run_still_goes_on(tmp_path: Path) -> None:
    recipe = small(checkpoint=CheckpointConfig(every_vec_steps=70, replay=False))
    train(replace(recipe, total_vec_steps=100), tmp_path / "run")
    assert not list((tmp_path / "run").rglob("replay.safetensors"))
    result = resume(tmp_path / "run", total_vec_steps=160)
    assert result.finished
    assert result.counters.vec_steps == 160


def test_a_simulator_without_saved_state_marks_the_break(tmp_path: Path) -> None:
    from fleetfoot.envs.gym import GymConfig

    recipe = small(env=GymConfig(id="Pendulum-v1"), total_vec_steps=60)
    train(recipe, tmp_path / "run")
    resume(tmp_path / "run", total_vec_steps=75)
    ring = checkpoint.load(tmp_path / "run").state["replay"]["ring"]
    ends = ring["tensors"]["ends"].view(-1, 8)
    assert ends[59].tolist() == [2] * 8, "the last row before the break counts as truncated"
    assert ends[:59].sum() == 0


def test_ctrl_c_saves_and_returns(tmp_path: Path) -> None:
    timer = threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    before = signal.getsignal(signal.SIGINT)
    result = train(small(total_vec_steps=100_000), tmp_path / "run")
    assert not result.finished
    assert checkpoint.load(tmp_path / "run").step == result.counters.vec_steps > 0
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize(
    ("what", "named"), [("obs", "env/obs_magnitude"), ("reward", "env/reward")]
)
def test_what_is_not_finite_stops_the_run_and_the_last_good_checkpoint_stays(
    what: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU, where the environments are not looked at in every step."""
    monkeypatch.setattr(Guarded, "_check_finite", lambda *args: None)
    with pytest.raises(NonFinite, match=named) as caught:
        train(small(env=SpoiledConfig(what=what)), tmp_path / "run")
    assert isinstance(caught.value, UserError)
    loaded = checkpoint.load(tmp_path / "run")
    assert loaded.step == 140
    assert all(
        bool(torch.isfinite(t).all())
        for t in tensors(loaded.state["agent"]).values()
        if t.is_floating_point()
    )


def test_non_finite_losses_are_named(tmp_path: Path) -> None:
    recipe = small()
    agent: Any = recipe.agent
    wild = replace(agent.critic_optim, lr=1e30, lr_end=1e30)
    with pytest.raises(NonFinite, match="critic/"):
        train(replace(recipe, agent=replace(agent, critic_optim=wild)), tmp_path / "run")


def test_a_checkpoint_of_other_networks_is_refused(tmp_path: Path) -> None:
    train(small(total_vec_steps=80), tmp_path / "run")
    recipe = folders.read_recipe(tmp_path / "run")
    agent: Any = recipe.agent
    other = replace(agent, critic_net=replace(agent.critic_net, hidden=(24,)))
    folders.write_recipe(tmp_path / "run", replace(recipe, agent=other))
    with pytest.raises(UserError, match=r"is not that of its checkpoint: agent.critic_net.hidden"):
        resume(tmp_path / "run", total_vec_steps=120)


def test_ctrl_c_after_something_is_no_number_keeps_the_last_good_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(synchronous_module, "rollout", interrupted_at(105))
    monkeypatch.setattr(Guarded, "_check_finite", lambda *args: None)
    recipe = small(env=SpoiledConfig(at=103, what="reward"))
    with pytest.raises(NonFinite, match="env/reward"):
        train(recipe, tmp_path / "run")
    assert checkpoint.load(tmp_path / "run").step == 70


def test_bf16_stays_close(tmp_path: Path) -> None:
    short = small(total_vec_steps=40, evaluation=EvaluationConfig(every_vec_steps=0, episodes=1))
    train(replace(short, total_vec_steps=1), tmp_path / "start")  # nothing is learned yet
    train(short, tmp_path / "eager")
    train(replace(short, precision="bf16"), tmp_path / "bf16")
    start, a, b = (agent_state(tmp_path / k) for k in ("start", "eager", "bf16"))
    names = [k for k in a if k.startswith(("/policy/net", "/critic/net"))]
    assert len(names) == 8
    for k in names:
        apart, way = float((a[k] - b[k]).abs().sum()), float((a[k] - start[k]).abs().sum())
        assert 0 < apart < 0.25 * way, k


@pytest.mark.usefixtures("compiler")
def test_compiled_equals_eager_to_rounding(tmp_path: Path) -> None:
    """A whole run; the updates of other agents are compared in `test_speed.py`."""
    short = small(total_vec_steps=26)
    train(short, tmp_path / "eager")
    train(replace(short, execution="compiled"), tmp_path / "compiled")
    a, b = (agent_state(tmp_path / k) for k in ("eager", "compiled"))
    names = [k for k in a if k.startswith(("/policy/", "/critic/"))]
    assert len(names) > 8
    for k in names:
        torch.testing.assert_close(a[k], b[k], atol=2e-4, rtol=2e-4)


def test_what_cannot_be_compiled_runs_as_it_was() -> None:
    from torch._dynamo.exc import TorchDynamoException

    def broken(function: Any, **options: Any) -> Any:
        def fail(*args: Any) -> Any:
            raise TorchDynamoException("no compiler here")

        return fail

    compiled = Compiled(lambda x: x + 1, "loss")
    compiled.function = broken(None)
    with pytest.warns(UserWarning, match="loss runs uncompiled: no compiler here"):
        assert compiled(1) == 2
    assert compiled(2) == 3  # and says so only once


def test_the_clock_stands_still_while_paused_and_goes_on_where_it_was() -> None:
    now = [0.0]
    clock = Clock(read=lambda: now[0])
    now[0] = 2.0
    with clock.paused():
        now[0] = 50.0
        assert clock.seconds() == 2.0
    now[0] = 51.0
    assert clock.seconds() == 3.0
    clock.restart(100.0)
    now[0] = 51.5
    assert clock.seconds() == 100.5


def test_an_interruption_saves_what_was_learned_since_the_last_save(tmp_path: Path) -> None:
    """Free learners make updates between two vec steps."""
    with open_run(small("fast_td3/pendulum"), tmp_path, None) as (journal, parts):
        for updates in (0, 3, 3):
            journal.updates = updates
            journal.save_interrupted(parts)
            assert checkpoint.load(tmp_path).state["updates"] == updates
        folder = json.loads((tmp_path / "checkpoints" / "last.json").read_text())["folder"]
        assert folder.endswith("-2"), "the third time there is nothing new"


def test_evaluations_save_the_best_policy_and_nothing_else(tmp_path: Path) -> None:
    recipe = small(checkpoint=CheckpointConfig(every_vec_steps=0), total_vec_steps=230)
    result = train(recipe, tmp_path / "run")
    lines = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    saved = [line["vec_steps"] for line in lines if "eval/return" in line]
    assert saved == [100, 200, 230]
    best = checkpoint.load(tmp_path / "run", which="best")
    assert best.score == result.best_return
    assert best.step in saved
    assert "replay" not in best.state


def test_an_explorer_of_the_wrong_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="NoiseLadderConfig"):
        train(small(explorer=AsSampledConfig()), tmp_path / "a")
    with pytest.raises(UserError, match="AsSampledConfig"):
        train(small("fast_sac/pendulum", explorer=NoiseLadderConfig()), tmp_path / "b")


def test_learning_rates_may_change_when_a_run_goes_on_and_networks_may_not(tmp_path: Path) -> None:
    recipe = small(total_vec_steps=80)
    train(recipe, tmp_path / "run")
    agent: Any = recipe.agent
    slower = replace(agent, critic_optim=replace(agent.critic_optim, lr=1e-5, lr_end=1e-5))
    resume(tmp_path / "run", total_vec_steps=90, agent=slower)
    with pytest.raises(UserError, match=r"agent\.tau cannot change"):
        resume(tmp_path / "run", total_vec_steps=100, agent=replace(slower, tau=0.5))


@pytest.mark.learning
@pytest.mark.parametrize("name", ["fast_td3/pendulum", "fast_sac/pendulum"])
def test_solves_the_pendulum(name: str, tmp_path: Path) -> None:
    recipe = replace(recipes.get(name), log=QUIET, device="cpu", threads=1, total_vec_steps=700)
    assert train_until(recipe, tmp_path / "run", -200, every=100).best_return >= -200


@pytest.mark.learning
def test_simba_with_privileged_critics_and_tasks_learns_the_point_mass(tmp_path: Path) -> None:
    base = recipes.get("fast_td3/pendulum")
    agent: Any = base.agent
    recipe = replace(
        base,
        env=TensorConfig(task="point_mass", privileged=True, num_tasks=2),
        agent=replace(
            agent,
            normalize_reward=True,
            v_min=-10.0,
            v_max=10.0,
            policy_net=SimbaV2Config(width=32, blocks=1),
            critic_net=SimbaV2Config(width=32, blocks=1),
        ),
        log=QUIET,
        evaluation=EvaluationConfig(every_vec_steps=100, episodes=32),
        total_vec_steps=400,
        device="cpu",
        threads=1,
    )
    first = train(replace(recipe, total_vec_steps=25), tmp_path / "untrained").last_return
    least = first + 0.5 * abs(first)
    assert train_until(recipe, tmp_path / "run", least).best_return >= least


def test_what_could_not_be_saved_is_not_called_saved(tmp_path: Path) -> None:
    """Told to stop while an environment hangs, by a learner that has diverged."""
    with open_run(small(), tmp_path / "run", None) as (journal, parts):
        journal.updates = 1
        next(parts.agent.policy.parameters()).data.fill_(float("nan"))
        with (
            pytest.raises(Halted, match=r"it hangs; its state was not saved \(.* is NaN"),
            journal.rescuing(parts, lambda: True),
        ):
            raise Halted("it hangs")


def test_told_to_stop_and_saved_a_hang_does_not_matter(tmp_path: Path) -> None:
    with open_run(small(), tmp_path / "run", None) as (journal, parts):
        journal.updates = 1
        with journal.rescuing(parts, lambda: True):
            raise Halted("it hangs")
    assert checkpoint.load(tmp_path / "run").step == 0
