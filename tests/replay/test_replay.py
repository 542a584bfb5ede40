from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetfoot.data import Continuous, Discrete, Obs, Transition
from fleetfoot.errors import UserError
from fleetfoot.replay.replay import GIB, ReplayConfig
from oracles.replay import OracleReplay
from support.streams import CPU, Stream, compare, everything, make_spec


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(4, 12),
    n=st.integers(1, 4),
    steps=st.integers(1, 40),
    end_share=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    columns=st.integers(1, 4),
    seed=st.integers(0, 10_000),
    cuts=st.sets(st.integers(0, 39), max_size=3),
)
def test_windows_equal_the_oracle(
    rows: int, n: int, steps: int, end_share: float, columns: int, seed: int, cuts: set[int]
) -> None:
    """Wrapped rings, ends inside windows, the write head, breaks: all against lists of whole transitions."""
    spec = make_spec(columns)
    cfg = ReplayConfig(capacity=rows * columns, n_step=n, final_share=1.0)
    replay = cfg.build(spec, gamma=0.9, seed=0, device=CPU)
    oracle = OracleReplay(rows, n, 0.9)
    stream = Stream(spec, seed, end_share)
    for step in range(steps):
        transition = stream.step()
        replay.append(transition)
        oracle.append(transition)
        if step in cuts:
            replay.mark_break()
            oracle.mark_break()
            stream.obs = stream.draw_obs()
    compare(replay, oracle)
    batch = everything(replay)
    assert bool((batch.weight == 1).all()), "with room for every last observation none may be lost"


@pytest.mark.parametrize(
    ("changes", "storage"),
    [
        ({"critic_shape": (7,), "critic_prefix": 4}, "float32"),
        ({"critic_shape": (5,)}, "float32"),
        ({"critic_shape": (7,), "critic_prefix": 4}, "bf16"),
        ({"action": Discrete(5)}, "float32"),
        ({"obs_shape": (2, 3, 3), "obs_dtype": torch.uint8}, "float32"),
    ],
)
def test_other_kinds_of_observations_and_actions(changes: Any, storage: Any) -> None:
    spec = make_spec(3, **changes)
    cfg = ReplayConfig(capacity=27, n_step=3, final_share=1.0, storage=storage)
    replay = cfg.build(spec, gamma=0.97, seed=0, device=CPU)
    oracle = OracleReplay(9, 3, 0.97)
    stream = Stream(spec, 1, 0.2)
    for _ in range(25):
        transition = stream.step()
        replay.append(transition)
        oracle.append(transition)
    compare(replay, oracle, exact=storage == "float32")


def test_time_limits_can_count_as_ends() -> None:
    spec = make_spec(2)
    cfg = ReplayConfig(capacity=20, bootstrap_truncated=False)
    replay = cfg.build(spec, gamma=0.9, seed=0, device=CPU)
    stream = Stream(spec, 0, 1.0)
    for _ in range(6):
        replay.append(stream.step())
    assert bool((everything(replay).discount == 0).all())


@pytest.mark.parametrize("lines_at_once", [1, 8])
@pytest.mark.parametrize("stack", [1, 3])
def test_terminations_take_no_room_from_truncations(lines_at_once: int, stack: int) -> None:
    """Many falls, and a time limit: with the default room every truncated row still has its last observation."""
    shape: dict[str, Any] = {"obs_shape": (3, 2), "frame_stack": 3} if stack == 3 else {}
    spec = make_spec(4, episode_length=25, **shape)
    replay = ReplayConfig(capacity=4 * 400).build(spec, gamma=0.9, seed=0, device=CPU)
    random = torch.Generator().manual_seed(0)
    episode_steps = torch.zeros(4, dtype=torch.int64)
    obs = torch.zeros(4, *spec.obs_shape)
    steps: list[Transition] = []
    for _ in range(400):
        episode_steps += 1
        newest = torch.randn(4, *spec.obs_shape[stack > 1 :], generator=random)
        next_obs = newest if stack == 1 else torch.cat([obs[:, 1:], newest.unsqueeze(1)], 1)
        terminated = torch.rand(4, generator=random) < 0.06
        truncated = (episode_steps == 25) & ~terminated
        ended = terminated | truncated
        steps.append(
            Transition(
                Obs(obs, obs),
                torch.zeros(4, 2),
                torch.zeros(4),
                terminated,
                truncated,
                Obs(next_obs, next_obs),
                {},
            )
        )
        episode_steps[ended] = 0
        obs = next_obs.clone()
        obs[ended] = 0
    for first in range(0, 400, lines_at_once):
        replay.append_lines(steps[first : first + lines_at_once])
    batch = everything(replay)
    truncated = torch.cat([step.truncated for step in steps])
    terminated = torch.cat([step.terminated for step in steps])
    assert int(truncated.sum()) > 5
    assert int(terminated.sum()) > replay.ring.finals
    assert bool((batch.weight == 1).all())
    following = torch.cat([step.next_obs.actor for step in steps])
    assert torch.equal(batch.next_obs.actor[~terminated], following[~terminated])
    assert bool((batch.discount[terminated] == 0).all())


