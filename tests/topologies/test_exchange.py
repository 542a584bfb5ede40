from __future__ import annotations

import gc
import threading
import weakref
from types import SimpleNamespace

import pytest
import torch

from fleetfoot.data import Obs, Transition
from fleetfoot.topologies.pql.exchange import Inbox, copied, copy_flat_, flat, parcel
from fleetfoot.topologies.pql.threads import SETTLED, Threads


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


def test_what_was_opened_lives_until_the_device_is_done_with_it(stream: Stream) -> None:
    """A simulator's memory goes back to it with the last reference, and it does not wait for the reader's stream."""
    inbox: Inbox[torch.Tensor] = Inbox()
    alive = []
    for _ in range(3):
        item = torch.zeros(1)
        alive.append(weakref.ref(item))
        inbox._hold([item])
        del item
    gc.collect()
    assert all(there() is not None for there in alive)
    stream.events[0].passed = True  # the first item's
    inbox._hold([torch.zeros(1)])
    gc.collect()
    assert [there() is None for there in alive] == [True, False, False]


def test_on_a_cpu_nothing_is_held() -> None:
    inbox: Inbox[torch.Tensor] = Inbox()
    (item,) = inbox.open([parcel(torch.zeros(1))])
    there = weakref.ref(item)
    del item
    gc.collect()
    assert there() is None
    assert inbox.open([]) == []


def test_stages_take_turns_until_both_learners_have_compiled() -> None:
    """torch compiles for one thread with the modules of all of them patched."""
    run = SimpleNamespace(eager=False, rounds_with_updates={"critic": 0, "policy": 0})
    run.device = torch.device("cpu")
    inside: list[int] = []

    def most_at_once(patience: float) -> int:
        together = threading.Barrier(2, timeout=patience)

        def work() -> None:
            with Threads._one_at_a_time(run):  # type: ignore[arg-type]
                try:
                    together.wait()  # the other is inside too
                    inside.append(2)
                except threading.BrokenBarrierError:
                    inside.append(1)

        threads = [threading.Thread(target=work) for _ in range(2)]
        inside.clear()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return max(inside)

    # Who waits for nobody is told so soon; two that may meet have all the time they need.
    assert most_at_once(0.2) == 1
    run.rounds_with_updates["critic"] = SETTLED
    assert most_at_once(0.2) == 1
    run.rounds_with_updates["policy"] = SETTLED
    assert most_at_once(120.0) == 2
    run.rounds_with_updates["policy"], run.eager = 0, True
    assert most_at_once(120.0) == 2


def test_a_copy_has_its_own_memory_and_shares_what_was_shared() -> None:
    seen, apart = torch.zeros(2, 3), torch.ones(2, 3)
    flag = torch.zeros(2, dtype=torch.bool)
    step = Transition(
        Obs(seen, seen),
        torch.zeros(2, 1),
        torch.zeros(2),
        flag,
        flag,
        Obs(apart, seen),
        {"x": flag},
    )
    own = copied(step)
    assert own.obs.actor is own.obs.critic is own.next_obs.critic
    assert own.terminated is own.info["x"]
    assert own.obs.task is None
    seen.fill_(5)
    assert float(own.obs.actor.sum()) == 0
    assert torch.equal(own.next_obs.actor, apart)
    assert own.next_obs.actor is not apart


def test_weights_travel_flat() -> None:
    mixed = [
        torch.randn(2, 3),
        torch.tensor(5, dtype=torch.float64),
        torch.randn(4),
        torch.ones(()),
    ]
    arrays = flat(mixed)
    assert [len(array) for array in arrays] == [11, 1]
    copies = [torch.zeros_like(tensor) for tensor in mixed]
    copy_flat_(copies, arrays)
    assert all(torch.equal(one, two) for one, two in zip(mixed, copies, strict=True))
