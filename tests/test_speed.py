"""Ways to execute updates: however it is done, the same is computed."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fleetfoot import checkpoint
from fleetfoot.agents.contract import compiled_methods, every
from fleetfoot.api import resume, train
from fleetfoot.data import Batch, Continuous, Discrete, EnvSpec
from fleetfoot.execution import CapturedLearner, Compiled, EagerLearner, make_learner, updater
from fleetfoot.execution.compile import compile_steps
from fleetfoot.execution.cuda_graph import generators, why_not_captured
from fleetfoot.execution.learner import means
from fleetfoot.optim import AdamWConfig, LocalStepper
from fleetfoot.replay.evict import FifoConfig
from fleetfoot.replay.replay import Replay
from fleetfoot.replay.samplers import ProportionalConfig
from support.compiler import BUILT_SLOW, TRACED
from support.learners import NAMES, noise, parts
from support.runs import agent_state, assert_same, interrupted_at, small, tensors

CPU = torch.device("cpu")


def build(
    agent: Any, replay: Replay, mode: Any, batch_size: int = 16, **options: Any
) -> EagerLearner:
    device = replay.ring.reward.device
    given: dict[str, Any] = {"precision": "float32", "mode": mode, "device": device}
    return make_learner(agent, replay, batch_size, **(given | options))


def naming(name: str) -> Callable[[str], str]:
    return lambda text: f"{name}: {text}"


def assert_near(one: Any, two: Any, **near: Any) -> None:
    a, b = tensors(one.state_dict()), tensors(two.state_dict())
    assert a.keys() == b.keys()
    for k in a:
        if a[k].is_floating_point():
            torch.testing.assert_close(a[k], b[k], msg=naming(k), **near)


def way_apart(start: dict[str, Tensor], one: Any, two: Any) -> float:
    """How far the weights of two agents are apart, beside how far they have come. Single weights may part further:
    Adam makes whole steps of gradients that are nothing but rounding."""
    a, b = tensors(one.state_dict()), tensors(two.state_dict())
    names = [k for k in a if k.startswith(("/policy/", "/critic")) and a[k].is_floating_point()]
    assert len(names) > 4
    apart, moved = (sum(float((x[k] - a[k]).abs().sum()) for k in names) for x in (b, start))
    return apart / moved


def test_means_are_over_those_that_found_a_metric() -> None:
    one, two, three = (torch.tensor(x) for x in (1.0, 2.0, 6.0))
    found = means([{"loss": one}, {"loss": two, "policy": three}, {"loss": three}])
    assert {k: v.item() for k, v in found.items()} == {"loss": 3.0, "policy": 6.0}
    assert means([]) == {}


def test_generators_of_an_agent() -> None:
    names = {"fast_td3": 1, "fast_sac": 2, "flash_sac": 2, "ddpg": 1, "dqn": 0}
    for name, count in names.items():
        agent, replay = parts(name, rows=3)
        assert len(generators(agent)) == count
        assert generators(replay.sampler) == [replay.sampler.generator]  # type: ignore[attr-defined]


@pytest.mark.parametrize("sampler", [None, ProportionalConfig()])
def test_an_eager_learner_is_sample_update_reprioritize(sampler: Any) -> None:
    agent, replay = parts("fast_td3", sampler=sampler)
    found = build(agent, replay, "eager")(3)
    other, memory = parts("fast_td3", sampler=sampler)
    metrics = []
    for _ in range(3):
        batch = memory.sample(16)
        learned = other.update(batch)
        memory.reprioritize(batch.row_id, learned.td_error)
        memory.trim(1)
        metrics.append(learned.metrics)
    assert_same(tensors(agent.state_dict()), tensors(other.state_dict()))
    one, two = (tensors(r.state_dict()) for r in (replay, memory))
    assert_same(one, two)
    wanted = means(metrics)
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[k], wanted[k]) for k in found)


def test_no_updates_change_nothing() -> None:
    agent, replay = parts("fast_td3")
    before = copy.deepcopy(tensors(agent.state_dict()))
    learn = build(agent, replay, "eager")
    assert learn(0) == {}
    assert_same(before, tensors(agent.state_dict()))


@pytest.mark.parametrize(
    ("name", "compiler"),
    [
        ("fast_td3", TRACED),
        ("fast_sac", TRACED),
        ("flash_sac", TRACED),
        pytest.param("fast_td3", *BUILT_SLOW.values, marks=BUILT_SLOW.marks),
        pytest.param("fast_sac", *BUILT_SLOW.values, marks=BUILT_SLOW.marks),
        pytest.param("flash_sac", *BUILT_SLOW.values, marks=BUILT_SLOW.marks),
    ],
    indirect=["compiler"],
)
@pytest.mark.usefixtures("compiler")
def test_compiled_equals_eager_with_windows_ends_and_privileged_observations(name: str) -> None:
    """Losses and `replay.gather` compiled: n = 3, terminations, truncations, a critic that sees more."""
    (agent, replay), (other, memory) = parts(name), parts(name)
    compiled, eager = build(agent, replay, "compiled"), build(other, memory, "eager")
    assert (compiled.mode, eager.mode) == ("compiled", "eager")
    assert not compiled.ready(1)
    assert eager.ready(1)
    assert compiled.ready(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # nothing may fall back
        for count in (1, 2):
            found, wanted = compiled(count), eager(count)
    agent.updates = other.updates = 0
    assert compiled.ready(1)
    assert not compiled.ready(3)
    assert_near(agent, other, atol=2e-5, rtol=2e-4)
    assert found.keys() == wanted.keys()
    for k in found:
        torch.testing.assert_close(found[k], wanted[k], atol=1e-4, rtol=1e-3)
    # The ring has moved on since it was compiled: what it read then must not be fixed in the code.
    for transition in noise(spec_of(replay), 5):
        replay.append(transition)
        memory.append(transition)
    one, two = compiled.sample(), eager.sample()
    torch.testing.assert_close(tensors(one), tensors(two))
    assert isinstance(one, Batch)
    assert any(0 < d < 0.9**3 - 1e-6 or d > 0.9**3 + 1e-6 for d in one.discount.tolist())


@pytest.mark.parametrize(
    ("name", "compiler"),
    [
        ("fast_td3", TRACED),
        ("fast_sac", TRACED),
        ("flash_sac", TRACED),
        ("ddpg", TRACED),
        pytest.param("fast_td3", *BUILT_SLOW.values, marks=BUILT_SLOW.marks),
        pytest.param("flash_sac", *BUILT_SLOW.values, marks=BUILT_SLOW.marks),
    ],
    indirect=["compiler"],
)
@pytest.mark.usefixtures("compiler")
def test_compiled_optimiser_steps_equal_torchs_own(name: str) -> None:
    """They are compiled for GPUs alone, and are the same here."""
    (agent, replay), (other, memory) = parts(name), parts(name)
    compile_steps(agent)
    steppers = [value for value in vars(agent).values() if isinstance(value, LocalStepper)]
    assert steppers
    assert all(isinstance(stepper.apply, Compiled) for stepper in steppers)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # nothing may fall back
        found, wanted = build(agent, replay, "eager")(3), build(other, memory, "eager")(3)
    assert_near(agent, other, atol=2e-5, rtol=2e-4)
    for k in wanted:
        torch.testing.assert_close(found[k], wanted[k], atol=1e-4, rtol=1e-3)


def test_torch_knows_the_compilers_options() -> None:
    Compiled(torch.sin, "sin")  # an unknown one would be refused here


@pytest.mark.parametrize("bound", [-1e9, -math.inf])
def test_a_step_that_cannot_be_compiled_whole_is_made_once(
    monkeypatch: pytest.MonkeyPatch, bound: float
) -> None:
    """A projection of a user's network that leaves compiled code in the middle of a step, or breaks the compiler."""
    true = torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda f, options, **how: true(f, backend="aot_eager", **how)
    )
    (agent, replay), (other, memory) = parts("fast_td3"), parts("fast_td3")
    for one in (agent, other):
        weight = next(one.critic.parameters())
        one.step_critic.constrain_ = partial(halved_if_above, weight, bound)
    compile_steps(agent)
    _, said = told(lambda: build(agent, replay, "eager")(2))
    assert [line.split(":")[0] for line in said] == ["step_critic.apply runs uncompiled"]
    build(other, memory, "eager")(2)
    assert_near(agent, other, atol=2e-5, rtol=2e-4)
    assert agent.step_critic.steps == 2


