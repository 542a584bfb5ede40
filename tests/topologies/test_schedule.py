"""Which round each stage makes next, and the stages alone: without threads and without Ray."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fleetfoot.errors import UserError
from fleetfoot.pace import PaceConfig
from fleetfoot.topologies.pql.exchange import Order, Setup, Versions
from fleetfoot.topologies.pql.schedule import Round, Schedule
from fleetfoot.topologies.pql.stages import Actor, CriticLearner, PolicyLearner, Stage
from support.runs import short

CPU = torch.device("cpu")


def schedule(**changes: Any) -> Schedule:
    """8 critic updates per vec step, after two vec steps of warm-up; 1 policy update for 2 of these."""
    pace = PaceConfig(updates_per_vec_step=8, warmup_vec_steps=2).build()
    return Schedule(pace, **({"lead": 2, "free": False, "policy_every": 2} | changes))


def begin(plan: Schedule, stage: str, ahead: int = 1) -> Round:
    planned = plan.next_round(stage, ahead)
    assert planned is not None
    return planned


def through(plan: Schedule, vec_steps: int) -> list[tuple[str, int]]:
    """Let each stage in turn make the rounds that it may begin; returns them with their updates."""
    plan.stop_at += vec_steps
    made = []
    while not plan.idle():
        for stage in ("actor", "critic", "policy"):
            if (planned := plan.next_round(stage, 1)) is not None:
                plan.finish(planned, data=f"vec step {plan.counts['actor']}")
                made.append((stage, planned.amount))
    return made


def test_every_vec_step_passes_through_all_three_and_owes_its_updates() -> None:
    plan = schedule()
    warmup = [("actor", 1), ("critic", 0), ("policy", 0)]
    learning = [("actor", 1), ("critic", 8), ("policy", 4)]
    assert through(plan, 4) == 2 * warmup + 2 * learning
    assert plan.counts == {"actor": 4, "critic": 16, "policy": 8}
    assert plan.gate.finished == {"actor": 4, "critic": 4, "policy": 4}


def test_a_vec_step_goes_to_both_learners_as_it_is() -> None:
    plan = schedule()
    plan.stop_at = 1
    plan.finish(begin(plan, "actor"), data="the vec step")
    assert plan.next_round("actor", 1) is None
    for stage in ("critic", "policy"):
        planned = begin(plan, stage)
        assert [block.data for block in planned.blocks] == ["the vec step"]
        assert planned.order() == Order(0, (True,))
        plan.finish(planned)
    assert plan.idle()


def test_rounds_are_begun_ahead_within_the_lead() -> None:
    plan = schedule()
    plan.stop_at = 10
    rounds = [begin(plan, "actor", 2), begin(plan, "actor", 2)]
    assert plan.next_round("actor", 3) is None  # the lead
    for planned in rounds:
        plan.finish(planned)
    assert plan.next_round("actor", 2) is None
    plan.finish(begin(plan, "critic"))
    begin(plan, "actor")


def test_ctrl_c_lets_what_was_begun_be_finished() -> None:
    plan = schedule()
    plan.stop_at = 100
    begun = begin(plan, "actor", 2)
    plan.stop_soon()
    assert plan.next_round("actor", 2) is None
    plan.finish(begun)
    assert not plan.idle()
    plan.finish(begin(plan, "critic"))
    plan.finish(begin(plan, "policy"))
    assert plan.idle()


def test_free_learners_learn_without_new_data_until_the_stop() -> None:
    plan = schedule(free=True)
    plan.stop_at = 5
    for _ in range(4):
        plan.finish(begin(plan, "actor"))
    for _ in range(3):
        plan.finish(begin(plan, "critic"))
        plan.finish(begin(plan, "policy"))
    assert plan.counts == {"actor": 4, "critic": 24, "policy": 12}
    plan.finish(begin(plan, "actor"))
    assert plan.next_round("critic", 1) is None
    assert plan.idle()
    settling = []
    for planned in plan.settle():
        settling.append((planned.stage, planned.amount, len(planned.blocks)))
        plan.finish(planned)
    assert settling == [("critic", 0, 1), ("policy", 0, 1), ("actor", 0, 0)]
    assert plan.pace.vec_steps == 5


def test_after_a_loss_the_next_vec_step_appended_does_not_follow() -> None:
    plan = schedule()
    plan.stop_at = 3
    plan.finish(begin(plan, "actor"))
    opened = begin(plan, "critic")
    plan.mark_break()
    assert opened.order().follows == (False,)
    plan.finish(opened)
    plan.mark_break()  # nothing is on its way
    plan.finish(begin(plan, "actor"))
    assert begin(plan, "critic").order().follows == (False,)


def test_a_memory_that_is_lost_fills_again_before_anybody_learns() -> None:
    plan = schedule()
    through(plan, 4)
    plan.stop_at += 3
    plan.finish(begin(plan, "actor"))
    assert begin(plan, "critic").amount == 8
    plan.refill("critic")
    (asked_again,) = plan.open["critic"]
    plan.finish(asked_again)
    plan.finish(begin(plan, "policy"))
    assert plan.counts == {"actor": 5, "critic": 16, "policy": 8}
    made = through(plan, 1)
    assert [updates for stage, updates in made if stage == "critic"] == [0, 0, 8]
    assert [updates for stage, updates in made if stage == "policy"] == [0, 0, 4]


def stages() -> tuple[Actor, CriticLearner, PolicyLearner]:
    recipe = short("pql/pendulum")
    actor = Actor(recipe, CPU, Setup())
    setup = Setup(actor.spec)
    return actor, CriticLearner(recipe, CPU, setup), PolicyLearner(recipe, CPU, setup)


def copies(stage: Stage, name: str) -> list[torch.Tensor]:
    return [weight.clone() for weight in stage.weights(name)]


def same(one: list[torch.Tensor], two: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def test_a_round_changes_what_the_stage_publishes_and_nothing_else() -> None:
    """The three by hand: weights are handed over by versions alone."""
    actor, critic, policy = stages()
    versions = {
        name: Versions(stage.weights(name)) for stage in (critic, policy) for name in stage.writes
    }

    def make(stage: Stage, order: Order, *vec_steps: Any) -> Any:
        before = {name: copies(stage, name) for name in stage.writes}
        outcome = stage.round(order, versions, [stage.select(fresh) for fresh in vec_steps])
        for name in outcome.changed:
            versions[name].publish()
        return outcome, {n for n in stage.writes if not same(before[n], copies(stage, n))}

    for number in range(20):
        fresh = make(actor, Order(1))[0].fresh
        outcome, changed = make(critic, Order(0, (True,)), fresh)
        first = number == 0  # then all weights are published, changed or not
        assert outcome.changed == (("critic", "statistics") if first else ("statistics",))
        assert changed == {"statistics"}
        outcome, changed = make(policy, Order(0, (True,)), fresh)
        assert outcome.changed == (("policy",) if first else ())
        assert not changed
    assert critic.replay.size == policy.observations.written * 8 == 160
    outcome, changed = make(critic, Order(2))
    assert (outcome.changed, changed, critic.agent.updates) == (("critic",), {"critic"}, 2)
    assert not same(critic.weights("critic"), policy.weights("critic"))
    outcome, changed = make(policy, Order(1))
    assert (outcome.changed, changed) == (("policy",), {"policy"})
    assert outcome.used == {"critic": versions["critic"].number, "statistics": 20}
    assert same(critic.weights("critic"), policy.weights("critic"))
    assert not same(actor.weights("policy"), policy.weights("policy"))
    assert make(actor, Order())[0].fresh is None
    for name, stage in (("policy", policy), ("statistics", critic)):
        assert same(actor.weights(name), stage.weights(name))
    actor.close()


def test_a_skipped_batch_keeps_both_learners_at_the_same_rows() -> None:
    recipe = short("pql/pendulum")
    actor = Actor(recipe, CPU, Setup())
    both = [PolicyLearner(recipe, CPU, Setup(actor.spec, same_rows=True)) for _ in range(2)]
    for learner in both:
        learner.observations.append(actor.env.reset())
    both[0].observations.sample(recipe.batch_size)
    weights = {name: Versions(both[0].weights(name)) for name in ("critic", "statistics")}
    both[1].round(Order(skipped_batches=1), weights)
    drawn = [learner.observations.draw(recipe.batch_size) for learner in both]
    assert all(torch.equal(a, b) for a, b in zip(*drawn, strict=True))
    actor.close()


def test_a_stage_reports_what_it_measured_once() -> None:
    actor, _, _ = stages()
    versions = {name: Versions(actor.weights(name)) for name in actor.reads}
    assert actor.round(Order(1), versions).compile_seconds > 0
    assert actor.round(Order(1), versions).compile_seconds == 0
    report = actor.report()
    assert report.totals["env/reward"][1] == 2
    assert report.times["time/simulate_ms"] > 0
    assert report.waited > 0
    again = actor.report()
    assert "env/reward" not in again.totals
    assert (again.times, again.waited) == ({}, 0.0)
    actor.close()


@pytest.mark.parametrize("stage", ["actor", "critic", "policy"])
def test_what_does_not_fit_is_refused_in_one_line(stage: str) -> None:
    actor, critic, policy = stages()
    built: dict[str, Stage] = {"actor": actor, "critic": critic, "policy": policy}
    with pytest.raises(UserError, match="the checkpoint does not fit this recipe"):
        built[stage].load({})
    actor.close()
