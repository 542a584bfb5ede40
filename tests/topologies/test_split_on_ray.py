"""PQL as Ray actors: the same as in one process, at ratios that hold, also after one of the three was killed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

from fleetfoot import checkpoint, recipes
from fleetfoot.api import resume, train
from fleetfoot.checkpoint import CheckpointConfig
from fleetfoot.cli.form import parse_recipe
from fleetfoot.envs.tensor import TensorConfig
from fleetfoot.errors import Halted, Program, UserError
from fleetfoot.evaluate import EvaluationConfig
from fleetfoot.execution.learner import EagerLearner
from fleetfoot.log import LogConfig
from fleetfoot.recipe import Recipe, Result
from fleetfoot.replay import replay as replay_module
from fleetfoot.replay.observations import Observations
from fleetfoot.replay.replay import ReplayConfig
from fleetfoot.run.clock import Clock
from fleetfoot.run.interrupt import Interrupt
from fleetfoot.topologies.pql.exchange import Order, Outcome, Setup
from fleetfoot.topologies.pql.loop import Coordinator, SplitLearnersConfig, covered
from fleetfoot.topologies.pql.on_ray import OnRayConfig, Processes, RoleConfig
from fleetfoot.topologies.pql.processes import PROCESSES, CriticLearnerProcess
from fleetfoot.topologies.pql.schedule import Round
from fleetfoot.topologies.pql.threads import InProcessConfig
from fleetfoot.topologies.ray.transport import pack_recipe, to_tensors
from fleetfoot.topologies.synchronous import SynchronousConfig
from support.runs import (
    QUIET,
    agent_state,
    assert_policy_is_stored,
    assert_same,
    short,
    tensors,
)
from support.skewed import SkewedDDPGConfig, SkewedEnvConfig

RARELY = LogConfig(every_vec_steps=1000, tensorboard=False, console=False)
AT_THE_END = EvaluationConfig(every_vec_steps=0, episodes=1)


def on_ray(**changes: Any) -> SplitLearnersConfig:
    return SplitLearnersConfig(placement=OnRayConfig(), **changes)


def pql(**changes: Any) -> Recipe:
    fields: dict[str, Any] = {"topology": on_ray(), "evaluation": AT_THE_END}
    return short("pql/pendulum", **(fields | changes))


def skewed(recipe: Recipe, **changes: Any) -> Recipe:
    agent: Any = recipe.agent
    return replace(recipe, agent=SkewedDDPGConfig.of(agent, **changes))


def lines(folder: Path) -> list[dict[str, Any]]:
    path = folder / "metrics.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines() if line.endswith("}")]


class Looking:
    """Looks at the coordinator each time a round is finished."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.counts: list[tuple[int, ...]] = []  # vec steps, critic updates, policy updates
        self.made: list[tuple[Any, ...]] = []  # every round: its stage, its order, what came of it
        self.finished: dict[str, int] = {}  # vec steps of each stage
        self.acts: list[tuple[int, int, Callable[[], None]]] = []
        true = Coordinator.finished

        def finished(run: Coordinator, made: Round, outcome: Outcome, data: Any = None) -> None:
            with run.lock:
                self.made.append((made.stage, made.order(), outcome.used, outcome.changed))
                true(run, made, outcome, data)
                self.finished = dict(run.schedule.gate.finished)
                a, v, p = self.finished.values()
                lead = run.cfg.lead
                loose = run.cfg.free or run.cfg.lockstep
                assert loose or p <= v <= a <= v + lead <= p + 2 * lead
                self.counts.append(tuple(run.schedule.counts.values()))
            steps, updates = self.counts[-1][:2]
            due = [act for act in self.acts if act[0] <= steps and act[1] <= updates]
            self.acts = [act for act in self.acts if act not in due]
            for _, _, act in due:
                act()

        monkeypatch.setattr(Coordinator, "finished", finished)

    def when(self, vec_steps: int, act: Callable[[], None], updates: int = 0) -> None:
        """Do something as soon as the run has come so far."""
        self.acts.append((vec_steps, updates, act))

    def ratios(self, begin: int, end: int) -> tuple[float, float]:
        """Critic updates per vec step and policy updates per critic update between two vec steps."""
        between = [counts for counts in self.counts if begin <= counts[0] <= end]
        (a, v, p), (a_end, v_end, p_end) = between[0], between[-1]
        return (v_end - v) / (a_end - a), (p_end - p) / (v_end - v)


