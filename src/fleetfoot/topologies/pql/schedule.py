"""Which round each stage makes next: vec steps handed over, updates owed. It knows neither threads nor Ray."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fleetfoot.agents.contract import every
from fleetfoot.pace import Pace
from fleetfoot.run.journal import State
from fleetfoot.topologies.pql.exchange import Order
from fleetfoot.topologies.pql.gate import Gate
from fleetfoot.topologies.pql.stages import STAGES


@dataclass(eq=False)
class Block:
    """One vec step on its way to the learners."""

    data: Any  # as the transport carries it
    follows: bool  # it continues the vec step before it
    policy_updates: int = 0  # that are due with it


@dataclass(eq=False)
class Round:
    """What a stage is asked to do."""

    stage: str
    amount: int = 0  # vec steps to collect, or updates to make
    blocks: list[Block] = field(default_factory=list)
    skipped_batches: int = 0
    vec_steps: int = 0  # that the gate counts

    def order(self) -> Order:
        return Order(self.amount, tuple(b.follows for b in self.blocks), self.skipped_batches)


class Schedule:
    """Plans rounds and counts them. Rounds of one stage finish in the order in which they began."""

    def __init__(self, pace: Pace, *, lead: int, free: bool, policy_every: int):
        self.pace, self.free, self.policy_every = pace, free, policy_every
        warmup = pace.cfg.warmup_vec_steps
        self.gate = Gate(tuple(STAGES), lead=lead, free_after=warmup if free else None)
        self.open: dict[str, deque[Round]] = {stage: deque() for stage in STAGES}  # not finished
        self.waiting: dict[str, deque[Block]] = {stage: deque() for stage in STAGES}  # for a stage
        self.counts = dict.fromkeys(STAGES, 0)  # vec steps, critic updates, policy updates
        self.planned_updates = 0  # of the critics
        self.policy_started = False  # a policy update has been due
        self.breaks = False  # the next vec step does not continue the last one
        self.stop_at = 0  # vec steps
        self.free_updates = max(1, int(pace.cfg.updates_per_vec_step))  # in a round that is free

    def next_round(self, stage: str, ahead: int) -> Round | None:
        """Begin a stage's next round; None where it has to wait. `ahead`: rounds that it may have open."""
        if len(self.open[stage]) >= ahead or not self._may_begin(stage):
            return None
        plan = {"actor": self._actor, "critic": self._critic, "policy": self._policy}
        return self._begin(plan[stage]())

    def _may_begin(self, stage: str) -> bool:
        begun = sum(opened.vec_steps for opened in self.open[stage])
        if stage == "actor" and self.counts["actor"] + begun >= self.stop_at:
            return False
        if self.free and self.counts["actor"] >= self.stop_at:
            return False
        return self.gate.may_begin(stage, begun)

    def _begin(self, planned: Round) -> Round:
        self.open[planned.stage].append(planned)
        return planned

    def _actor(self) -> Round:
        return Round("actor", amount=1, vec_steps=1)

    def _critic(self) -> Round:
        blocks = self._take("critic")
        updates = sum(self.pace.owed() for _ in blocks)
        started = updates + self.planned_updates > 0 and self.pace.held_vec_steps == 0
        if self.free and started:
            updates = self.free_updates
        if blocks:
            due = every(self.policy_every, self.planned_updates, updates)
            blocks[0].policy_updates = sum(due)
        self.planned_updates += updates
        return Round("critic", updates, blocks, vec_steps=len(blocks))

    def _policy(self) -> Round:
        blocks = self._take("policy")
        updates = sum(block.policy_updates for block in blocks)
        self.policy_started = self.policy_started or updates > 0
        if self.free and self.policy_started:
            updates = max(1, self.free_updates // self.policy_every)
        return Round("policy", updates, blocks, vec_steps=len(blocks))

    def _take(self, stage: str) -> list[Block]:
        """The next vec step; all that wait where rounds are free."""
        blocks = self.waiting[stage]
        return [blocks.popleft() for _ in range(len(blocks) if self.free else min(1, len(blocks)))]

    def turn(self) -> Iterator[Round]:
        """One vec step and its updates, in lockstep: each round must be finished before the next one is taken."""
        yield self._begin(self._actor())
        yield self._begin(Round("critic", blocks=self._take("critic")))
        yield self._begin(Round("policy", blocks=self._take("policy")))
        for _ in range(self.pace.owed()):
            yield self._begin(Round("critic", amount=1))
            due = self.counts["critic"] % self.policy_every == 0
            # Otherwise the policy learner skips a batch, to stay at the rows of the critic learner.
            yield self._begin(Round("policy", amount=int(due), skipped_batches=int(not due)))

    def settle(self) -> Iterator[Round]:
        """Rounds without updates, one after the other, while all stages are idle: nothing is on its way then (before,
        that is so unless rounds are free), and every agent has the newest weights."""
        for _ in self.waiting["critic"]:
            self.pace.owed()
        for stage in ("critic", "policy", "actor"):
            blocks = self._take(stage)
            yield self._begin(Round(stage, blocks=blocks, vec_steps=len(blocks)))

    def finish(self, finished: Round, data: Any = None) -> None:
        """`data`: the vec step that the actor has collected."""
        stage = finished.stage
        self.open[stage].popleft()
        self.gate.finish(stage, finished.vec_steps)
        self.counts[stage] += finished.amount
        if stage == "actor" and finished.amount:
            self.waiting["critic"].append(Block(data, follows=not self.breaks))
            self.breaks = False
        elif stage == "critic":
            self.waiting["policy"].extend(finished.blocks)

    def idle(self) -> bool:
        """Have all stages arrived at `stop_at`, with nothing left to do?"""
        level = self.free or not any(self.waiting.values())
        return level and self.counts["actor"] >= self.stop_at and not any(self.open.values())

    def stop_soon(self) -> None:
        """Begin no further vec step."""
        begun = sum(opened.vec_steps for opened in self.open["actor"])
        self.stop_at = min(self.stop_at, self.counts["actor"] + begun)

    def drop_vec_step(self) -> None:
        """The vec step that the actor was collecting will never come, and no other."""
        self.open["actor"].clear()
        self.stop_at = self.counts["actor"]

    def mark_break(self) -> None:
        """The next vec step that the critic learner appends does not continue the last one that it has."""
        opened = [block for planned in self.open["critic"] for block in planned.blocks]
        if coming := [*opened, *self.waiting["critic"]]:
            coming[0].follows = False
        else:
            self.breaks = True

    def drop_blocks(self, planned: Round) -> None:
        """The vec steps of a round are lost."""
        if planned.blocks:
            planned.blocks = []
            self.mark_break()

    def refill(self, stage: str) -> None:
        """A learner has lost its memory: nobody learns for a warm-up, and that is not made up for."""
        self.pace.hold(self.pace.cfg.warmup_vec_steps)
        self.policy_started = False
        if stage == "critic":
            self.planned_updates -= sum(planned.amount for planned in self.open["critic"])
        for planned in self.open[stage]:
            planned.amount = 0
        opened = [block for planned in self.open["critic"] for block in planned.blocks]
        for block in (*opened, *self.waiting["policy"]):
            block.policy_updates = 0

    def state_dict(self) -> State:
        # Nothing is owed while all are idle; `synchronous` has the same entry.
        counts = {"owed": 0, "policy_updates": self.counts["policy"]}
        return counts | {"pace": self.pace.state_dict()}

    def load_state_dict(self, state: State) -> None:
        self.pace.load_state_dict(state["pace"])
        if "replay" not in state:  # it has to fill again first
            self.pace.hold(self.pace.cfg.warmup_vec_steps)
        counts = state["vec_steps"], state["updates"], state["policy_updates"]
        self.counts = dict(zip(STAGES, counts, strict=True))
        self.planned_updates = state["updates"]
        self.breaks = state["env"] is None  # the simulator starts again


def joined(shares: Mapping[str, State], policy_state: Sequence[str]) -> State:
    """What the stages add to a checkpoint. `policy_state`: what the policy learner's agent alone changes."""
    actor, critic, policy = (shares[stage] for stage in STAGES)
    learned = {name: policy["agent"][name] for name in policy_state}
    state = actor | {"agent": critic["agent"] | learned}
    if "replay" in critic:
        state["replay"] = critic["replay"] | {"observations": policy["observations"]}
    return state


def share_of(stage: str, state: State) -> State:
    """What of a checkpoint a stage loads."""
    if stage == "actor":
        return {name: state[name] for name in ("explorer", "env", "episodes")}
    share = {"agent": state["agent"]}
    if "replay" in state:
        replay = dict(state["replay"])
        observations = replay.pop("observations")
        share |= {"observations": observations} if stage == "policy" else {"replay": replay}
    return share
