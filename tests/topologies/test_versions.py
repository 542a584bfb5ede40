"""Published versions of weights, and those who read them."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

from fleetfoot.topologies.pql.exchange import Versions


def test_a_version_is_what_the_maker_had_when_it_was_published() -> None:
    made = [torch.zeros(2), torch.zeros(3, dtype=torch.int64)]
    versions = Versions(made)
    got = [torch.full((2,), 9.0), torch.full((3,), 9)]
    assert versions.copy(got) == 0
    assert [tensor.tolist() for tensor in got] == [[0, 0], [0, 0, 0]]
    for tensor in made:
        tensor.fill_(1)
    versions.publish()
    for tensor in made:
        tensor.fill_(2)  # not published
    assert versions.copy(got) == 1
    assert [tensor.tolist() for tensor in got] == [[1, 1], [1, 1, 1]]
    got[0].fill_(7)  # the reader's own memory
    assert versions.copy([torch.zeros(2), torch.zeros(3, dtype=torch.int64)]) == 1
    assert made[0].tolist() == [2, 2]
    assert versions.newest[0].tolist() == [1, 1]


def test_weights_that_are_learned_and_those_that_follow_have_no_graph_in_common() -> None:
    learned, following = nn.Linear(2, 2), nn.Linear(2, 2)
    versions = Versions(list(learned.parameters()))
    versions.publish()
    versions.copy(list(following.parameters()))
    assert torch.equal(following.weight, learned.weight)
    assert following.weight.requires_grad
    following(torch.ones(1, 2)).sum().backward()
    assert learned.weight.grad is None
    assert following.weight.grad is not None


def test_a_reader_gets_the_newest_version_however_many_it_has_missed() -> None:
    made, used = [torch.zeros(1)], [torch.full((1,), -1.0)]
    versions = Versions(made)
    for number in (1, 2, 3):
        made[0].fill_(number)
        versions.publish()
        assert versions.number == number
    assert versions.copy(used) == 3
    assert float(used[0]) == 3


def test_agents_without_such_tensors_still_have_versions() -> None:
    versions = Versions([])
    versions.publish()
    assert versions.copy([]) == versions.number == 1


def test_a_reader_never_gets_parts_of_two_versions() -> None:
    made = [torch.zeros(50) for _ in range(40)]
    used = [torch.zeros(50) for _ in range(40)]
    versions = Versions(made)
    finished = threading.Event()

    def make() -> None:
        for number in range(1, 301):
            for tensor in made:
                tensor.fill_(number)
            versions.publish()
        finished.set()

    maker = threading.Thread(target=make)
    maker.start()
    number = 0
    while not finished.is_set() or number < versions.number:
        number = versions.copy(used)
        assert {float(value) for tensor in used for value in (tensor[0], tensor[-1])} == {number}
    maker.join()
    assert number == 300


class Stream:
    """A queue of a GPU, which notes what it was asked for."""

    def __init__(self) -> None:
        self.waited_for: list[str] = []
        self.recorded = 0

    def wait_event(self, event: str) -> None:
        self.waited_for.append(event)

    def record_event(self) -> str:
        self.recorded += 1
        return f"{threading.current_thread().name} {self.recorded}"


def test_on_a_gpu_streams_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy waits for the version to be written; the next version waits until every reader has its copy."""
    stream = Stream()
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    made, used = [torch.zeros(1)], [torch.zeros(1)]
    versions = Versions(made)
    versions.on_gpu = True
    versions.publish()
    assert stream.waited_for == []
    versions.copy(used)
    other = threading.Thread(target=versions.copy, args=(used,), name="other")
    other.start()
    other.join()
    assert stream.waited_for == ["MainThread 1", "MainThread 1"]
    stream.waited_for.clear()
    versions.publish()
    assert stream.waited_for == ["MainThread 2", "other 3"]
