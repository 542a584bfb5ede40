from __future__ import annotations

import gc
import weakref

import pytest
import torch

from fleetfoot.topologies.exchange import Channel


class Event:
    def __init__(self) -> None:
        self.passed = False

    def query(self) -> bool:
        return self.passed


class Stream:
    """A GPU's queue that passes its events when told to."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def record_event(self) -> Event:
        self.events.append(Event())
        return self.events[-1]


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> Stream:
    stream = Stream()
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    return stream


def test_what_was_taken_lives_until_the_device_is_done_with_it(stream: Stream) -> None:
    """A simulator's memory goes back to it with the last reference, and it does not wait for the reader's stream."""
    channel: Channel[torch.Tensor] = Channel()
    alive = []
    for _ in range(3):
        item = torch.zeros(1)
        alive.append(weakref.ref(item))
        channel._keep([item])
        del item
    gc.collect()
    assert all(there() is not None for there in alive)
    stream.events[0].passed = True  # the first item's
    channel._keep([torch.zeros(1)])
    gc.collect()
    assert [there() is None for there in alive] == [True, False, False]


def test_on_a_cpu_nothing_is_kept() -> None:
    channel: Channel[torch.Tensor] = Channel()
    channel.put(torch.zeros(1))
    (item,) = channel.take(1)
    there = weakref.ref(item)
    del item
    gc.collect()
    assert there() is None
    assert channel.take(None) == []