@torch.no_grad()
def halved_if_above(weight: Tensor, bound: float) -> None:
    if float(weight.sum()) > bound:  # the host waits for a number
        weight.mul_(0.5)


def spec_of(replay: Replay) -> EnvSpec:
    private = replay.ring.obs.privileged is not None
    return EnvSpec(
        "made-up", 4, (3,), Continuous(2), CPU, (5,) if private else None, 3 if private else 0
    )


def told(work: Callable[[], Any]) -> tuple[Any, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        out = work()
    return out, [str(w.message) for w in caught if issubclass(w.category, UserWarning)]


def test_captured_falls_back_on_a_cpu_and_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **_: lambda *args: function(*args))
    agent, replay = parts("fast_td3")
    learn, said = told(lambda: build(agent, replay, "captured"))
    assert said == ["the learner runs without CUDA graphs: there are none on cpu."]
    assert type(learn) is EagerLearner
    found, said = told(lambda: [learn(2) for _ in range(4)])
    assert said == []
    assert agent.updates == 8
    other, memory = parts("fast_td3")
    build(other, memory, "eager")
    eager = build(other, memory, "eager")
    wanted = [eager(2) for _ in range(4)]
    assert all(torch.equal(found[-1][k], wanted[-1][k]) for k in wanted[-1])


