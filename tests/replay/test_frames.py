"""Stacks of frames: stored one by one, given back whole."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetfoot.errors import UserError
from fleetfoot.replay.replay import Replay, ReplayConfig
from fleetfoot.replay.samplers import ProportionalConfig
from oracles.replay import OracleReplay
from support.streams import CPU, Film, compare, everything, frame_spec, make_spec


def compare_actor(replay: Replay, oracle: OracleReplay) -> None:
    """As `compare`, and no row may be lost."""
    compare(replay, oracle)
    assert bool((everything(replay).weight == 1).all())


@settings(max_examples=80, deadline=None)
@given(
    rows=st.integers(4, 10),
    n=st.integers(1, 4),
    stack=st.integers(2, 5),
    steps=st.integers(1, 40),
    end_share=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    columns=st.integers(1, 3),
    shades=st.sampled_from([1, 2, 256]),
    seed=st.integers(0, 10_000),
    cuts=st.sets(st.integers(0, 39), max_size=3),
)
def test_stacks_equal_whole_stored_observations(
    rows: int,
    n: int,
    stack: int,
    steps: int,
    end_share: float,
    columns: int,
    shades: int,
    seed: int,
    cuts: set[int],
) -> None:
    """Wrapped rings, ends inside windows, first and oldest rows, true last observations, breaks, frames that are black
    or alike by chance: all against lists of whole transitions. No row is lost."""
    spec = frame_spec(columns, stack)
    cfg = ReplayConfig(capacity=rows * columns, n_step=n, final_share=1.0)
    replay = cfg.build(spec, gamma=0.9, seed=0, device=CPU)
    oracle = OracleReplay(rows, n, 0.9)
    film = Film(spec, seed, end_share, shades)
    for step in range(steps):
        transition = film.step()
        replay.append(transition)
        oracle.append(transition)
        if step in cuts:
            replay.mark_break()
            oracle.mark_break()
            film.stack = film.first()
    compare_actor(replay, oracle)


def test_stacks_that_go_on_over_an_end_come_back_as_they_were() -> None:
    """A lost life may count as an end while the picture goes on."""
    spec = frame_spec(2)
    replay = ReplayConfig(capacity=20, final_share=1.0).build(spec, gamma=0.9, seed=0, device=CPU)
    oracle = OracleReplay(10, 1, 0.9)
    film = Film(spec, 0, 0.0)
    for step in range(25):
        transition = film.step()
        life_lost = torch.full((2,), step % 3 == 1)
        transition = transition._replace(terminated=life_lost)
        replay.append(transition)
        oracle.append(transition)
    compare_actor(replay, oracle)


def test_rows_whose_earlier_frames_are_unknown_do_not_teach() -> None:
    """A replay that begins in the middle of an episode, as after a resume without the old replay."""
    spec = frame_spec(1)
    film = Film(spec, 0, 0.0)
    for _ in range(5):
        film.step()
    replay = ReplayConfig(capacity=10).build(spec, gamma=0.9, seed=0, device=CPU)
    oracle = OracleReplay(10, 1, 0.9)
    for _ in range(6):
        transition = film.step()
        replay.append(transition)
        oracle.append(transition)
    batch = everything(replay)
    assert batch.weight.tolist() == [0, 0, 0, 1, 1, 1]
    for row in range(3, 6):
        first, _, _, following = oracle.window(row, 0)
        assert torch.equal(batch.obs.actor[row], first.obs)
        assert torch.equal(batch.next_obs.actor[row], following)


def test_stacks_padded_with_repeats_are_noticed_and_do_not_teach() -> None:
    """Such an environment breaks the contract of `EnvSpec.frame_stack`; wrong stacks must not be learned from."""
    spec = frame_spec(1)
    film = Film(spec, 0, 0.0)
    film.stack = film.frame().unsqueeze(1).expand(-1, 4, -1, -1)
    replay = ReplayConfig(capacity=10).build(spec, gamma=0.9, seed=0, device=CPU)
    for _ in range(6):
        replay.append(film.step())
    assert everything(replay).weight.tolist() == [0, 0, 0, 1, 1, 1]


def test_frames_for_the_actor_and_numbers_for_the_critic() -> None:
    spec = frame_spec(2, critic_shape=(1,))
    replay = ReplayConfig(capacity=12, final_share=1.0).build(spec, gamma=0.9, seed=0, device=CPU)
    oracle = OracleReplay(6, 1, 0.9)
    film = Film(spec, 0, 0.3)
    for _ in range(15):
        transition = film.step()
        replay.append(transition)
        oracle.append(transition)
    compare(replay, oracle)
    seen = everything(replay)
    frame = seen.next_obs.actor[:, -1].float().mean((1, 2)).unsqueeze(1)
    torch.testing.assert_close(seen.next_obs.critic, frame)


def test_frames_saved_and_restored() -> None:
    spec = frame_spec(2)
    cfg = ReplayConfig(capacity=12, n_step=2, sampler=ProportionalConfig())
    one, two = (cfg.build(spec, gamma=0.9, seed=s, device=CPU) for s in (0, 1))
    film = Film(spec, 0, 0.2)
    for _ in range(14):
        one.append(film.step())
    two.load_state_dict(one.state_dict())
    fresh = film.step()
    for replay in (one, two):
        replay.append(fresh)
    a, b = one.sample(64), two.sample(64)
    assert torch.equal(a.obs.actor, b.obs.actor)
    assert torch.equal(a.next_obs.actor, b.next_obs.actor)
    assert torch.equal(a.row_id, b.row_id)


def test_a_transition_of_84_by_84_takes_at_most_8_kb_in_all() -> None:
    spec = replace(frame_spec(64), obs_shape=(4, 84, 84))
    cfg = ReplayConfig(capacity=2_000_000, n_step=3, sampler=ProportionalConfig())
    assert cfg.bytes(spec) / 2_000_000 <= 8000


def test_wrong_stacks() -> None:
    spec = make_spec(2, obs_shape=(4, 2, 2), obs_dtype=torch.uint8, frame_stack=3)
    with pytest.raises(UserError, match="frame_stack of 3"):
        ReplayConfig(capacity=8).build(spec, gamma=0.9, seed=0, device=CPU)
    with pytest.raises(UserError, match="critic_prefix"):
        ReplayConfig(capacity=8).build(
            frame_spec(2, critic_shape=(5,), critic_prefix=2), gamma=0.9, seed=0, device=CPU
        )
