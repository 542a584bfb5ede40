from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import torch

from fleetfoot.data import Batch
from fleetfoot.replay.prefetch import PrefetchedReplay, prefetching
from fleetfoot.replay.replay import Replay
from fleetfoot.replay.samplers import Proportional, ProportionalConfig
from replay.test_priorities import HARD, fill, make_replay


def made(steps: int = 6, rows: int = 8) -> Replay:
    replay = make_replay(ProportionalConfig(eviction=HARD), rows=rows)
    fill(replay, steps, torch.tensor([0.1, 1.0, 10.0]))
    return replay


def same(one: Batch, other: Batch) -> bool:
    pairs = [(one.obs.actor, other.obs.actor), (one.next_obs.actor, other.next_obs.actor)]
    names = ("action", "reward", "discount", "weight", "row_id")
    pairs += [(getattr(one, name), getattr(other, name)) for name in names]
    return all(torch.equal(a, b) for a, b in pairs)


def wait_until_full(ahead: PrefetchedReplay) -> None:
    with ahead.changed:
        assert ahead.changed.wait_for(lambda: len(ahead.ready) == ahead.depth, timeout=30)


@pytest.mark.parametrize("depth", [1, 4])
def test_batches_and_their_order_are_those_of_the_replay(depth: int) -> None:
    plain = made()
    with prefetching(made(), rows=5, depth=depth) as ahead:
        drawn = [ahead.sample(5) for _ in range(12)]
    assert all(same(batch, plain.sample(5)) for batch in drawn)


def test_no_more_batches_wait_than_asked_for_and_none_before_the_first_is_wanted() -> None:
    with prefetching(made(), rows=5, depth=3) as ahead:
        assert isinstance(ahead, PrefetchedReplay)
        assert ahead.thread is None
        ahead.sample(5)
        wait_until_full(ahead)
        time.sleep(0.05)
        assert len(ahead.ready) == 3
        thread = ahead.thread
    assert thread is not None
    assert not thread.is_alive()


def test_a_depth_of_0_is_the_replay_itself() -> None:
    replay = made()
    with prefetching(replay, rows=5, depth=0) as same_one:
        assert same_one is replay


def test_the_threads_error_reaches_the_learner_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    replay, wrong = made(), RuntimeError("no such row")

    def fail(self: Any, rows: int, ring: Any) -> Any:
        raise wrong

    monkeypatch.setattr(Proportional, "draw", fail)
    with prefetching(replay, rows=5, depth=2) as ahead:
        for _ in range(2):  # whoever asks again is told again, and does not wait for ever
            with pytest.raises(RuntimeError, match="no such row") as caught:
                ahead.sample(5)
            assert caught.value is wrong


def test_a_learner_that_fails_ends_the_thread() -> None:
    seen: list[threading.Thread | None] = []

    def fail() -> None:
        with prefetching(made(), rows=5, depth=2) as ahead:
            ahead.sample(5)
            assert isinstance(ahead, PrefetchedReplay)
            seen.append(ahead.thread)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    (thread,) = seen
    assert thread is not None
    assert not thread.is_alive()


def test_errors_of_rows_that_are_gone_by_now_are_ignored() -> None:
    """All rows of a batch drawn ahead are overwritten before the learner gets to it."""
    with prefetching(made(steps=8), rows=6, depth=2) as ahead:
        assert isinstance(ahead, PrefetchedReplay)
        ahead.sample(6)
        wait_until_full(ahead)
        fill(ahead, 8, torch.tensor([0.1, 1.0, 10.0]))
        sampler = ahead.sampler
        assert isinstance(sampler, Proportional)
        before = [level.clone() for level in sampler.tree.levels]
        batch = ahead.sample(6)
        assert int(batch.row_id.max()) < 8 * 3
        ahead.reprioritize(batch.row_id, torch.full((6,), 1e6))
        assert all(torch.equal(a, b) for a, b in zip(before, sampler.tree.levels, strict=True))
        assert float(sampler.largest) < 1e6


def test_appends_updates_and_saves_never_meet_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part that touches the replay checks that nobody else does."""
    busy, met = threading.Lock(), []

    def alone(name: str) -> None:
        plain = getattr(Replay, name)

        def checked(self: Replay, *args: Any) -> Any:
            if not busy.acquire(blocking=False):
                met.append(name)
                return plain(self, *args)
            try:
                time.sleep(0.001)
                return plain(self, *args)
            finally:
                busy.release()

        monkeypatch.setattr(Replay, name, checked)

    replay = made()
    for name in ("append", "cut", "gather", "reprioritize", "trim", "state_dict"):
        alone(name)
    with prefetching(replay, rows=5, depth=3) as ahead:
        for _ in range(30):
            batch = ahead.sample(5)
            fill(ahead, 1)
            ahead.reprioritize(batch.row_id, batch.reward.abs())
            ahead.trim(1)
            ahead.cut()
            ahead.state_dict()
    assert met == []
