"""Gorila as processes on Ray: the same weights in lockstep, learns, stops."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fleetfoot import checkpoint, recipes
from fleetfoot.api import evaluate_run, resume, train
from fleetfoot.checkpoint import CheckpointConfig
from fleetfoot.errors import Halted, Notice, UserError
from fleetfoot.evaluate import EvaluationConfig
from fleetfoot.log import LogConfig
from fleetfoot.recipe import Recipe
from fleetfoot.run.interrupt import Interrupt
from fleetfoot.topologies.gorila.bundle import Report
from fleetfoot.topologies.gorila.fleet import BundleFleet
from fleetfoot.topologies.gorila.loop import ParameterServerConfig, ServerRun
from fleetfoot.topologies.gorila.replica import flatten
from fleetfoot.topologies.ray.workers import Restarts
from fleetfoot.topologies.synchronous import SynchronousConfig
from support.crashing import CrashingConfig
from support.extras import needs
from support.gorila import small
from support.losing import assert_adds_up, lines
from support.runs import assert_policy_is_stored
from support.train_until import train_until

needs("ray")
needs_ray = pytest.mark.usefixtures("ray")

SOLVED = 450.0


def weights(folder: Path, name: str = "weights") -> torch.Tensor:
    return torch.cat([shard[name] for shard in checkpoint.load(folder).state["server"]])


@needs_ray
def test_lockstep_equals_synchronous_bit_for_bit_also_after_a_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One bundle, two shards, Ctrl-C after 57 steps, resumed: the weights of a run in one process."""
    one = ParameterServerConfig(
        bundles=1, shards=2, lockstep=True, shift_vec_steps=7, outlier_stds=None
    )
    train(small(topology=SynchronousConfig()), tmp_path / "serial")
    with monkeypatch.context() as patch:
        record = ServerRun.record

        def interrupted(run: ServerRun, report: Report) -> None:
            record(run, report)
            if run.journal.vec_steps > 50:  # no multiple of anything
                os.kill(os.getpid(), signal.SIGINT)

        patch.setattr(ServerRun, "record", interrupted)
        stopped = train(small(topology=one), tmp_path / "gorila")
    assert not stopped.finished
    assert checkpoint.load(tmp_path / "gorila").step == stopped.counters.vec_steps == 57
    result = resume(tmp_path / "gorila", total_vec_steps=110)
    assert_policy_is_stored(tmp_path / "gorila", result, monkeypatch)
    serial = checkpoint.load(tmp_path / "serial").state
    ours = checkpoint.load(tmp_path / "gorila").state
    assert result.counters.updates == serial["updates"] == 200
    assert result.last_return == serial["last_return"]
    assert torch.equal(
        weights(tmp_path / "gorila"), flatten(list(serial["agent"]["policy"].values()))
    )
    target = flatten(list(serial["agent"]["critic_target"].values()))
    assert torch.equal(weights(tmp_path / "gorila", "target"), target)
    for name, value in serial["agent"]["policy"].items():
        assert torch.equal(ours["agent"]["policy"][name], value)
    evaluated = [line["vec_steps"] for line in lines(tmp_path / "gorila") if "eval/return" in line]
    assert evaluated == [50, 100, 110]
    last = assert_adds_up(tmp_path / "gorila")
    assert last["lag/upto0"] == 1.0
    assert evaluate_run(tmp_path / "gorila", episodes=2, device="cpu").returns.shape == (2,)


@needs_ray
def test_bundles_that_fail_again_and_again_end_the_run(tmp_path: Path) -> None:
    """The environment raises at its third step, in every bundle; its seed is told."""
    cfg = ParameterServerConfig(bundles=1)
    topology = replace(cfg, ray=replace(cfg.ray, max_restarts=1))
    recipe = small(env=CrashingConfig(at=3), topology=topology)
    with pytest.raises(
        UserError,
        match=r"bundle 0 \(environments of seed \d+\) is lost .*left the world.*1 restarts",
    ):
        train(recipe, tmp_path / "run")


@needs_ray
@pytest.mark.parametrize("how", ["exit", "hang"])
def test_a_run_that_gives_up_on_a_bundle_is_saved_and_goes_on(how: str, tmp_path: Path) -> None:
    """Bundles take turns of ten vec steps. The process of the first ends in its fourth, after 60 steps of both."""
    cfg = ParameterServerConfig(bundles=2, lockstep=True, shift_vec_steps=10, outlier_stds=None)
    recipe = small(
        env=CrashingConfig(at=35, how=how),
        env_timeout=3.0 if how == "hang" else 600.0,
        topology=replace(cfg, ray=replace(cfg.ray, max_restarts=0)),
        checkpoint=CheckpointConfig(every_vec_steps=0),
        evaluation=EvaluationConfig(every_vec_steps=0, episodes=2),
    )
    with pytest.raises(Halted, match=r"its process died\) after 0 restarts.*saved after 60 vec"):
        train(recipe, tmp_path / "run")
    state = checkpoint.load(tmp_path / "run").state
    assert state["replay"][0] is None
    assert state["replay"][1] is not None
    with pytest.warns(Notice, match=r"no replay of bundle 0: it fills again, .* 10 vec steps"):
        result = resume(tmp_path / "run")
    assert result.finished
    # Until it ended the first had made 34 steps, of which 10 were its warm-up. After that the second makes 30, and the
    # first 20, half of them to fill its replay.
    assert result.counters.updates == 2 * ((34 - 10) + (30 - 10) + 30 + 10)