def test_truncations_whose_last_observation_is_gone_do_not_teach() -> None:
    """A side table that is too small loses the oldest entries: such rows get weight 0, all others stay exact."""
    spec = make_spec(2)
    replay = ReplayConfig(capacity=40, final_share=0.1).build(spec, gamma=0.9, seed=0, device=CPU)
    oracle = OracleReplay(20, 1, 0.9)
    stream = Stream(spec, 3, 1.0)
    for _ in range(20):
        transition = stream.step()
        replay.append(transition)
        oracle.append(transition)
    compare(replay, oracle)
    weight = everything(replay).weight
    assert bool((weight[-4:] == 1).all())
    assert 0 < int((weight == 0).sum()) < 36


def test_where_the_simulator_loses_last_observations_truncations_do_not_teach() -> None:
    spec = make_spec(2, exact_final_obs=False)
    replay = ReplayConfig(capacity=40).build(spec, gamma=0.9, seed=0, device=CPU)
    stream = Stream(spec, 3, 0.5)
    steps = [stream.step() for _ in range(20)]
    for step in steps:
        replay.append(step)
    truncated = torch.stack([step.truncated for step in steps]).flatten()
    assert bool(truncated.any())
    assert torch.equal(everything(replay).weight == 0, truncated)


def test_images_for_the_actor_and_numbers_for_the_critic() -> None:
    spec = make_spec(2, obs_shape=(1, 2, 2), obs_dtype=torch.uint8, critic_shape=(3,))
    replay = ReplayConfig(capacity=10).build(spec, gamma=0.9, seed=0, device=CPU)
    stream = Stream(spec, 0, 0.0)
    step = stream.step()
    replay.append(step)
    batch = everything(replay)
    assert torch.equal(batch.obs.actor, step.obs.actor)
    assert batch.obs.actor.dtype == torch.uint8
    assert torch.equal(batch.next_obs.critic, step.next_obs.critic)


def test_tasks_belong_to_columns() -> None:
    spec = make_spec(3, tasks=("a", "b"), task_ids=(0, 1, 1))
    replay = ReplayConfig(capacity=30).build(spec, gamma=0.9, seed=0, device=CPU)
    stream = Stream(spec, 0, 0.1)
    for _ in range(4):
        replay.append(stream.step())
    batch = everything(replay)
    assert batch.obs.task.tolist() == batch.next_obs.task.tolist() == [0, 1, 1] * 4


def test_sampling_is_uniform_over_rows_and_environments() -> None:
    spec = make_spec(4)
    replay = ReplayConfig(capacity=32).build(spec, gamma=0.9, seed=7, device=CPU)
    stream = Stream(spec, 0, 0.1)
    for _ in range(11):
        replay.append(stream.step())
    index = replay.sample(64_000).row_id
    counts = torch.bincount(index - index.min(), minlength=32).double()
    assert int((index - 3 * 4).min()) == 0  # rows 0..2 have been overwritten
    chi2 = float(((counts - 2000) ** 2 / 2000).sum())
    assert chi2 < 62  # 31 degrees of freedom, p < 0.001