def test_auto_on_a_cpu_is_eager_and_says_nothing() -> None:
    agent, replay = parts("fast_td3")
    learn, said = told(lambda: build(agent, replay, "auto"))
    assert said == []
    assert type(learn) is EagerLearner
    assert learn.mode == "eager"


def test_what_stands_against_cuda_graphs() -> None:
    cuda = torch.device("cuda")
    agent, _ = parts("fast_td3", rows=3)
    assert why_not_captured(agent, cuda, 1) is None
    assert "other processes" in str(why_not_captured(agent, cuda, 2))
    assert "none on cpu" in str(why_not_captured(agent, CPU, 1))
    del agent.periods
    assert "FastTD3 declares no periods" in str(why_not_captured(agent, cuda, 1))


class Decisions:
    """An agent whose decisions on the host are written down, one line per update, in place of being carried out."""

    def __init__(self, name: str) -> None:
        self.agent, self.replay = parts(name)
        self.batch = self.replay.sample(16)
        self.taken: list[tuple[str, ...]] = []
        for method in ("update_policy", "update_target"):
            if hasattr(self.agent, method):
                setattr(self.agent, method, self._watched(method))

    def _watched(self, method: str) -> Callable[..., Any]:
        real = getattr(self.agent, method)

        def call(*args: Any) -> Any:
            self.taken.append((method,))
            return real(*args)

        return call

    def of(self, updates: int, count: int) -> tuple[Any, ...]:
        """What the next `count` updates after so many would decide."""
        out = []
        self.agent.updates = updates
        for _ in range(count):
            self.taken = []
            metrics = self.agent.update(self.batch).metrics
            out.append((tuple(self.taken), tuple(metrics)))
        return tuple(out)


@pytest.mark.parametrize("name", NAMES)
def test_equal_patterns_mean_equal_decisions(name: str) -> None:
    watched = Decisions(name)
    agent, learn = watched.agent, build(watched.agent, watched.replay, "eager")
    seen: dict[Any, set[Any]] = {}
    for count in (1, 2, 3):
        for updates in range(6):  # policies every 2, targets every 3: all that can happen
            agent.updates = updates
            pattern = learn.pattern(count)
            assert agent.updates == updates, "asking changes nothing"
            seen.setdefault(pattern, set()).add(watched.of(updates, count))
    assert all(len(decisions) == 1 for decisions in seen.values())
    # And patterns are no finer than they need be: each of them costs memory.
    different = {decision for decisions in seen.values() for decision in decisions}
    assert len(different) == len(seen) > 3


def test_a_pattern_says_which_updates_are_multiples() -> None:
    assert every(2, 0, 3) == (False, True, False)
    assert every(2, 1, 3) == (True, False, True)
    assert every(1, 5, 2) == (True, True)
    assert every(3, 2, 1) == (True,)
    assert every(4, 0, 0) == ()


