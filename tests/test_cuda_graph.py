"""How updates are recorded and replayed, on graphs that only pretend; what they compute is compared on a GPU."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from fleetfoot.execution import cuda_graph
from fleetfoot.execution.cuda_graph import MOST_PATTERNS, CapturedLearner, generators
from fleetfoot.log.timer import StepTimer
from fleetfoot.replay.samplers import ProportionalConfig
from support.learners import CPU, parts


class Graph:
    """A real graph does nothing while it is recorded. This one does it then, so its first replay does nothing."""

    made: list[Graph]

    def __init__(self) -> None:
        self.generators: list[torch.Generator] = []
        self.replays = 0
        Graph.made.append(self)

    def register_generator_state(self, generator: torch.Generator) -> None:
        self.generators.append(generator)

    def replay(self) -> None:
        self.replays += 1


class Stream:
    def __init__(self, device: Any = None, priority: int = 0) -> None: ...
    def wait_stream(self, other: Any) -> None: ...
    def query(self) -> bool:
        return True


@contextmanager
def record(graph: Graph, **options: Any) -> Iterator[None]:
    yield


@pytest.fixture(autouse=True)
def _pretended(monkeypatch: pytest.MonkeyPatch) -> None:
    Graph.made = []
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: record(stream))
    monkeypatch.setattr(torch.cuda, "graph", record)
    # A generator of a CPU has no states that graphs share.
    monkeypatch.setattr(cuda_graph, "_renew", torch.Generator.set_state)


def captured(name: str, **options: Any) -> CapturedLearner:
    agent, replay = parts(name, sampler=options.pop("sampler", None))
    given: dict[str, Any] = {
        "update": agent.update,
        "gather": replay.gather,
        "timer": StepTimer(CPU),
    }
    return CapturedLearner(agent, replay, 16, **(given | options))


def test_a_pattern_runs_twice_is_recorded_once_and_then_replayed() -> None:
    learn = captured("fast_td3")  # a policy update every second time
    for _ in range(2):
        learn(2)
    assert not learn.recorded
    assert not learn.ready(2)
    learn(2)
    assert list(learn.recorded) == [(2, (False, True))]
    assert learn.ready(2)
    assert not learn.ready(1)
    assert learn.mode == "captured"
    sample, update = Graph.made
    assert sample.generators == generators(learn.memory.sampler)
    assert update.generators == generators(learn.agent) == [learn.agent.critic_noise.generator]  # type: ignore[attr-defined]
    assert (sample.replays, update.replays) == (1, 1)
    metrics = learn(2)
    assert (sample.replays, update.replays) == (2, 2)
    assert {"critic/loss", "policy/loss"} <= metrics.keys()
    assert learn.agent.updates == 8, "replayed updates count too"
    for _ in range(3):
        learn(1), learn(1)
    assert set(learn.recorded) == {(2, (False, True)), (1, (False,)), (1, (True,))}


def test_with_priorities_everything_is_one_graph() -> None:
    learn = captured("fast_td3", sampler=ProportionalConfig())
    for _ in range(3):
        learn(2)
    (graph,) = Graph.made
    assert graph.generators == generators(learn.memory.sampler) + generators(learn.agent)


def test_policy_updates_alone_have_one_pattern_and_do_not_count() -> None:
    agent, replay = parts("fast_td3")
    obs = replay.sample(16).obs
    learn = CapturedLearner(
        agent,
        replay,
        16,
        lambda _: agent.update_policy(obs),
        replay.gather,
        StepTimer(CPU),
        "update_policy",
    )
    for _ in range(5):
        learn(1)
    assert list(learn.recorded) == [(1, ())]
    assert agent.updates == 0


def test_what_cannot_be_recorded_goes_on_as_before_after_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(graph: Graph, **options: Any) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing\nand more")

    learn, eager = captured("fast_td3"), captured("fast_td3")
    for _ in range(2):
        learn(2), eager(2)
    monkeypatch.setattr(torch.cuda, "graph", fail)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            learn(2)
    eager.gave_up = True
    for _ in range(3):
        eager(2)
    lines = [str(w.message) for w in caught]
    wanted = (
        "the learner runs without CUDA graphs: operation not permitted when stream is capturing."
    )
    assert lines == [wanted]
    assert learn.gave_up
    assert learn.ready(2)
    assert learn.agent.updates == eager.agent.updates == 10
    for one, two in zip(
        learn.agent.policy.parameters(), eager.agent.policy.parameters(), strict=True
    ):
        assert torch.equal(one, two), "random numbers go on where they were"


def test_there_is_room_for_so_many_patterns() -> None:
    learn = captured("fast_td3")
    for count in range(1, MOST_PATTERNS + 3):
        learn.agent.updates = 0
        for _ in range(3):
            learn.agent.updates = 0
            learn(count)
    assert len(learn.recorded) == MOST_PATTERNS
    assert learn.ready(MOST_PATTERNS + 5), "the rest runs as it is"
