from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetfoot import recipes
from fleetfoot.config import from_json, to_json
from fleetfoot.errors import UserError
from fleetfoot.log import LogConfig
from fleetfoot.replay.evict import FifoConfig, Inverse, InverseConfig
from fleetfoot.replay.replay import Replay, ReplayConfig
from fleetfoot.replay.samplers import Proportional, ProportionalConfig, UniformConfig
from oracles.replay import OracleReplay
from support.streams import CPU, Stream, make_spec
from support.train_until import train_until

HARD = FifoConfig(slack=0.0)


def make_replay(
    sampler: ProportionalConfig, rows: int = 8, columns: int = 3, n: int = 1, seed: int = 0
) -> Replay:
    cfg = ReplayConfig(capacity=rows * columns, n_step=n, final_share=1.0, sampler=sampler)
    return cfg.build(make_spec(columns), gamma=0.9, seed=seed, device=CPU)


def fill(replay: Replay, steps: int, td_error: torch.Tensor | None = None) -> Stream:
    stream = Stream(make_spec(replay.ring.columns), 0, 0.1)
    for _ in range(steps):
        replay.append(stream.step(), td_error)
    return stream


def leaves(replay: Replay) -> torch.Tensor:
    """p^alpha of every row that the ring can read, oldest first [size, N]."""
    sampler = replay.sampler
    assert isinstance(sampler, Proportional)
    return torch.stack([sampler.tree.get(replay.ring.line(a)) for a in range(replay.ring.size)])


def test_rows_are_drawn_in_proportion_to_their_priorities() -> None:
    """P(k) = p^0.6 / sum, with p = |td| + 1e-6: alpha is applied once."""
    replay = make_replay(ProportionalConfig(stratified=False, eviction=HARD), rows=2, columns=3)
    stream = Stream(make_spec(3), 0, 0.1)
    replay.append(stream.step(), torch.tensor([0.1, 1.0, 10.0]))
    replay.append(stream.step(), torch.tensor([0.5, 2.0, 4.0]))
    replay.reprioritize(torch.tensor([1, 5]), torch.tensor([3.0, 7.0]))
    p = torch.tensor([0.1, 3.0, 10.0, 0.5, 2.0, 7.0], dtype=torch.float64) + 1e-6
    share = torch.bincount(replay.sample(1_000_000).row_id, minlength=6) / 1e6
    wanted = p.pow(0.6) / p.pow(0.6).sum()
    assert float((share - wanted).abs().max()) < 0.01 * float(wanted.max())


def test_weights_of_three_rows_by_hand() -> None:
    """Priorities 1, 4 and 9 with alpha 0.5: P = 1/6, 2/6, 3/6; N P = 0.5, 1, 1.5; weights (N P)^-1 = 2, 1, 2/3."""
    sampler = ProportionalConfig(alpha=0.5, beta=1.0, stratified=False, eviction=HARD)
    replay = make_replay(sampler, rows=1, columns=3)
    fill(replay, 1, torch.tensor([1.0, 4.0, 9.0]))
    batch = replay.sample(200)
    assert set(batch.row_id.tolist()) == {0, 1, 2}
    wanted = torch.tensor([1.0, 0.5, 1 / 3])  # over the largest, 2
    torch.testing.assert_close(batch.weight, wanted[batch.row_id], rtol=1e-5, atol=0)
    assert batch.weight.dtype == torch.float32


def test_the_largest_weight_is_that_of_the_batch_or_of_the_buffer() -> None:
    """With priorities 1, 4, 4, ... the rare row 0 is in few batches, but counts in all under "buffer"."""
    td_error = torch.tensor([1.0, *[4.0] * 99])
    cases: tuple[tuple[Any, float], ...] = (("batch", 1.0), ("buffer", 0.5))
    for largest, expected in cases:
        sampler = ProportionalConfig(
            alpha=0.5, beta=1.0, stratified=False, largest_weight=largest, eviction=HARD
        )
        replay = make_replay(sampler, rows=1, columns=100)
        fill(replay, 1, td_error)
        batch = replay.sample(5)
        assert 0 not in batch.row_id.tolist()
        torch.testing.assert_close(batch.weight, torch.full((5,), expected), rtol=1e-5, atol=0)


def test_the_smallest_priority_of_the_buffer_follows_what_is_overwritten() -> None:
    sampler = ProportionalConfig(beta=1.0, alpha=1.0, largest_weight="buffer", eviction=HARD)
    replay = make_replay(sampler, rows=2, columns=1)
    stream = Stream(make_spec(1), 0, 0.0)
    for error in (1.0, 8.0, 2.0):  # the 1 is overwritten
        replay.append(stream.step(), torch.tensor([error]))
    batch = replay.sample(100)
    weight = dict(zip(batch.row_id.tolist(), batch.weight.tolist(), strict=True))
    assert weight == {1: pytest.approx(0.25, rel=1e-5), 2: pytest.approx(1.0)}