class FakeRay:
    """Ray for one bundle class. Shifts end at once and in order; what starts takes longer than all of them. The first
    shift of bundle 0 fails."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int, int]] = []  # method, bundle, incarnation

    def remote(self, _: type) -> Any:
        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=self._actor))

    def _actor(self, packed: Any, slices: Any, index: int, incarnation: int) -> Any:
        def method(name: str) -> Any:
            def remote(*_: Any) -> tuple[Any, ...]:
                self.calls.append((name, index, incarnation))
                return (*self.calls[-1], len(self.calls))

            return SimpleNamespace(remote=remote)

        return SimpleNamespace(start=method("start"), work=method("work"))

    def wait(self, calls: list[Any], **_: Any) -> Any:
        return sorted(calls, key=lambda call: call[0] == "start")[:1], []

    def get(self, call: Any) -> Any:
        if call[:3] == ("work", 0, 0):
            raise RuntimeError("the motor is too hot")
        return Report(5, 0, {}, {}, server_lost=False)

    def kill(self, _: Any) -> None: ...


def test_the_others_work_while_a_lost_bundle_is_replaced() -> None:
    ray: Any = FakeRay()
    server: Any = SimpleNamespace(shards=[], slices=[], restarts=Restarts(1), save=lambda: None)
    cfg = ParameterServerConfig(bundles=2, shift_vec_steps=5)
    fleet = BundleFleet(ray, cfg, small(topology=cfg), server)
    fleet.start()
    ray.calls.clear()
    reports = list(fleet.work(20, Interrupt()))
    assert sum(report.vec_steps for report in reports) == 20
    assert ray.calls == [
        ("work", 0, 0),
        ("work", 1, 0),
        ("start", 0, 1),
        *[("work", 1, 0)] * 3,
    ]
    assert sorted(fleet.idle) == [0, 1], "the replacement is there in the end"
    assert not fleet.workers.starting


def test_a_bundle_that_was_not_idle_when_the_run_was_saved_gets_its_turn_again() -> None:
    ray: Any = FakeRay()
    server: Any = SimpleNamespace(
        shards=[], slices=[], restarts=Restarts(1), save=lambda: None, resume=lambda *_: None
    )
    cfg = ParameterServerConfig(bundles=3, shift_vec_steps=5)
    fleet = BundleFleet(ray, cfg, small(topology=cfg), server)
    parts: Any = {"explorer": {}, "pace": {}, "outliers": {}}
    saved = {"server": [], "generation": 1, "turns": [2], "incarnations": [1, 1, 1]}
    replays: list[Any] = [{}] * 3
    fleet.load_state_dict({**saved, "bundles": [parts] * 3, "replay": replays})
    assert list(fleet.idle) == [2, 0, 1]


CTRL_C = """
import sys
from dataclasses import replace
from pathlib import Path
from fleetfoot.api import train
from fleetfoot.topologies.gorila.loop import ParameterServerConfig
from support.gorila import small

cfg = ParameterServerConfig(bundles=2, shards=1, shift_vec_steps=10)
result = train(small(topology=cfg, total_vec_steps=1_000_000), Path(sys.argv[1]))
print("finished" if result.finished else "stopped", result.counters.vec_steps)
"""


@pytest.mark.slow  # in the suite Ctrl-C is above, and Ape-X ends a Ray of its own
def test_ctrl_c_saves_and_leaves_no_process(tmp_path: Path) -> None:
    """A Ray of its own, the signal to the whole foreground group, as a terminal sends it."""
    folder = tmp_path / "run"
    mark = f"FLEETFOOT_TEST={tmp_path.name}-{os.getpid()}"
    name, _, value = mark.partition("=")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), name: value}
    command = [sys.executable, "-c", CTRL_C, str(folder)]
    child = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    deadline = time.monotonic() + 240
    while not (folder / "metrics.jsonl").exists() and time.monotonic() < deadline:
        assert child.poll() is None
        time.sleep(0.2)
    os.killpg(child.pid, signal.SIGINT)
    out, _ = child.communicate(timeout=120)
    word, steps = out.split()[-2:]
    assert word == "stopped"
    assert checkpoint.load(folder).step == int(steps) > 0
    for _ in range(1200):  # two minutes, on a machine that is busy
        if not (alive := descendants(mark)):
            break
        time.sleep(0.1)
    assert not alive


def descendants(mark: str) -> list[str]:
    """Processes that inherited an environment variable."""
    commands = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark.encode() in path.read_bytes():
                commands.append((path.parent / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return commands


def cartpole(**changes: Any) -> Recipe:
    quiet = LogConfig(every_vec_steps=200, tensorboard=False, console=False)
    return replace(recipes.get("gorila_dqn/cartpole"), log=quiet, threads=1, **changes)


@needs_ray
@pytest.mark.learning
@pytest.mark.slow
def test_two_bundles_solve_the_cartpole(tmp_path: Path) -> None:
    result = train_until(cartpole(), tmp_path / "run", SOLVED)
    assert result.best_return >= SOLVED  # processes out of step: the last may fall back
    assert assert_adds_up(tmp_path / "run")["gradients/stale"] < 0.05 * result.counters.updates
