"""The held-out share: who is in it, for how long, and what is drawn."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any, Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetfoot.data import Transition
from fleetfoot.errors import UserError
from fleetfoot.replay.held_out import HeldOutUniform, HeldOutUniformConfig
from fleetfoot.replay.replay import Replay, ReplayConfig
from support.streams import CPU, Stream, make_spec

By = Literal["episode", "transition"]


def make(
    rows: int, envs: int, *, by: By = "episode", share: float = 0.3, n_step: int = 1, seed: int = 0
) -> Replay:
    sampler = HeldOutUniformConfig(share=share, by=by, rows=64)
    cfg = ReplayConfig(capacity=rows * envs, n_step=n_step, final_share=1.0, sampler=sampler)
    return cfg.build(make_spec(envs), gamma=0.9, seed=seed, device=CPU)


class Diary:
    """Slow and obvious: who is held out, row by row, as the sampler said when the row came."""

    def __init__(self, replay: Replay):
        self.replay = replay
        self.held: list[list[bool]] = []  # by row and column
        self.rewards: list[list[float]] = []
        self.ended: list[list[bool]] = []

    def append(self, step: Transition) -> None:
        self.replay.append(step)
        ring, sampler = self.replay.ring, self.replay.sampler
        assert isinstance(sampler, HeldOutUniform)
        self.held.append(sampler.held[ring.line(ring.size - 1)].tolist())
        self.rewards.append(step.reward.tolist())
        self.ended.append((step.terminated | step.truncated).tolist())

    def ids(self, *, held: bool) -> set[int]:
        ring = self.replay.ring
        first = ring.written - ring.size
        return {
            row * ring.columns + column
            for row in range(first, ring.written)
            for column in range(ring.columns)
            if self.held[row][column] == held
        }


@settings(max_examples=30, deadline=None)
@given(
    rows=st.integers(1, 9),
    envs=st.integers(1, 4),
    steps=st.integers(1, 30),
    by=st.sampled_from(["episode", "transition"]),
    share=st.sampled_from([0.1, 0.5, 0.9]),
    end_share=st.sampled_from([0.0, 0.2, 0.6]),
    seed=st.integers(0, 1000),
)
def test_the_two_sets_never_mix(
    rows: int, envs: int, steps: int, by: By, share: float, end_share: float, seed: int
) -> None:
    replay = make(rows, envs, by=by, share=share, seed=seed)
    diary, stream = Diary(replay), Stream(make_spec(envs), seed, end_share)
    for _ in range(steps):
        diary.append(stream.step())
        batch = replay.sample(64)
        assert batch.held_out is not None
        for rows_of, held in ((batch, False), (batch.held_out, True)):
            there = diary.ids(held=held)
            seen = set(rows_of.row_id.tolist())
            if there:
                assert seen <= there
                assert rows_of.weight.all()
            else:
                assert not rows_of.weight.any()
            for row_id, reward in zip(rows_of.row_id.tolist(), rows_of.reward, strict=True):
                if there:
                    assert diary.rewards[row_id // envs][row_id % envs] == reward.item()
    if by == "episode":
        for column in range(envs):
            for row in range(1, steps):
                if not diary.ended[row - 1][column]:
                    assert diary.held[row][column] == diary.held[row - 1][column]
    assert not diary.held[0][0]


@pytest.mark.parametrize("by", ["episode", "transition"])
def test_every_row_of_a_set_is_drawn_equally_often(by: By) -> None:
    replay = make(20, 3, by=by)
    diary, stream = Diary(replay), Stream(make_spec(3), 1, 0.3)
    for _ in range(50):
        diary.append(stream.step())
    drawn = [replay.sample(64) for _ in range(400)]
    apart = [one.held_out for one in drawn if one.held_out is not None]
    for batches, held in ((drawn, False), (apart, True)):
        there = sorted(diary.ids(held=held))
        assert len(there) >= 5
        counts = torch.cat([one.row_id for one in batches]).bincount()
        expected = 64 * 400 / len(there)
        chi2 = sum((float(counts[i]) - expected) ** 2 / expected for i in there)
        assert chi2 < len(there) + 5 * (2 * len(there)) ** 0.5
        assert int(counts.sum()) == int(counts[torch.tensor(there)].sum())


def test_the_share_is_kept_and_does_not_depend_on_draws() -> None:
    one, two = make(400, 5, share=1 / 4), make(400, 5, share=1 / 4)
    streams = [Stream(make_spec(5), 3, 0.2) for _ in range(2)]
    for _ in range(600):
        one.append(streams[0].step())
        two.append(streams[1].step())
        two.sample(3)
    samplers = [one.sampler, two.sampler]
    assert isinstance(samplers[0], HeldOutUniform)
    assert isinstance(samplers[1], HeldOutUniform)
    assert torch.equal(samplers[0].held, samplers[1].held)
    counts = [
        float(s.written - s.num_dropped) for s in (samplers[0].held_out, samplers[0].training)
    ]
    assert sum(counts) == 2000
    assert counts[0] / 2000 == pytest.approx(1 / 4, abs=0.06)


@pytest.mark.parametrize("by", ["episode", "transition"])
@pytest.mark.parametrize("share", [1 / 16, 0.3])
@pytest.mark.parametrize("envs", [1, 10, 16])
def test_no_run_waits_long_for_rows_held_out(envs: int, share: float, by: By) -> None:
    """Of the first k episodes (or rows) k * share are held out, give or take one, whatever the seed; the second is."""
    for seed in range(5):
        replay = make(400, envs, by=by, share=share, seed=seed)
        diary, stream = Diary(replay), Stream(make_spec(envs), seed, 0.2)
        begun = held = 0
        for row in range(200):
            diary.append(stream.step())
            for column in range(envs):
                if by == "transition" or row == 0 or diary.ended[row - 1][column]:
                    begun += 1
                    held += diary.held[row][column]
            assert abs(held - begun * share) <= 1.0
            assert held >= (begun >= 2)
        whose = torch.tensor(diary.held).float().mean(0)
        assert (
            by == "episode" or envs == 1 or (whose - share).abs().max() < 0.15
        )  # nobody's in particular


def test_a_cut_ends_an_episode_here_too() -> None:
    """Without ends all rows follow their first; after a cut membership is decided anew."""
    replay = make(50, 40, share=0.5)
    diary, stream = Diary(replay), Stream(make_spec(40), 0, 0.0)
    for step in range(20):
        if step == 10:
            replay.mark_break()
        diary.append(stream.step())
    assert all(held == diary.held[0] for held in diary.held[:10])
    assert all(held == diary.held[10] for held in diary.held[10:])
    assert diary.held[0] != diary.held[10]


def test_windows_stay_in_their_set() -> None:
    """n steps from a training row read the rewards of training rows alone: here held-out rows pay 1, others 0."""
    replay = make(30, 4, n_step=3, share=0.5)
    sampler, stream = replay.sampler, Stream(make_spec(4), 5, 0.3)
    assert isinstance(sampler, HeldOutUniform)
    for _ in range(45):
        replay.append(stream.step())
    replay.ring.reward.copy_(sampler.held.float())
    batch = replay.sample(200)
    assert batch.held_out is not None
    assert not batch.reward.any()
    assert (batch.held_out.reward >= 1).all()


def test_saved_and_restored_sets_go_on_exactly() -> None:
    one, two = make(15, 3), make(15, 3, seed=9)
    stream = Stream(make_spec(3), 2, 0.3)
    for _ in range(25):
        one.append(stream.step())
    one.sample(8)
    two.load_state_dict(copy.deepcopy(one.state_dict()))
    for _ in range(20):
        step = stream.step()
        for replay in (one, two):
            replay.append(step)
        first, second = one.sample(8), two.sample(8)
        assert first.held_out is not None
        assert second.held_out is not None
        assert torch.equal(first.row_id, second.row_id)
        assert torch.equal(first.held_out.row_id, second.held_out.row_id)


@pytest.mark.parametrize("block", [2, 7, 15])
def test_lines_that_come_together_are_held_out_as_one_by_one(block: int) -> None:
    """A single actor sends blocks of them; the ring wraps twice."""
    one, two = make(15, 3), make(15, 3)
    stream = Stream(make_spec(3), 2, 0.3)
    for _ in range(45 // block):
        steps = [stream.step() for _ in range(block)]
        for step in steps:
            one.append(step)
        two.append_lines(steps)
        first, second = one.sample(8), two.sample(8)
        assert first.held_out is not None
        assert second.held_out is not None
        assert torch.equal(first.row_id, second.row_id)
        assert torch.equal(first.held_out.row_id, second.held_out.row_id)
        assert torch.equal(first.held_out.reward, second.held_out.reward)


def test_rows_drawn_apart_use_up_no_draw() -> None:
    replay = make(15, 3)
    stream = Stream(make_spec(3), 2, 0.3)
    for _ in range(25):
        replay.append(stream.step())
    state = copy.deepcopy(replay.sampler.state_dict())
    drawn = replay.sampler.apart(7).draw(9, replay.ring)
    assert drawn.held_out is not None
    again = replay.sampler.apart(7).draw(9, replay.ring)
    assert torch.equal(drawn.age, again.age)
    after = replay.sampler.state_dict()
    assert torch.equal(after["generator"]["state"], state["generator"]["state"])


def test_lines_appended_together_are_those_appended_one_by_one() -> None:
    one, many, stream = make(10, 3), make(10, 3), Stream(make_spec(3), 1, end_share=0.3)
    steps = [stream.step() for _ in range(14)]
    for step in steps:
        one.append(step)
    many.append_lines(steps[:4])
    many.append_lines(steps[4:])
    held = [each.sampler.held for each in (one, many)]  # type: ignore[attr-defined]
    assert held[0].any()
    assert torch.equal(*held)
    drawn = [each.sample(20) for each in (one, many)]
    assert torch.equal(drawn[0].row_id, drawn[1].row_id)


def test_wrong_input() -> None:
    with pytest.raises(UserError, match="by episode"):
        make(10, 2, by="transition", n_step=2)
    for wrong in ({"share": 0.0}, {"share": 1.0}, {"rows": 1}, {"by": "column"}):
        changes: dict[str, Any] = wrong
        with pytest.raises(UserError):
            replace(HeldOutUniformConfig(), **changes)
    cfg = ReplayConfig(capacity=100, sampler=HeldOutUniformConfig())
    with pytest.raises(UserError, match="a single process"):
        cfg.build(make_spec(4), gamma=0.9, seed=0, device=CPU, writers=2)
    plain = ReplayConfig(capacity=100)
    assert cfg.bytes(make_spec(4)) - plain.bytes(make_spec(4)) == (25 + 1) * 4 * 9
