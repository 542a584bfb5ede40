"""The gate between actor, critic learner and policy learner: by counting, and without a clock."""

from __future__ import annotations

import heapq

import pytest

from fleetfoot.topologies.pql.gate import Gate

STAGES = ("actor", "critic", "policy")


def simulate(
    costs: tuple[float, float, float], rounds: int, lead: int = 2
) -> tuple[Gate, dict[str, float]]:
    """Let the three work, each round at a fixed cost, until the actor has made so many: the gate, and how long each
    waited. Time is a number here."""
    gate = Gate(STAGES, lead=lead)
    cost = dict(zip(STAGES, costs, strict=True))
    waits, idle_since = dict.fromkeys(STAGES, 0.0), dict.fromkeys(STAGES, 0.0)
    idle, now, ends = set(STAGES), 0.0, list[tuple[float, str]]()
    while gate.finished["actor"] < rounds:
        for stage in STAGES:
            if stage in idle and gate.may_begin(stage):
                idle.remove(stage)
                waits[stage] += now - idle_since[stage]
                heapq.heappush(ends, (now + cost[stage], stage))
        now, stage = heapq.heappop(ends)
        gate.finish(stage)
        idle.add(stage)
        idle_since[stage] = now
        a, v, p = (gate.finished[name] for name in STAGES)
        assert p <= v <= a
        assert a - v <= lead
        assert v - p <= lead
    return gate, waits


# Milliseconds of a vec step, of its 8 critic updates and of its 4 policy updates.
BALANCED, SLOW_ACTOR, SLOW_CRITIC, SLOW_POLICY = (
    (10.0, 8 * 1.0, 4 * 0.5),
    (100.0, 8 * 1.0, 4 * 0.5),
    (1.0, 8 * 1.0, 4 * 0.5),
    (1.0, 8 * 1.0, 4 * 10.0),
)


@pytest.mark.parametrize("costs", [BALANCED, SLOW_ACTOR, SLOW_CRITIC, SLOW_POLICY])
def test_ratios_hold_whoever_is_slow(costs: tuple[float, float, float]) -> None:
    gate, _ = simulate(costs, 300)
    a, v, p = (gate.finished[name] for name in STAGES)
    assert 8 * v / a == pytest.approx(8, rel=0.05)
    assert 4 * p / (8 * v) == pytest.approx(1 / 2, rel=0.05)


@pytest.mark.parametrize(
    ("costs", "slowest"),
    [(SLOW_ACTOR, "actor"), (BALANCED, "actor"), (SLOW_CRITIC, "critic"), (SLOW_POLICY, "policy")],
)
def test_the_slowest_never_waits(costs: tuple[float, float, float], slowest: str) -> None:
    """But for its first round, for which there is nothing before the others have made theirs."""
    _, waits = simulate(costs, 300)
    assert waits[slowest] <= costs[0] + costs[1]
    assert all(waits[name] > 100 for name in STAGES if name != slowest)


def test_with_a_fast_simulator_the_actor_waits_and_the_critic_learner_does_not() -> None:
    _, waits = simulate(SLOW_CRITIC, 300)
    assert waits["critic"] == SLOW_CRITIC[0]  # for the first vec step
    assert waits["actor"] > 290 * (8 - 1)


def test_with_a_lead_of_one_actor_and_critic_learner_take_turns() -> None:
    _, waits = simulate((3.0, 5.0, 1.0), 100, lead=1)
    assert waits["actor"] == pytest.approx(99 * 5.0)
    assert waits["critic"] == pytest.approx(100 * 3.0, rel=0.02)


def test_free_stages_wait_for_nobody_after_the_warm_up() -> None:
    gate = Gate(STAGES, lead=2, free_after=3)
    for _ in range(3):
        gate.finish("actor")
        assert gate.may_begin("actor")
    assert gate.may_begin("critic")
    gate.finish("critic", vec_steps=3)
    assert not gate.may_begin("critic")  # no data beyond what it has
    gate.finish("actor")
    gate.finish("critic")
    for _ in range(10):
        assert gate.may_begin("critic")
        gate.finish("critic", vec_steps=0)


def test_rounds_begun_ahead_count() -> None:
    gate = Gate(STAGES, lead=2)
    assert gate.may_begin("actor", begun=1)
    assert not gate.may_begin("actor", begun=2)
    gate.finish("actor", vec_steps=2)
    assert not gate.may_begin("actor")
    assert gate.may_begin("critic", begun=1)
    assert not gate.may_begin("critic", begun=2)
    assert not gate.may_begin("policy")