@pytest.fixture
def looking(monkeypatch: pytest.MonkeyPatch) -> Looking:
    return Looking(monkeypatch)


def workers() -> list[psutil.Process]:
    """Those of this test's own Ray that play one of the roles."""
    mine = psutil.Process().children(recursive=True)
    roles = tuple(f"ray::{process.__name__}" for process in PROCESSES.values())
    found = []
    for process in mine:
        with suppress(psutil.Error):  # one that has just ended
            if "".join(process.cmdline()[:1]).startswith(roles):
                found.append(process)
    return found


def assert_no_process_is_left() -> None:
    _, alive = psutil.wait_procs(workers(), timeout=120)
    assert not alive


def kill(stage: str) -> None:
    title = f"ray::{PROCESSES[stage].__name__}"
    found = [p for p in workers() if "".join(p.cmdline()[:1]).startswith(title)]
    max(found, key=lambda p: p.create_time()).kill()  # one of an earlier test may still be ending


@pytest.mark.slow  # PQL in the suite: below
@pytest.mark.parametrize("name", ["pql/pendulum", "fast_sac/pendulum"])
def test_in_lockstep_the_weights_are_those_of_synchronous(
    ray: Any, name: str, tmp_path: Path
) -> None:
    recipe = short(name, 2, total_vec_steps=45, topology=on_ray(lockstep=True))
    train(recipe, tmp_path / "apart")
    assert_same_as_synchronous(recipe, tmp_path)


def assert_same_as_synchronous(recipe: Recipe, place: Path) -> None:
    """The same weights and losses as those of the run in `apart`."""
    train(replace(recipe, topology=SynchronousConfig()), place / "whole")
    assert_same(agent_state(place / "apart"), agent_state(place / "whole"))
    found = [[x.get("critic/loss") for x in lines(place / f)] for f in ("apart", "whole")]
    assert found[0] == found[1]
    assert any(found[0])