def test_the_uniform_stream_is_the_one_that_published_results_were_made_with() -> None:
    spec = make_spec(4)
    replay = ReplayConfig(capacity=64).build(spec, gamma=0.9, seed=7, device=CPU)
    stream = Stream(spec, 0, 0.1)
    for _ in range(10):
        replay.append(stream.step())
    u = torch.rand(2, 50, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    assert torch.equal(replay.sample(50).row_id, (u[0] * 10).long() * 4 + (u[1] * 4).long())


def test_same_seed_same_rows() -> None:
    spec = make_spec(4)
    made = [ReplayConfig(capacity=64).build(spec, gamma=0.9, seed=s, device=CPU) for s in (1, 1, 2)]
    for replay in made:
        stream = Stream(spec, 0, 0.1)
        for _ in range(10):
            replay.append(stream.step())
    a, b, c = (replay.sample(50).row_id.tolist() for replay in made)
    assert a == b != c


@pytest.mark.parametrize(
    ("vec_steps", "share", "newest"), [(11, 0.25, 2), (3, 0.01, 1), (8, 1.0, 8)]
)
def test_the_newest_rows_are_drawn_apart(vec_steps: int, share: float, newest: int) -> None:
    """Of 8 lines at most, so many come last; what is learned from stays the same."""
    spec = make_spec(4)
    made = [ReplayConfig(capacity=32).build(spec, gamma=0.9, seed=7, device=CPU) for _ in range(2)]
    for replay in made:
        stream = Stream(spec, 0, 0.1)
        for _ in range(vec_steps):
            replay.append(stream.step())
    rows = made[0].sample_newest(4_000, 3, share).row_id
    assert set(rows.tolist()) == set(range(4 * (vec_steps - newest), 4 * vec_steps))
    assert torch.equal(made[0].sample(50).row_id, made[1].sample(50).row_id)


def test_saved_and_restored() -> None:
    spec = make_spec(3)
    cfg = ReplayConfig(capacity=24, n_step=2, final_share=1.0)
    one, two = (cfg.build(spec, gamma=0.9, seed=s, device=CPU) for s in (0, 5))
    stream = Stream(spec, 0, 0.3)
    for _ in range(13):
        one.append(stream.step())
    one.sample(5)
    state = one.state_dict()
    two.load_state_dict(state)
    fresh = stream.step()
    for replay in (one, two):
        replay.append(fresh)
    first, second = one.sample(64), two.sample(64)
    for a, b in zip(first, second, strict=True):
        if isinstance(a, torch.Tensor):
            assert isinstance(b, torch.Tensor)
            assert torch.equal(a, b)
    assert torch.equal(first.next_obs.actor, second.next_obs.actor)


def test_bf16_takes_at_most_two_sevenths_of_storing_observations_twice() -> None:
    spec = make_spec(64, obs_shape=(17,), action=Continuous(6), episode_length=1000)
    replay = ReplayConfig(capacity=64_000, storage="bf16").build(
        spec, gamma=0.99, seed=0, device=CPU
    )
    names = ("obs.actor", "final_obs.actor", "entry", "final_owner")
    kept = sum(replay.ring.tensors()[k].nbytes for k in names)
    assert kept * 3.5 <= 64_000 * 17 * 4 * 2


def test_capacity_in_gib_and_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = make_spec(16, obs_shape=(60,))
    cfg = ReplayConfig(capacity_gib=0.01)
    assert 0.0095 * GIB < cfg.bytes(spec) <= 0.0101 * GIB
    with pytest.raises(
        UserError, match=r"needs .* GiB .* but only .*: use --replay\.capacity \d+\.$"
    ):
        ReplayConfig(capacity=10**12).build(spec, gamma=0.9, seed=0, device=CPU)
    tight = ReplayConfig(capacity=16_000).bytes(spec) - 1
    monkeypatch.setattr("fleetfoot.replay.replay.free_bytes", lambda device: tight)
    with pytest.raises(
        UserError, match=r"--replay\.storage bf16 \(.* GiB\), or --replay\.capacity"
    ):
        ReplayConfig(capacity=16_000).build(spec, gamma=0.9, seed=0, device=CPU)
    with pytest.raises(UserError, match=r"raise --replay\.capacity"):
        ReplayConfig(capacity=20, n_step=3).build(spec, gamma=0.9, seed=0, device=CPU)