def test_bf16_is_autocast_around_an_update_and_nowhere_else() -> None:
    seen = []

    def update(batch: Any) -> Any:
        seen.append((torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")))
        assert not torch.is_autocast_cache_enabled()
        return batch

    wrapped = updater(SimpleNamespace(update=update), precision="bf16", mode="eager", device=CPU)
    assert wrapped(1) == 1  # type: ignore[comparison-overlap]
    assert seen == [(True, torch.bfloat16)]
    assert not torch.is_autocast_enabled("cpu")
    same = updater(SimpleNamespace(update=update), precision="float32", mode="eager", device=CPU)
    assert same is update


def test_the_precision_of_a_run_before_does_not_stay() -> None:
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high")
        updater(SimpleNamespace(update=None), precision="tf32", mode="eager", device=CPU)
        assert torch.get_float32_matmul_precision() == "highest", "a CPU knows no tf32"
    finally:
        torch.set_float32_matmul_precision(before)


def test_a_function_stays_compiled_for_many_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch gives up after 8, in silence; DAA's loss has more."""
    true = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, options, **how: true(f, backend="eager", **how))

    def loss(x: Tensor) -> Tensor:
        return torch.full_like(x, float(torch.compiler.is_compiling()))

    compiled = Compiled(loss, "loss")
    assert [compiled(torch.zeros(n)).mean().item() for n in range(2, 14)] == [1.0] * 12


def test_errors_of_ours_are_not_taken_for_the_compilers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **_: lambda *args: function(*args))

    def loss(x: int) -> int:
        raise RuntimeError("sizes do not match")

    compiled = Compiled(loss, "loss")
    compiled.eager = lambda x: pytest.fail("must not be tried again")
    with pytest.raises(RuntimeError, match="sizes"):
        compiled(1)


def test_a_rate_schedule_lives_on_the_device_and_follows_its_own_counter() -> None:
    """A step that is repeated without the host must find its place in the schedule."""
    weight = torch.nn.Parameter(torch.zeros(2))
    step = AdamWConfig(lr=1e-2, lr_end=1e-3).build(nn.ParameterList([weight]), 10)
    for k in range(4):
        step(weight.sum())
        assert step.steps.item() == k + 1
    step.steps.fill_(9)  # as if five steps had been replayed
    step(weight.sum())
    assert step.optimizer.param_groups[0]["lr"] is step.lr
    assert step.lr.item() == pytest.approx(1e-3)


def test_the_rings_counters_on_the_device_follow_those_of_the_host() -> None:
    _, replay = parts("fast_td3", rows=0)
    ring = replay.ring
    for transition in noise(spec_of(replay), 37):  # it holds 30
        replay.append(transition)
        assert (ring.num_stored.item(), ring.num_dropped.item()) == (
            ring.size,
            ring.written - ring.size,
        )
    assert ring.num_dropped.item() == 7
    filled, gone = ring.num_stored, ring.num_dropped
    ring.trim(ring.size - 4)
    assert (ring.num_stored.item(), ring.num_dropped.item()) == (26, 11)
    _, other = parts("fast_td3", rows=0)
    own = other.ring.num_stored, other.ring.num_dropped
    other.load_state_dict(copy.deepcopy(replay.state_dict()))
    assert (other.ring.num_stored.item(), other.ring.num_dropped.item()) == (26, 11)
    # The very tensors that recorded reads know.
    assert (ring.num_stored, ring.num_dropped) == (filled, gone)
    assert own[0] is other.ring.num_stored
    assert own[1] is other.ring.num_dropped


def assert_nothing_fell_back(agent: Any) -> None:
    """Every loss and every optimiser step that was compiled ran compiled."""
    owners = [agent, *(value for value in vars(agent).values() if isinstance(value, LocalStepper))]
    compiled = [v for owner in owners for v in vars(owner).values() if isinstance(v, Compiled)]
    assert len(compiled) >= len(compiled_methods(agent) or ())
    assert [each.name for each in compiled if each.function is each.eager] == []


CUDA = torch.device("cuda")
COUNTS = (1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 2, 2, 2, 2)  # 1.5 updates per vec step, then 2