def test_in_lockstep_both_transports_carry_the_same_messages_and_the_weights_are_synchronous_s(
    ray: Any, tmp_path: Path, looking: Looking, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = pql(total_vec_steps=36, topology=on_ray(lockstep=True))
    result = train(recipe, tmp_path / "apart")
    assert_policy_is_stored(tmp_path / "apart", result, monkeypatch)
    assert_same_as_synchronous(recipe, tmp_path)
    apart, looking.made = looking.made, []
    train(replace(recipe, topology=SplitLearnersConfig(lockstep=True)), tmp_path / "here")
    assert looking.made == apart
    warmup, learning = 3 * 32, 4 * (3 + 2 * 8)
    settling = 3 * (1 + 4)  # at the start and whenever the log is written
    assert len(apart) == warmup + learning + settling
    updates = [order.amount for stage, order, _, _ in apart if stage == "policy"]
    assert sum(updates) == 4 * 4


@pytest.mark.parametrize("again", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_an_interrupted_lockstep_run_goes_on_exactly_in_either_placement(
    ray: Any, again: bool, tmp_path: Path, looking: Looking
) -> None:
    """With privileged critics and several tasks; the checkpoints have one form."""
    env = TensorConfig(task="point_mass", privileged=True, num_tasks=2)
    recipe = short("fast_td3/pendulum", env=env, topology=on_ray(lockstep=True))
    agent: Any = recipe.agent
    recipe = replace(recipe, agent=replace(agent, v_max=10.0, normalize_reward=True))
    here = SplitLearnersConfig(lockstep=True)
    train(replace(recipe, topology=here), tmp_path / "whole")
    looking.when(33, lambda: os.kill(os.getpid(), signal.SIGINT))
    assert not train(recipe, tmp_path / "parts").finished
    assert checkpoint.load(tmp_path / "parts").step == 33
    if again:
        looking.when(45, lambda: os.kill(os.getpid(), signal.SIGINT))
        assert not resume(tmp_path / "parts").finished
        assert checkpoint.load(tmp_path / "parts").step == 45
    assert resume(tmp_path / "parts", topology=here).finished
    one, two = (tensors(checkpoint.load(tmp_path / k).state) for k in ("whole", "parts"))
    assert_same(one, two)


@pytest.mark.slow  # in threads it is part of the suite
@pytest.mark.parametrize("slow", ["actor", "critic", "policy"])
def test_ratios_hold_whoever_is_slow(ray: Any, slow: str, tmp_path: Path, looking: Looking) -> None:
    """Within 5 % over the run's second half, while everybody is at work, and within the stated bound at any time."""
    recipe = pql(
        total_vec_steps=130,
        batch_size=4,
        log=RARELY,
        checkpoint=CheckpointConfig(every_vec_steps=0, replay=False),
    )
    if slow == "actor":
        recipe = replace(recipe, env=SkewedEnvConfig(seconds=0.03))
    else:
        recipe = skewed(recipe, **{f"{slow}_seconds": 0.004})
    result = train(recipe, tmp_path / "run")
    critic, policy = looking.ratios(50, 130)
    assert critic == pytest.approx(8, rel=0.05)
    assert policy == pytest.approx(1 / 2, rel=0.05)
    assert result.counters.updates == 8 * (130 - 32)
    assert checkpoint.load(tmp_path / "run").state["policy_updates"] == 4 * (130 - 32)
    assert looking.finished == {"actor": 130, "critic": 130, "policy": 130}
    rounds = [stage for stage, order, _, _ in looking.made if order.amount or order.follows]
    assert {stage: rounds.count(stage) for stage in PROCESSES} == looking.finished
    last = lines(tmp_path / "run")[-1]
    for name in ("acting_policy", "critic_learner_policy", "policy_learner_critic"):
        assert 0 <= last[f"split/{name}_lag"] <= 2 * SplitLearnersConfig().lead


def assert_at_a_common_point(folder: Path, result: Result) -> dict[str, Any]:
    """The saved state."""
    state = checkpoint.load(folder).state
    steps: int = state["vec_steps"]
    assert steps == result.counters.vec_steps == state["pace"]["vec_steps"]
    assert steps == state["replay"]["observations"]["written"]
    assert steps == state["replay"]["ring"]["written"]
    saved = state["agent"]["policy"]
    assert all(torch.equal(w, saved[k]) for k, w in result.policy.state_dict().items())
    return state


@pytest.mark.slow
def test_ctrl_c_saves_at_a_common_point_and_the_run_goes_on(
    ray: Any, tmp_path: Path, looking: Looking
) -> None:
    looking.when(45, lambda: os.kill(os.getpid(), signal.SIGINT))
    result = train(pql(log=RARELY), tmp_path / "run")
    assert not result.finished
    assert 45 <= result.counters.vec_steps < 60
    state = assert_at_a_common_point(tmp_path / "run", result)
    assert state["updates"] == 8 * (state["vec_steps"] - 32) == 2 * state["policy_updates"]
    again = resume(tmp_path / "run")
    assert again.finished
    assert again.counters.updates == 8 * (60 - 32)
    assert_no_process_is_left()
    train(pql(log=RARELY, topology=SplitLearnersConfig()), tmp_path / "here")
    apart, here = (lines(tmp_path / folder)[-1].keys() for folder in ("run", "here"))
    assert apart ^ here == {"split/restarts"}, "the same is measured in one process"


@pytest.mark.slow
def test_free_nobody_waits_for_anybody(ray: Any, tmp_path: Path, looking: Looking) -> None:
    """A simulator that stands still until many updates are made."""
    marker = tmp_path / "go on"
    env = SkewedEnvConfig(waits_at=40, marker=str(marker))
    looking.when(39, marker.touch, updates=400)
    looking.when(45, lambda: os.kill(os.getpid(), signal.SIGINT))
    result = train(pql(topology=on_ray(free=True), env=env, log=RARELY), tmp_path / "run")
    assert not result.finished
    assert marker.exists()
    assert result.counters.updates >= 400 > 8 * (result.counters.vec_steps - 32)
    assert_at_a_common_point(tmp_path / "run", result)


@pytest.mark.slow
def test_those_who_are_killed_are_replaced_and_the_ratios_recover(
    ray: Any, tmp_path: Path, looking: Looking, capfd: pytest.CaptureFixture[str]
) -> None:
    recipe = pql(total_vec_steps=160, log=RARELY, checkpoint=CheckpointConfig(every_vec_steps=50))
    looking.when(40, lambda: kill("actor"))
    looking.when(60, lambda: kill("critic"))
    looking.when(70, lambda: kill("policy"))
    assert train(recipe, tmp_path / "run").finished
    said = capfd.readouterr().err
    for count, name in enumerate(("actor", "critic learner", "policy learner"), start=1):
        assert f"the {name} is lost (its process died); restart {count} of 10" in said
    assert looking.ratios(80, 160) == pytest.approx((8, 1 / 2), rel=0.05)
    state = checkpoint.load(tmp_path / "run").state
    assert state["updates"] == state["agent"]["updates"] == 8 * (160 - 32)
    assert state["policy_updates"] == 4 * (160 - 32)
    # What came between the checkpoint and the loss is gone from the memory of the one that was lost.
    assert 160 - 15 < state["replay"]["ring"]["written"] < 160
    assert 160 - 25 < state["replay"]["observations"]["written"] < 160


@pytest.mark.slow
def test_an_actor_is_replaced_and_a_learner_without_a_checkpoint_begins_again(
    ray: Any, tmp_path: Path, looking: Looking, capfd: pytest.CaptureFixture[str]
) -> None:
    recipe = pql(
        env=SkewedEnvConfig(fails_at=41),
        total_vec_steps=200,
        checkpoint=CheckpointConfig(every_vec_steps=0),
        log=RARELY,
    )
    looking.when(70, lambda: kill("actor"))
    looking.when(80, lambda: kill("critic"))
    result = train(recipe, tmp_path / "run")
    assert result.finished
    said = capfd.readouterr().err
    assert re.search(
        r"ZeroDivisionError: the motor is too hot \(skewed\.py:\d+\)\); restart 1 of 10", said
    )
    assert "the actor is lost (its process died); restart" in said
    assert "the critic learner is lost (its process died); restart" in said
    assert looking.ratios(125, 200) == pytest.approx((8, 1 / 2), rel=0.05)
    # The replay fills for a warm-up, and that is not made up for.
    assert 8 * (200 - 2 * 32 - 8) <= result.counters.updates <= 8 * (200 - 2 * 32)


def test_what_goes_wrong_comes_out_as_itself_or_in_one_line(ray: Any, tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError, match="no way up"):
        train(skewed(pql(), fails_at=9), tmp_path / "a")
    assert_no_process_is_left()
    wide = SplitLearnersConfig(placement=OnRayConfig(actor=RoleConfig(cpus=17)))
    with pytest.raises(UserError, match="the run asks for 19 CPUs, the cluster has 16"):
        train(pql(topology=wide), tmp_path / "b")


def test_learners_that_are_well_are_saved_when_the_actor_is_given_up(
    ray: Any, tmp_path: Path
) -> None:
    folder, topology = tmp_path / "run", SplitLearnersConfig(placement=OnRayConfig(max_restarts=0))
    recipe = pql(env=SkewedEnvConfig(fails_at=41), topology=topology, log=RARELY)
    with pytest.raises(Halted) as caught:
        train(recipe, folder)
    said = str(caught.value)
    assert "ZeroDivisionError: the motor is too hot" in said
    assert "after 0 restarts: fix the cause" in said
    assert "or raise --topology.placement.max-restarts; saved after 40 vec steps" in said
    state = checkpoint.load(folder).state
    assert (state["updates"], state["policy_updates"]) == (8 * (40 - 32), 4 * (40 - 32))
    assert state["replay"]["ring"]["written"] == state["replay"]["observations"]["written"] == 40
    here = SplitLearnersConfig()
    again = resume(folder, topology=here, total_vec_steps=50)  # ten steps: it does not fail
    assert again.finished
    assert again.counters.updates == 8 * (50 - 32)


@pytest.mark.parametrize("free", [False, True])
def test_ctrl_c_ends_a_run_whose_environment_hangs_and_the_learners_are_saved(
    ray: Any, tmp_path: Path, looking: Looking, monkeypatch: pytest.MonkeyPatch, free: bool
) -> None:
    """Also where the learners go on learning meanwhile."""
    monkeypatch.setattr("fleetfoot.topologies.pql.on_ray.GRACE", 0.0)
    looking.when(40, lambda: os.kill(os.getpid(), signal.SIGINT), updates=8 * (40 - 32))
    env = SkewedEnvConfig(waits_at=41, marker=str(tmp_path / "never"))
    result = train(pql(topology=on_ray(free=free), env=env, log=RARELY), tmp_path / "run")
    assert not result.finished
    assert assert_at_a_common_point(tmp_path / "run", result)["vec_steps"] == 40
    if not free:
        assert result.counters.updates == 8 * (40 - 32)


@pytest.mark.parametrize(("stage", "raised"), [("actor", Halted), ("critic", KeyboardInterrupt)])
def test_ctrl_c_while_a_process_is_replaced_saves_unless_a_learner_is_lost(
    stage: str, raised: type[BaseException]
) -> None:
    never = SimpleNamespace(put=lambda _: None, wait=lambda *_, **__: ([], []))
    stopped: Any = Interrupt()
    stopped.asked = True
    processes = Processes(never, pql(), OnRayConfig(), stopped)
    start = SimpleNamespace(remote=lambda *_: None)
    processes.handles[stage] = SimpleNamespace(start=start)
    spec: Any = SimpleNamespace()
    processes.setup = Setup(spec)  # the actor has been there
    with pytest.raises(raised):
        processes._start(stage, None)


@pytest.mark.slow  # a Ray of its own; Ctrl-C itself, and what it leaves behind, is tested above
def test_ctrl_c_on_the_command_line_leaves_no_process_behind(tmp_path: Path) -> None:
    words = ["-m", "fleetfoot", "train", "pql/pendulum", "--no-video", "--device", "cpu"]
    words += ["--topology.placement", "OnRayConfig", "--folder", str(tmp_path / "run")]
    words += ["--log.every-vec-steps", "10", "--total-vec-steps", "100000", "--threads", "1"]
    process = subprocess.Popen([sys.executable, *words], stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 120
    while time.monotonic() < until and len(lines(tmp_path / "run")) < 4:
        time.sleep(0.1)
    family = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=180) == 130
    assert len(family) > 4
    _, alive = psutil.wait_procs(family, timeout=120)
    assert not alive, [p.cmdline() for p in alive]
    assert checkpoint.load(tmp_path / "run").step >= 40


def test_the_placement_is_chosen_on_the_command_line() -> None:
    @dataclass
    class Options: ...

    words = ["--topology.placement", "OnRayConfig", "--topology.placement.actor.gpus", "1"]
    words += ["--topology.placement.address", "10.0.0.1:6379"]
    recipe, _ = parse_recipe(recipes.get("pql/pendulum"), Options, words, "fleetfoot")
    placement = recipe.topology.placement
    assert placement == OnRayConfig(address="10.0.0.1:6379", actor=RoleConfig(gpus=1))
    gpu = torch.device("cuda")
    assert [role.gpus_of(gpu) for role in placement.roles().values()] == [1, 0.33, 0.33]
    assert RoleConfig(gpus=1).gpus_of(torch.device("cpu")) == 0
    with pytest.raises(UserError, match="cannot choose cuda:1"):
        RoleConfig().gpus_of(torch.device("cuda:1"))


def test_the_observations_of_the_policy_learner_count_where_the_replay_must_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = replace(pql(), topology=SplitLearnersConfig(placement=InProcessConfig()))
    env = recipe.env.build(8, 0, torch.device("cpu"))
    cfg = recipe.off_policy_replay()
    whole, seen = cfg.bytes(env.spec), Observations.bytes(cfg, env.spec)
    memory = Observations(cfg, env.spec, seed=0, device=torch.device("cpu"))
    held = memory.obs.tensors().values()
    assert seen == sum(t.numel() * t.element_size() for t in held) == 100 * 8 * 3 * 4
    for free, fits in ((whole + seen, True), (whole + seen - 1, False)):
        monkeypatch.setattr(replay_module, "free_bytes", lambda device, free=free: free)
        if fits:
            train(replace(recipe, total_vec_steps=2), tmp_path / "fits")
        else:
            with pytest.raises(UserError, match="the replay needs"):
                train(recipe, tmp_path / "not")
    monkeypatch.setattr(replay_module, "free_bytes", lambda device: seen - 1)
    with pytest.raises(UserError, match="the replay needs"):
        Observations.check_fit(cfg, env.spec, torch.device("cpu"))


def test_compiling_is_counted_once_and_not_as_training() -> None:
    assert covered([]) == 0
    assert covered([(3.0, 4.0), (0.0, 2.0), (1.0, 2.5), (3.2, 3.4)]) == 3.5
    now = 10.0
    clock = Clock(lambda: now)
    now = 17.0
    clock.forget(3.5)
    assert clock.seconds() == 3.5


@pytest.mark.slow
def test_the_three_tell_when_they_compiled_and_a_new_one_goes_on_exactly(
    ray: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here in one process, called as Ray would."""
    monkeypatch.setattr(Program, "is_ours", False)  # afterwards too
    packed = pack_recipe(pql(replay=ReplayConfig(capacity=800, n_step=3, storage="bf16")))
    actor, critic, policy = (process(packed, 1, False) for process in PROCESSES.values())
    nothing = (None, None, None)
    setup = Setup(actor.start(Setup(), "", None, *nothing).spec)
    policy.start(setup, "", None, *nothing)
    critic.start(setup, "", None, *nothing)
    outcome, seen, rest = actor.round(Order(1), (0, 0), None, None)
    assert outcome.compile_seconds > 0
    assert actor.round(Order(1), (0, 0), None, None)[0].compile_seconds == 0
    monkeypatch.setattr(
        EagerLearner, "ready", lambda self, count: not count or bool(self.times_made)
    )
    first = critic.round(Order(0, (True,)), (0,), None, seen, rest)
    assert first[0].changed == ("critic", "statistics")
    assert policy.round(Order(0, (True,)), (0, 0), None, None, seen)[0].changed == ("policy",)
    outcome, weights, unchanged = critic.round(Order(2), (0,), None)
    assert outcome.compile_seconds > 0
    assert (outcome.changed, unchanged) == (("critic",), None)
    given = (Order(1), (1, 1), weights, first[2])
    assert policy.round(*given)[0].compile_seconds > 0
    assert policy.round(*given)[0].compile_seconds == 0
    assert critic.round(Order(2), (0,), None)[0].compile_seconds == 0
    state = critic.ask("state_dict", True)
    other = CriticLearnerProcess(packed, 1, False)
    other.start(setup._replace(updates=4), "", state, *nothing)
    for learner in (critic, other):
        learner.round(Order(2, (False,)), (0,), None, seen, rest)
    one, two = (tensors(to_tensors(learner.ask("state_dict", True))) for learner in (critic, other))
    assert_same(one, two)


@pytest.mark.slow
def test_pql_solves_the_pendulum_though_two_learners_were_killed(
    ray: Any, tmp_path: Path, looking: Looking
) -> None:
    recipe = replace(
        recipes.get("pql/pendulum"),
        topology=on_ray(),
        log=QUIET,
        evaluation=EvaluationConfig(every_vec_steps=100, episodes=32),
        checkpoint=CheckpointConfig(every_vec_steps=100),
        total_vec_steps=900,
        device="cpu",
        threads=1,
    )
    looking.when(250, lambda: kill("critic"))
    looking.when(350, lambda: kill("policy"))
    assert train(recipe, tmp_path / "run").best_return >= -250.0


@pytest.mark.slow
def test_whoever_is_on_a_machine_that_is_lost_goes_on_elsewhere(tmp_path: Path) -> None:
    """Four Ray nodes on this machine: a head without room, and one for each of the three. Two of those end, one after
    the other, each with all that is in its object store; another takes its place."""
    script = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from dataclasses import replace
from pathlib import Path
from ray.cluster_utils import Cluster
from fleetfoot import train
from fleetfoot.topologies.pql.loop import SplitLearnersConfig
from fleetfoot.topologies.pql.loop import Coordinator
from fleetfoot.topologies.pql.on_ray import OnRayConfig
from topologies.test_split_on_ray import pql
nodes = Cluster(initialize_head=True, head_node_args={{"num_cpus": 0}})
workers = [nodes.add_node(num_cpus=1) for _ in range(3)]
true, steps = Coordinator.finished, [70, 90]

def finished(run, *arguments):
    true(run, *arguments)
    if steps and run.journal.vec_steps >= steps[0]:
        steps.pop(0)
        nodes.remove_node(workers.pop(0))
        nodes.add_node(num_cpus=1)

Coordinator.finished = finished
topology = SplitLearnersConfig(placement=OnRayConfig(address=nodes.address))
result = train(pql(topology=topology, total_vec_steps=130), Path({str(tmp_path / "run")!r}))
assert result.finished and not steps
nodes.shutdown()
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "restart 2 of 10" in done.stderr
