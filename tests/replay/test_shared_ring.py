"""The shared ring against one plain ring per writer, which has its own tests."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fleetfoot.data import Batch
from fleetfoot.replay.evict import FifoConfig, InverseConfig
from fleetfoot.replay.replay import Replay, ReplayConfig
from fleetfoot.replay.ring import Ring
from fleetfoot.replay.samplers import Drawn, ProportionalConfig, UniformConfig
from fleetfoot.replay.shared_ring import SharedRing
from support.streams import Film, Stream, frame_spec, make_spec

CPU = torch.device("cpu")


class These:
    """A sampler that draws given rows."""

    def __init__(self, age: Tensor, column: Tensor):
        self.drawn = Drawn(age, column, torch.ones(len(age)))

    def draw(self, rows: int, ring: Ring) -> Drawn:
        return self.drawn


def rows_of(replay: Replay, size: int, columns: range) -> Batch:
    age, column = torch.meshgrid(
        torch.arange(size), torch.tensor(list(columns), dtype=torch.int64), indexing="ij"
    )
    kept = replay.sampler
    replay.sampler = These(age.flatten(), column.flatten())  # type: ignore[assignment]
    batch = replay.sample(0)
    replay.sampler = kept
    return batch


def assert_equal(ours: Batch, theirs: Batch) -> None:
    assert torch.equal(ours.obs.actor, theirs.obs.actor)
    assert torch.equal(ours.next_obs.actor, theirs.next_obs.actor)
    for name in ("action", "reward", "discount", "weight"):
        assert torch.equal(getattr(ours, name), getattr(theirs, name)), name


def compare(shared: Replay, plain: list[Replay], width: int) -> None:
    for writer, one in enumerate(plain):
        size = one.ring.size
        columns = range(writer * width, (writer + 1) * width)
        assert_equal(rows_of(shared, size, columns), rows_of(one, size, range(width)))
    assert shared.ring.stored == sum(one.ring.stored for one in plain)


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(4, 9),
    n=st.integers(1, 4),
    order=st.lists(st.integers(0, 2), min_size=1, max_size=60),
    cuts=st.sets(st.integers(0, 59), max_size=3),
    width=st.integers(1, 3),
    seed=st.integers(0, 1000),
    frames=st.booleans(),
)
def test_it_equals_one_ring_per_writer(
    rows: int, n: int, order: list[int], cuts: set[int], width: int, seed: int, frames: bool
) -> None:
    make: Any = frame_spec if frames else make_spec
    stream: Any = Film if frames else Stream
    cfg = ReplayConfig(capacity=rows * 3 * width, n_step=n, final_share=1.0)
    shared = cfg.build(make(3 * width), gamma=0.9, seed=0, device=CPU, writers=3)
    small = ReplayConfig(capacity=rows * width, n_step=n, final_share=1.0)
    spec = make(width)
    plain = [small.build(spec, gamma=0.9, seed=0, device=CPU) for _ in range(3)]
    streams = [stream(spec, seed + writer, 0.2) for writer in range(3)]
    for at, writer in enumerate(order):
        step = streams[writer].step()
        shared.append(step, writer=writer)
        plain[writer].append(step)
        if at in cuts:
            shared.mark_break(writer)
            plain[writer].mark_break()
            streams[writer] = stream(spec, seed + 100 + at, 0.2)
    compare(shared, plain, width)

    again = cfg.build(make(3 * width), gamma=0.9, seed=0, device=CPU, writers=3)
    again.load_state_dict(shared.state_dict())
    compare(again, plain, width)


def filled(
    cfg: ReplayConfig, lengths: list[int], width: int = 2
) -> tuple[Replay, dict[int, float]]:
    """A replay whose writers have written so many lines each, and the error of each row by its name."""
    writers = len(lengths)
    replay = cfg.build(make_spec(writers * width), gamma=0.9, seed=0, device=CPU, writers=writers)
    random, errors = torch.Generator().manual_seed(1), {}
    for writer, length in enumerate(lengths):
        stream = Stream(make_spec(width), writer, 0.1)
        for line in range(length):
            td_error = torch.rand(width, generator=random) + 0.1
            replay.append(stream.step(), td_error, writer)
            for i in range(width):
                column = writer * width + i
                errors[line * writers * width + column] = float(td_error[i])
    return replay, errors


@pytest.mark.parametrize("prioritised", [False, True])
def test_rows_are_drawn_as_often_as_they_should(prioritised: bool) -> None:
    """Also where one writer has written much more than another."""
    sampler = ProportionalConfig(alpha=0.6, beta=0.0)
    cfg = ReplayConfig(capacity=400, sampler=sampler if prioritised else UniformConfig())
    replay, errors = filled(cfg, [30, 3, 11])
    assert replay.size == (30 + 3 + 11) * 2
    draws = 200_000
    row_id = replay.sample(draws).row_id
    weight = {k: (e + 1e-6) ** 0.6 if prioritised else 1.0 for k, e in errors.items()}
    found = torch.bincount(row_id, minlength=max(weight) + 1)
    assert set(found.nonzero().flatten().tolist()) == set(weight)
    for key, value in weight.items():
        share = value / sum(weight.values())
        tolerance = 6 * (share / draws) ** 0.5
        assert float(found[key]) / draws == pytest.approx(share, abs=tolerance)


def test_each_writer_is_trimmed_to_its_newest_rows() -> None:
    fifo = FifoConfig(every_updates=2, slack=1.0)
    cfg = ReplayConfig(capacity=3 * 2 * 10, sampler=ProportionalConfig(eviction=fifo))
    replay, _ = filled(cfg, [17, 4, 12])
    for _ in range(2):
        batch = replay.sample(8)
        replay.reprioritize(batch.row_id, torch.ones(8))
        replay.trim(1)
    assert replay.size == (10 + 4 + 10) * 2
    seen = replay.sample(20_000).row_id
    lines, columns = seen // 6, seen % 6
    for writer, oldest in enumerate([7, 0, 2]):
        assert int(lines[columns // 2 == writer].min()) == oldest
    # Late news about rows that are gone changes nothing.
    tree = replay.sampler.tree  # type: ignore[attr-defined]
    before = float(tree.total())
    replay.reprioritize(torch.tensor([0, 6 * 3 + 1]), torch.tensor([1e6, 1e6]))
    assert float(tree.total()) == before


def test_inverse_eviction_keeps_the_capacity() -> None:
    sampler = ProportionalConfig(eviction=InverseConfig())
    replay, _ = filled(ReplayConfig(capacity=60, sampler=sampler), [20, 2, 16])
    assert int(replay.sampler.eviction.count) == 60  # type: ignore[attr-defined]
    assert replay.size == 60


def test_a_state_of_other_writers_is_refused() -> None:
    cfg = ReplayConfig(capacity=60)
    replay, _ = filled(cfg, [2, 2, 2])
    other = cfg.build(make_spec(6), gamma=0.9, seed=0, device=CPU, writers=2)
    assert isinstance(other.ring, SharedRing)
    with pytest.raises(ValueError, match="3 writers"):
        other.load_state_dict(replay.state_dict())


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    counts=st.lists(st.integers(1, 20), min_size=1, max_size=12),
    known=st.booleans(),
)
def test_lines_appended_together_are_those_appended_one_by_one(
    seed: int, counts: list[int], known: bool
) -> None:
    width, writers = 3, 2
    spec, random = frame_spec(width * writers), torch.Generator().manual_seed(seed)
    cfg = ReplayConfig(capacity=8 * spec.num_envs, n_step=3, sampler=ProportionalConfig())
    one, many = (cfg.build(spec, gamma=0.9, seed=0, device=CPU, writers=writers) for _ in range(2))
    films = [Film(frame_spec(width), seed + k, end_share=0.2) for k in range(writers)]
    for i, count in enumerate(counts):
        writer = (seed + i) % writers
        steps = [films[writer].step() for _ in range(count)]
        error = torch.rand(count, width, generator=random) if known else None
        for k, step in enumerate(steps):
            one.append(step, None if error is None else error[k], writer)
        many.append_lines(steps, error, writer)
        for name, tensor in one.ring.tensors().items():
            ours = many.ring.tensors()[name]
            if name.startswith("final"):  # the last entry is a place for what nobody reads
                tensor, ours = (
                    tensor[:-1] if tensor.dim() else tensor,
                    ours[:-1] if ours.dim() else ours,
                )
            assert torch.equal(ours, tensor), name
        assert one.ring.heads == many.ring.heads  # type: ignore[attr-defined]
        leaves = torch.arange(one.ring.lines * one.ring.columns)
        # Powers of many numbers at once may differ in the last bit.
        trees = [each.sampler.tree.get(leaves) for each in (one, many)]  # type: ignore[attr-defined]
        torch.testing.assert_close(trees[1], trees[0], rtol=1e-12, atol=0)