@pytest.mark.gpu
@pytest.mark.parametrize(
    "sampler", [None, ProportionalConfig(eviction=FifoConfig(every_updates=3))]
)
@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("name", [*NAMES, "flash_sac wide"])
def test_captured_equals_eager_on_a_gpu(name: str, precision: Any, sampler: Any) -> None:
    """The ring moves on between updates, of which there are several patterns, and old rows go. In bf16, FlashSAC's
    wide networks are captured as one operation, and run as modules in eager mode."""
    found = []
    for mode in ("eager", "captured"):
        agent, replay = parts(name, CUDA, sampler=sampler)
        start = {k: v.clone() for k, v in tensors(agent.state_dict()).items()}
        learn = build(agent, replay, mode, 64 if "wide" in name else 16, precision=precision)
        fresh = iter(
            noise(EnvSpec("made-up", 4, (3,), agent_action(agent), CUDA, *critic(agent)), 16)
        )
        for count in COUNTS:
            metrics = learn(count)
            replay.append(next(fresh))
        torch.cuda.synchronize()
        if mode == "captured":
            assert isinstance(learn, CapturedLearner)
            assert not learn.gave_up
            assert_nothing_fell_back(agent)
            assert learn.recorded
        found.append((agent, replay, {k: v.clone() for k, v in metrics.items()}))
    (eager, memory, wanted), (captured, replay, metrics) = found
    assert eager.updates == captured.updates == sum(COUNTS)
    for one, two in ((eager, captured), (memory.sampler, replay.sampler)):
        for a, b in zip(generators(one), generators(two), strict=True):
            assert torch.equal(a.get_state(), b.get_state())
    assert metrics.keys() == wanted.keys()
    assert way_apart(start, eager, captured) < (1e-3 if precision == "float32" else 0.3)


def agent_action(agent: Any) -> Any:
    return Continuous(agent.action_size) if hasattr(agent, "action_size") else Discrete(4)


def critic(agent: Any) -> tuple[Any, int]:
    return ((5,), 3) if hasattr(agent, "action_size") else (None, 0)


@pytest.mark.gpu
def test_every_pattern_is_recorded_after_two_eager_runs() -> None:
    agent, replay = parts("fast_td3", CUDA)
    learn = build(agent, replay, "captured")
    assert isinstance(learn, CapturedLearner)
    for _ in range(2):
        learn(2)
    assert not learn.recorded
    assert not learn.ready(2)
    learn(2)
    assert learn.ready(2)
    assert not learn.ready(1)
    assert list(learn.recorded) == [(2, (False, True))]
    for _ in range(3):
        learn(1), learn(1)
    assert set(learn.recorded) == {(2, (False, True)), (1, (False,)), (1, (True,))}
    assert agent.updates == 12


@pytest.mark.gpu
def test_a_learner_that_cannot_be_recorded_goes_on_eagerly_after_one_warning() -> None:
    agent, replay = parts("fast_td3", CUDA)
    learn = build(agent, replay, "captured")
    inner = agent.update

    def update(batch: Any) -> Any:
        learned = inner(batch)
        float(learned.metrics["critic/loss"])  # waits for the device, which a graph cannot
        return learned

    learn.update = update
    _, said = told(lambda: [learn(1) for _ in range(8)])
    assert len([text for text in said if "without CUDA graphs" in text]) == 1
    assert learn.ready(1)
    assert learn.mode == "compiled"
    assert agent.updates == 8


@pytest.mark.gpu
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("name", ["fast_td3/pendulum", "fast_sac/pendulum"])
def test_captured_training_that_is_interrupted_and_resumed_goes_on_the_same(
    name: str, overlap: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resumed run begins with eager updates again, so it is the same to rounding."""
    from fleetfoot.topologies import overlap as overlap_module
    from fleetfoot.topologies import synchronous as synchronous_module
    from fleetfoot.topologies.synchronous import SynchronousConfig

    recipe = small(
        name,
        device="cuda",
        execution="captured",
        total_vec_steps=60,
        topology=SynchronousConfig(overlap=overlap),
    )
    train(recipe, tmp_path / "whole")
    with monkeypatch.context() as patch:
        for module in (synchronous_module, overlap_module):
            patch.setattr(module, "rollout", interrupted_at(43))
        assert not train(recipe, tmp_path / "parts").finished
    assert checkpoint.load(tmp_path / "parts").step == 43
    assert resume(tmp_path / "parts").finished
    a, b = (agent_state(tmp_path / k) for k in ("whole", "parts"))
    assert a.keys() == b.keys()
    for k in a:
        if a[k].is_floating_point():
            assert (a[k] - b[k]).abs().sum() <= 1e-3 * a[k].abs().sum(), k
        else:
            assert torch.equal(a[k], b[k]), k  # generators among them


@pytest.mark.gpu
def test_captured_training_is_the_same_twice(tmp_path: Path) -> None:
    recipe = small(device="cuda", execution="captured", total_vec_steps=60)
    for folder in "ab":
        train(recipe, tmp_path / folder)
    assert_same(agent_state(tmp_path / "a"), agent_state(tmp_path / "b"))