def test_without_errors_rows_get_the_largest_priority_so_far() -> None:
    replay = make_replay(ProportionalConfig(alpha=1.0, eviction=HARD), rows=4, columns=2)
    stream = fill(replay, 1)
    replay.append(stream.step(), torch.tensor([5.0, 0.25]))
    replay.append(stream.step())
    replay.reprioritize(torch.tensor([0]), torch.tensor([50.0]))
    replay.append(stream.step())
    got = leaves(replay)
    wanted = torch.tensor([[50, 1], [5, 0.25], [5, 5], [50, 50]], dtype=torch.float64)
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)


def test_alpha_zero_is_uniform_and_errors_of_zero_are_still_drawn() -> None:
    replay = make_replay(ProportionalConfig(alpha=0.0, eviction=HARD), rows=2, columns=2)
    fill(replay, 2, torch.tensor([0.0, 100.0]))
    batch = replay.sample(1000)
    assert torch.bincount(batch.row_id).tolist() == [250] * 4
    assert bool((batch.weight == 1).all())


def test_stratified_draws_take_one_row_from_each_share() -> None:
    """Ten equal rows and a batch of ten: each row exactly once, in every batch."""
    replay = make_replay(ProportionalConfig(eviction=HARD), rows=5, columns=2)
    fill(replay, 5, torch.tensor([1.0, 1.0]))
    for _ in range(20):
        assert sorted(replay.sample(10).row_id.tolist()) == list(range(10))


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 6),
    columns=st.integers(1, 3),
    slack=st.sampled_from([0.0, 0.5]),
    every=st.integers(1, 3),
    script=st.lists(st.one_of(st.none(), st.integers(0, 60)), min_size=1, max_size=40),
)
def test_priorities_equal_those_of_a_dictionary_by_name(
    rows: int, columns: int, slack: float, every: int, script: list[int | None]
) -> None:
    """Wrapped rings, late updates of rows that are gone, rows named twice, trims, lines that cannot be read."""
    eviction = FifoConfig(every_updates=every, slack=slack)
    replay = make_replay(ProportionalConfig(alpha=1.0, eviction=eviction), rows, columns)
    physical = replay.ring.rows
    assert physical == -(-rows * (2 + int(2 * slack)) // 2)
    stream = Stream(make_spec(columns), 0, 0.2)
    known: dict[int, float] = {}
    written = updates = 0
    for number, action in enumerate(script, start=1):
        if action is None:
            error = torch.arange(columns) + float(number)
            replay.append(stream.step(), error)
            for c in range(columns):
                known[written * columns + c] = float(error[c])
            written += 1
            known = {k: v for k, v in known.items() if k >= (written - physical) * columns}
        elif written:
            names = [action % (written * columns), 0, action % (written * columns)]
            errors = [1000.0, 500.0 + number, float(number)]
            replay.reprioritize(torch.tensor(names), torch.tensor(errors))
            replay.trim(1)
            for name, value in zip(names, errors, strict=True):
                if name in known:
                    known[name] = value
            updates += 1
            if updates % every == 0:
                known = {k: v for k, v in known.items() if k >= (written - rows) * columns}
    assert replay.size == len(known)
    if not known:
        return
    sampler = replay.sampler
    assert isinstance(sampler, Proportional)
    first = min(known)
    got = leaves(replay).flatten()
    wanted = torch.tensor([known[first + i] for i in range(len(known))], dtype=torch.float64)
    torch.testing.assert_close(got, wanted + 1e-6, rtol=1e-12, atol=0)
    everywhere = sampler.tree.get(torch.arange(int(sampler.nowhere) + 1))
    assert int((everywhere > 0).sum()) == len(known), "only rows that can be read may be drawn"


@pytest.mark.parametrize("eviction", [HARD, FifoConfig(slack=0.5), InverseConfig()])
def test_windows_equal_the_oracle_under_priorities(eviction: Any) -> None:
    """Folding does not depend on who draws; evicted rows still serve the windows of their neighbours."""
    rows, columns, n = 6, 3, 3
    replay = make_replay(ProportionalConfig(eviction=eviction), rows, columns, n)
    oracle = OracleReplay(replay.ring.rows, n, 0.9)
    stream = Stream(make_spec(columns), 5, 0.2)
    random = torch.Generator().manual_seed(0)
    for _ in range(29):
        transition = stream.step()
        replay.append(transition)
        oracle.append(transition)
        batch = replay.sample(16)
        oldest = (replay.ring.written - min(replay.ring.written, replay.ring.rows)) * columns
        for row, name in enumerate(batch.row_id.tolist()):
            age, column = divmod(name - oldest, columns)
            first, reward, discount, following = oracle.window(age, column)
            assert torch.equal(batch.obs.actor[row], first.obs)
            assert float(batch.reward[row]) == pytest.approx(reward, abs=1e-5)
            assert float(batch.discount[row]) == pytest.approx(discount, abs=1e-6)
            if discount > 0:
                assert torch.equal(batch.next_obs.actor[row], following)
        replay.reprioritize(batch.row_id, torch.rand(16, generator=random))
        replay.trim(1)


def test_a_soft_capacity_is_trimmed_every_hundred_updates_and_the_newest_survive() -> None:
    replay = make_replay(ProportionalConfig(eviction=FifoConfig(slack=0.5)), rows=20, columns=2)
    stream = fill(replay, 28)
    assert replay.size == 56, "adding is never blocked"
    for updates in (1, 95, 3):
        replay.trim(updates)
    assert replay.size == 56
    replay.trim(2)
    assert replay.size == 40
    assert set(replay.sample(4000).row_id.tolist()) == set(range(16, 56))
    for _ in range(50):  # more than the slack: the ring overwrites its oldest rows
        replay.append(stream.step())
    assert replay.size == 60
    assert set(replay.sample(6000).row_id.tolist()) == set(range(96, 156))


def test_inverse_eviction_keeps_the_capacity_and_prefers_low_priorities() -> None:
    rows, columns = 50, 16
    sampler = ProportionalConfig(eviction=InverseConfig(exponent=-2.0))
    replay = make_replay(sampler, rows, columns)
    assert isinstance(replay.sampler, Proportional)
    assert isinstance(replay.sampler.eviction, Inverse)
    high = torch.arange(columns) % 2 == 1
    stream = fill(replay, 50, torch.where(high, 1.0, 0.1))
    assert replay.size == rows * columns
    for _ in range(40):
        replay.append(stream.step(), torch.where(high, 1.0, 0.1))
        alive = leaves(replay) > 0
        assert int(alive.sum()) == int(replay.sampler.eviction.count) == rows * columns
    kept = alive.float().mean(0)
    assert replay.size == rows * columns
    # 640 of 1440 rows went, and a low one is a hundred times as likely to go.
    assert float(kept[high].min()) > 0.9
    assert float(kept[~high].max()) < 0.4


def test_evicted_rows_do_not_come_back_by_late_updates() -> None:
    replay = make_replay(ProportionalConfig(eviction=InverseConfig()), rows=4, columns=4)
    fill(replay, 7)
    gone = (leaves(replay) == 0).flatten().nonzero().squeeze(1)
    assert len(gone) == 3 * 4
    before = leaves(replay)
    replay.reprioritize(gone, torch.full(gone.shape, 9.0))
    assert torch.equal(leaves(replay), before)


def test_when_nearly_all_rows_are_alike_to_evict_the_rest_goes_later() -> None:
    """One row has all the chance to go, so 2N candidates are one row; the count is made up for afterwards."""
    eviction = InverseConfig(exponent=-8.0, slack=3.0)
    replay = make_replay(ProportionalConfig(eviction=eviction), rows=4, columns=4)
    stream = fill(replay, 4, torch.tensor([1e3, 1e3, 1e3, 1e-3]))
    for _ in range(3):
        replay.append(stream.step(), torch.tensor([1e3, 1e3, 1e3, 1e-3]))
    assert int((leaves(replay) > 0).sum()) > 16
    for _ in range(6):
        replay.append(stream.step(), torch.full((4,), 1e3))
    assert int((leaves(replay) > 0).sum()) == 16


def test_errors_that_are_no_numbers_spoil_nothing() -> None:
    replay = make_replay(ProportionalConfig(eviction=HARD), rows=2, columns=2)
    fill(replay, 2)
    bad = torch.tensor([float("nan"), float("inf"), -2.0])
    replay.reprioritize(torch.tensor([0, 1, 2]), bad)
    assert bool(leaves(replay).isfinite().all())
    assert float(leaves(replay)[1, 0]) == pytest.approx(2.0**0.6)
    assert bool(replay.sample(10).weight.isfinite().all())


@pytest.mark.parametrize(
    "sampler",
    [
        ProportionalConfig(),
        ProportionalConfig(largest_weight="buffer", stratified=False),
        ProportionalConfig(eviction=InverseConfig()),
    ],
)
def test_saved_and_restored_exactly(sampler: ProportionalConfig) -> None:
    random = torch.Generator().manual_seed(0)
    replays = [make_replay(sampler, rows=8, columns=3, n=2, seed=s) for s in (0, 5)]
    one, two = replays
    stream = Stream(make_spec(3), 0, 0.3)
    for _ in range(21):
        one.append(stream.step(), torch.rand(3, generator=random))
        batch = one.sample(6)
        one.reprioritize(batch.row_id, torch.rand(6, generator=random))
        one.trim(30)
    two.load_state_dict(copy.deepcopy(one.state_dict()))
    for _ in range(15):
        fresh, error, late = (
            stream.step(),
            torch.rand(3, generator=random),
            torch.rand(6, generator=random),
        )
        drawn = []
        for replay in replays:
            replay.append(fresh, error)
            drawn.append(replay.sample(6))
            replay.reprioritize(drawn[-1].row_id, late)
            replay.trim(30)
        assert torch.equal(drawn[0].row_id, drawn[1].row_id)
        assert torch.equal(drawn[0].weight, drawn[1].weight)
        assert torch.equal(drawn[0].next_obs.actor, drawn[1].next_obs.actor)
    assert torch.equal(leaves(one), leaves(two))


def test_configs_travel_through_json_and_count_their_memory() -> None:
    spec = make_spec(64, obs_shape=(20,))
    sampler = ProportionalConfig(largest_weight="buffer", eviction=InverseConfig(slack=0.5))
    cfg = ReplayConfig(capacity=64_000, sampler=sampler)
    assert from_json(to_json(cfg)) == cfg
    replay = cfg.build(spec, gamma=0.9, seed=0, device=CPU)
    assert isinstance(replay.sampler, Proportional)
    assert isinstance(replay.sampler.eviction, Inverse)
    assert replay.sampler.smallest is not None
    trees = [replay.sampler.tree, replay.sampler.smallest, replay.sampler.eviction.tree]
    assert cfg.bytes(spec) == replay.ring.bytes() + sum(tree.bytes() for tree in trees)
    assert cfg.bytes(spec) > 1.5 * replace(cfg, sampler=UniformConfig()).bytes(spec)


def test_wrong_input() -> None:
    with pytest.raises(UserError, match="alpha must be 0 or more"):
        ProportionalConfig(alpha=-1.0)
    with pytest.raises(UserError, match="slack above 0"):
        InverseConfig(slack=0.0)
    with pytest.raises(UserError, match="every_updates"):
        FifoConfig(every_updates=0)
    replay = make_replay(ProportionalConfig())
    fill(replay, 1)
    with pytest.raises(UserError, match="cannot be prioritised"):
        replay.reprioritize(torch.tensor([0]), None)
    with pytest.raises(UserError, match=r"one td_error for each of its 1 rows, not \[2, 1\]"):
        replay.reprioritize(torch.tensor([0]), torch.ones(2, 1))


@pytest.mark.learning
@pytest.mark.slow
def test_prioritised_fast_td3_solves_the_pendulum(tmp_path: Any) -> None:
    base = recipes.get("fast_td3/pendulum")
    recipe = replace(
        base,
        replay=replace(base.off_policy_replay(), n_step=3, sampler=ProportionalConfig()),
        log=LogConfig(every_vec_steps=500, tensorboard=False, console=False),
        device="cpu",
        threads=1,
    )
    assert train_until(recipe, tmp_path / "run", -250).best_return >= -250


@pytest.mark.gpu
@pytest.mark.parametrize("largest", ["batch", "buffer"])
def test_on_a_gpu_neither_draws_nor_updates_wait_for_it(largest: Any) -> None:
    device = torch.device("cuda")
    sampler = ProportionalConfig(eviction=HARD, largest_weight=largest)
    cfg = ReplayConfig(capacity=24, final_share=1.0, sampler=sampler)
    replay = cfg.build(replace(make_spec(3), device=device), gamma=0.9, seed=0, device=device)
    error = torch.tensor([0.1, 1.0, 10.0], device=device)
    assert isinstance(replay.sampler, Proportional)
    ring, found = replay.ring, replay.sampler
    ring.size = ring.written = 8
    ring.sync_counters()
    found.set_priority(torch.arange(24, device=device), error.double().repeat(8))
    torch.cuda.set_sync_debug_mode("error")
    try:
        drawn = found.draw(16, ring)
        new = torch.ones(16, device=device)
        found.reprioritize(ring, ring.row_id(drawn.age, drawn.column), new)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert float(drawn.weight.max()) <= 1.0
