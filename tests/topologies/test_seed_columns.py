from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetfoot.data import Continuous, Discrete, EnvSpec, Obs, Transition
from fleetfoot.replay.ring import TRUNCATED, Ring
from fleetfoot.topologies.multi_seed.columns import put_columns, put_finals, take_columns

CPU = torch.device("cpu")


def ring(columns: int, rows: int, share: float, privileged: bool) -> Ring:
    critic: dict[str, Any] = {"critic_shape": (5,), "critic_prefix": 2} if privileged else {}
    spec = EnvSpec("some", columns, obs_shape=(3,), action=Continuous(2), device=CPU, **critic)
    return Ring(spec, rows, compact=False, final_share=share, device=CPU)


def vec_step(columns: int, privileged: bool, generator: torch.Generator) -> Transition:
    def draw(*shape: int) -> torch.Tensor:
        return torch.rand(columns, *shape, generator=generator)

    def obs() -> Obs:
        actor = draw(3)
        return Obs(actor, torch.cat([actor[:, :2], draw(3)], 1) if privileged else actor)

    ended = draw()
    return Transition(
        obs(), draw(2), draw(), ended < 0.2, (ended >= 0.2) & (ended < 0.4), obs(), {}
    )


def some(step: Transition, first: int, width: int) -> Transition:
    def cut(x: torch.Tensor) -> torch.Tensor:
        return x[first : first + width]

    def seen(obs: Obs) -> Obs:
        actor = cut(obs.actor)
        return Obs(actor, actor if obs.critic is obs.actor else cut(obs.critic))

    return Transition(
        seen(step.obs),
        cut(step.action),
        cut(step.reward),
        cut(step.terminated),
        cut(step.truncated),
        seen(step.next_obs),
        {},
    )


def read(ring: Ring, first: int, width: int) -> list[torch.Tensor]:
    """Everything that can be read of some columns, one after the other."""
    age, column = torch.meshgrid(
        torch.arange(ring.size), torch.arange(first, first + width), indexing="ij"
    )
    age, column = age.flatten(), column.flatten()
    at = ring.address(age, column)
    ends = ring.ends[at]
    obs, whole = ring.obs_at(age, column)
    following, exact = ring.next_obs_at(age, column, ends > 0)
    names = ring.row_id(age, column) // ring.columns
    seen = [obs.actor, obs.critic, following.actor, following.critic]
    return [*seen, whole, exact, ends, ring.reward[at], ring.action[at], names]


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> None:
    for a, b in zip(one, other, strict=True):
        assert torch.equal(a, b)


@settings(max_examples=60, deadline=None)
@given(
    parts=st.integers(1, 3),
    width=st.integers(1, 3),
    rows=st.integers(1, 6),
    steps=st.integers(0, 20),
    more=st.integers(0, 12),
    privileged=st.booleans(),
    seed=st.integers(0, 999),
)
def test_columns_of_a_ring_are_the_ring_they_would_be_alone(
    parts: int, width: int, rows: int, steps: int, more: int, privileged: bool, seed: int
) -> None:
    """With room for every last observation: taken apart, put together, and written to after that."""
    generator = torch.Generator().manual_seed(seed)
    whole = ring(parts * width, rows, 1.0, privileged)
    alone = [ring(width, rows, 1.0, privileged) for _ in range(parts)]

    def go_on(count: int, into: list[Ring]) -> None:
        for _ in range(count):
            step = vec_step(parts * width, privileged, generator)
            whole.append(step)
            for each in into:
                each.append(step)
            for at, own in enumerate(alone):
                own.append(some(step, at * width, width))

    go_on(steps, [])
    again = ring(parts * width, rows, 1.0, privileged)
    finals = []
    for at, own in enumerate(alone):
        first = at * width
        same(read(whole, first, width), read(own, 0, width))
        state = take_columns(whole, first, width, own.finals)
        copy = ring(width, rows, 1.0, privileged)
        copy.load_state_dict(state)
        same(read(copy, 0, width), read(own, 0, width))
        # What was saved by a ring alone fits as well.
        stored = own.state_dict() if at % 2 else state
        finals.append(put_columns(again, first, width, stored))
    put_finals(again, finals)
    go_on(more, [again])
    for at, own in enumerate(alone):
        same(read(again, at * width, width), read(own, 0, width))


def test_columns_with_stacks_of_frames_are_the_ring_they_would_be_alone() -> None:
    """Every frame is unlike all others, and wherever an episode begins those before it are blank."""
    generator = torch.Generator().manual_seed(0)

    def stacks(columns: int) -> Ring:
        shape = {"obs_shape": (3, 2, 2), "frame_stack": 3, "obs_dtype": torch.uint8}
        spec = EnvSpec("frames", columns, action=Discrete(4), device=CPU, **shape)  # type: ignore[arg-type]
        return Ring(spec, 6, compact=False, final_share=1.0, device=CPU)

    whole, alone = stacks(4), [stacks(2), stacks(2)]
    obs = torch.zeros(4, 3, 2, 2, dtype=torch.uint8)
    for _ in range(11):
        frame = torch.randint(1, 256, (4, 1, 2, 2), dtype=torch.uint8, generator=generator)
        following = torch.cat([obs[:, 1:], frame], 1)
        ended = torch.rand(4, generator=generator) < 0.3
        never = torch.zeros_like(ended)
        action = torch.randint(4, (4,), generator=generator)
        step = Transition(
            Obs(obs, obs), action, action.float(), never, ended, Obs(following, following), {}
        )
        whole.append(step)
        for number, ring_alone in enumerate(alone):
            ring_alone.append(some(step, 2 * number, 2))
        first = torch.cat([torch.zeros_like(obs[:, 1:]), frame.flip(0)], 1)
        obs = torch.where(ended.view(-1, 1, 1, 1), first, following)
    again, finals = stacks(4), []
    for number, ring_alone in enumerate(alone):
        state = take_columns(whole, 2 * number, 2, ring_alone.finals)
        copy = stacks(2)
        copy.load_state_dict(state)
        same(read(copy, 0, 2), read(ring_alone, 0, 2))
        assert read(copy, 0, 2)[0].any()
        finals.append(put_columns(again, 2 * number, 2, state))
    put_finals(again, finals)
    same(read(again, 0, 4), read(whole, 0, 4))


def test_where_room_is_short_the_newest_last_observations_stay() -> None:
    generator = torch.Generator().manual_seed(0)
    whole = ring(4, 30, 1.0, False)
    for _ in range(60):
        whole.append(vec_step(4, False, generator))
    copy = ring(2, 30, 0.1, False)
    assert copy.finals == 6
    copy.load_state_dict(take_columns(whole, 2, 2, copy.finals))
    exact, ends = read(copy, 0, 2)[5:7]
    truncated = (ends == TRUNCATED).nonzero().flatten()
    assert len(truncated) > 8
    assert exact[truncated].tolist() == [False] * (len(truncated) - 6) + [True] * 6


def test_rings_that_are_not_equally_full_are_refused() -> None:
    generator = torch.Generator().manual_seed(0)
    one, other, whole = ring(1, 5, 1.0, False), ring(1, 5, 1.0, False), ring(2, 5, 1.0, False)
    one.append(vec_step(1, False, generator))
    finals = [put_columns(whole, at, 1, each.state_dict()) for at, each in enumerate((one, other))]
    with pytest.raises(ValueError, match="not equally full"):
        put_finals(whole, finals)
