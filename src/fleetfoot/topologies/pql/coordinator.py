"""Who asks PQL's three processes for their rounds and keeps the books: which round is next, with which versions of the
weights, and what becomes of rounds whose process was lost. `split_on_ray.py` tells the whole."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from fleetfoot import checkpoint
from fleetfoot.agents.contract import ActorCritic, every
from fleetfoot.log import Log, Totals, added
from fleetfoot.log.split import TimeSplit
from fleetfoot.recipe import Recipe, Result
from fleetfoot.run.clock import Clock
from fleetfoot.run.folder import write_spec
from fleetfoot.run.journal import Bookkeeping
from fleetfoot.topologies.pql.exchange import copy_flat_
from fleetfoot.topologies.pql.gate import Gate
from fleetfoot.topologies.pql.halves import in_halves, policy_weights, statistics
from fleetfoot.topologies.pql.loop import STAGES, SplitLearnersConfig
from fleetfoot.topologies.pql.processes import WAIT_SECONDS, Stages
from fleetfoot.topologies.pql.workers import Told
from fleetfoot.topologies.ray.cluster import cause, to_tensors

CPU = torch.device("cpu")
AHEAD = 2  # rounds asked of a process at once
OBJECTS = {"actor": 3, "critic": 3, "policy": 2}  # that a round returns


@dataclass(eq=False)
class Block:
    """One vec step, in the object store."""

    seen: Any
    rest: Any
    follows: bool  # from the vec step before
    policy_owed: int = 0  # policy updates that are due with it


@dataclass(eq=False)
class Round:
    """What was asked of one of the three and is not finished."""

    blocks: list[Block]
    owed: int = 0
    number: int = 0  # of the version whose lag is measured
    objects: list[Any] = field(default_factory=list)  # that it returns


@dataclass(kw_only=True)
class RaySplitRun(Bookkeeping):
    """The coordinator: counts rounds, asks for the next ones, and keeps the books."""

    cfg: SplitLearnersConfig
    stages: Stages
    policy_updates: int = 0

    def __post_init__(self) -> None:
        self.halves: ActorCritic = in_halves(self.agent)
        warmup = self.recipe.pace.warmup_vec_steps
        self.gate = Gate(STAGES, lead=self.cfg.lead, free_after=warmup if self.cfg.free else None)
        self.open: dict[str, deque[Round]] = {stage: deque() for stage in STAGES}
        self.collected: deque[Block] = deque()  # for the critic learner
        self.appended: deque[Block] = deque()  # by it, for the policy learner
        self.cut = False  # the next vec step does not follow from the last one
        self.stop_at = 0  # vec steps
        self.chunk = max(1, int(self.recipe.pace.updates_per_vec_step))  # updates of a free round
        self.climbs = False  # the policy learner has something to climb
        self.asked_updates = 0  # of the critics, so far
        self.compiles: list[tuple[float, float]] = []  # when a process compiled
        self.told: list[Totals] = []
        self.tallied = (0, 0, 0)  # vec steps and updates when the log was last read

    @staticmethod
    def of(
        recipe: Recipe, folder: Path, state: dict[str, Any] | None, stages: Stages
    ) -> RaySplitRun:
        assert isinstance(recipe.topology, SplitLearnersConfig)
        spec = stages.start(state)
        run = RaySplitRun(
            recipe=recipe,
            folder=folder,
            device=CPU,
            agent=recipe.build_agent(replace(spec, device=CPU), CPU, total_updates=1),
            pace=recipe.pace.build(),
            log=Log([]),
            checkpoint=recipe.checkpoint.build(folder / "checkpoints"),
            clock=Clock(),
            split=TimeSplit(CPU),
            cfg=recipe.topology,
            stages=stages,
        )
        if state is not None:
            run.load_state_dict(state)
            state.pop("replay", None)  # the learners have it
        run.tallied = (run.vec_steps, run.updates, run.policy_updates)
        run.log = run.open_log(resumed=state is not None)
        write_spec(folder, spec)
        run.log.merge = lambda totals: added([totals, *run.told])
        run.clock.restart(run.clock.before)  # starting processes is no training
        return run

    def next_stop(self) -> int:
        """The next vec step after which the books are kept."""
        recipe, log = self.recipe, self.log
        every = (recipe.evaluation.every_vec_steps, recipe.checkpoint.every_vec_steps)
        return self.next_of(*every, log.every_vec_steps)

    def still(self) -> bool:
        """Have all come to `stop_at`, with nothing left to do?"""
        level = self.cfg.free or not (self.collected or self.appended)
        return self.vec_steps >= self.stop_at and level and not any(self.open.values())

    def work(self) -> None:
        """Ask for all rounds that may be asked for, then take in those that are finished."""
        self.gate.held = self.vec_steps >= self.stop_at
        for stage in STAGES:
            rounds = self.open[stage]
            while len(rounds) < AHEAD and self.may_ask(stage):
                rounds.append(self.next_round(stage))
                self.ask(stage, rounds[-1])
        first = {rounds[0].objects[0]: stage for stage, rounds in self.open.items() if rounds}
        ready, _ = self.stages.ray.wait(list(first), num_returns=len(first), timeout=0)
        if not ready:
            ready, _ = self.stages.ray.wait(list(first), num_returns=1, timeout=WAIT_SECONDS)
        for ref in ready:
            self.take(first[ref])

    def may_ask(self, stage: str) -> bool:
        asked = len(self.open[stage])
        if stage == "actor" and self.vec_steps + asked >= self.stop_at:
            return False
        return self.gate.may_begin(stage, asked)

    def next_round(self, stage: str) -> Round:
        most = None if self.cfg.free else 1
        if stage == "actor":
            return Round([])
        if stage == "critic":
            blocks = taken(self.collected, most)
            owed = sum(self.pace.owed() for _ in blocks)
            begun = owed + self.asked_updates > 0 and self.pace.held_vec_steps == 0
            owed = self.chunk if self.cfg.free and begun else owed
            due = every(self.halves.policy_every, self.asked_updates, owed)
            self.asked_updates += owed
            if blocks:
                blocks[0].policy_owed = sum(due)
            return Round(blocks, owed)
        blocks = taken(self.appended, most)
        owed = sum(block.policy_owed for block in blocks)
        self.climbs = self.climbs or owed > 0
        if self.cfg.free and self.climbs:
            owed = max(1, self.chunk // self.halves.policy_every)
        return Round(blocks, owed)

    def ask(self, stage: str, each: Round) -> None:
        """Have a round made, with the newest versions."""
        stages, blocks = self.stages, each.blocks
        handle, objects = stages.handles[stage], OBJECTS[stage]
        each.number = stages.versions["critic" if stage == "policy" else "policy"].version
        if stage == "actor":
            call = handle.collect.options(num_returns=objects)
            each.objects = call.remote(*stages.newest("policy", "statistics"))
            return
        call = handle.round.options(num_returns=objects)
        if stage == "critic":
            lines = [part for block in blocks for part in (block.seen, block.rest)]
            follows = [block.follows for block in blocks]
            each.objects = call.remote(each.owed, follows, *stages.newest("policy"), *lines)
        else:
            seen = [block.seen for block in blocks]
            each.objects = call.remote(each.owed, *stages.newest("critic", "statistics"), *seen)

    def take(self, stage: str) -> None:
        """Take in a round that is finished, or lost."""
        each = self.open[stage][0]
        try:
            seconds = self.stages.ray.get(each.objects[0])
        except Exception as error:
            self.lost(stage, error)
            return
        self.open[stage].popleft()
        self.gate.finish(stage)
        now = time.perf_counter()
        if seconds > 0:
            self.compiles.append((now - seconds, now))
        self.finished(stage, each)

    def finished(self, stage: str, each: Round) -> None:
        stages = self.stages
        if stage == "actor":
            self.vec_steps += 1
            _, seen, rest = each.objects
            self.collected.append(Block(seen, rest, follows=not self.cut))
            self.cut = False
            lag = {"split/acting_policy_lag": stages.versions["policy"].version - each.number}
        elif stage == "critic":
            lag = {
                "split/critic_learner_policy_lag": stages.versions["policy"].version - each.number
            }
            self.updates += each.owed
            stages.publish("critic", each.objects[1])
            stages.publish("statistics", each.objects[2])
            self.appended.extend(each.blocks)
        else:
            lag = {
                "split/policy_learner_critic_lag": stages.versions["critic"].version - each.number
            }
            self.policy_updates += each.owed
            if each.owed:
                stages.publish("policy", each.objects[1])
        self.log.add({name: float(versions) for name, versions in lag.items()})

    def lost(self, stage: str, error: Exception) -> None:
        """Replace a process, and ask it for the rounds that the lost one had not finished."""
        if objects_lost(self.stages.ray, error):  # with another machine; the process itself lives
            self.stages.check_versions()
            if stage != "actor":
                self.open[stage][0].blocks = []
                self.break_off()
            self.ask(stage, self.open[stage][0])
            return
        self.stages.note(stage, error)
        self.stages.check_versions()
        if stage == "actor":
            self.open[stage].clear()
            self.cut = True
            self.stages.start_one(stage, None, self.vec_steps, self.updates)
            return
        state = self.last_checkpoint()
        if state is None or "replay" not in state:
            self.fill_again(stage)
        if stage == "critic":
            self.break_off()
        self.stages.start_one(stage, state, self.vec_steps, self.updates)
        for each in self.open[stage]:
            self.ask(stage, each)

    def last_checkpoint(self) -> dict[str, Any] | None:
        if not (self.folder / "checkpoints" / "last.json").exists():
            return None
        return checkpoint.load(self.folder).state

    def break_off(self) -> None:
        """The next vec step that the critic learner appends does not follow from the last one it has."""
        asked = [block for each in self.open["critic"] for block in each.blocks]
        if coming := [*asked, *self.collected]:
            coming[0].follows = False
        else:
            self.cut = True

    def fill_again(self, stage: str) -> None:
        """A learner has lost what it remembered: nobody learns for a warm-up, and that is not made up for."""
        self.pace.hold(self.recipe.pace.warmup_vec_steps)
        self.climbs = False
        if stage == "critic":
            self.asked_updates -= sum(each.owed for each in self.open["critic"])
        for each in self.open[stage]:
            each.owed = 0
        asked = [block for each in self.open["critic"] for block in each.blocks]
        for block in (*asked, *self.appended):
            block.policy_owed = 0

    def take_turns(self) -> None:
        """One vec step and its updates, one after the other and each with the newest version."""
        self.make("actor", Round([]))
        self.make("critic", Round(taken(self.collected, 1)))
        self.make("policy", Round(taken(self.appended, 1)))
        for _ in range(self.pace.owed()):
            self.make("critic", Round([], 1))
            if self.updates % self.halves.policy_every == 0:
                self.make("policy", Round([], 1))
            else:
                self.question("policy", "pass_by")

    def make(self, stage: str, each: Round) -> None:
        """Have one round made, and wait for it. No others may be open."""
        self.open[stage].append(each)
        self.ask(stage, each)
        while self.open[stage]:
            self.take(stage)

    def catch_up(self) -> None:
        """Have the learners take in what is on its way: nothing, unless they run free."""
        if self.collected:
            for _ in self.collected:
                self.pace.owed()
            self.make("critic", Round(taken(self.collected, None)))
        if self.appended:
            self.make("policy", Round(taken(self.appended, None)))

    def question(
        self, stage: str, method: str, versions: tuple[str, ...] = (), more: tuple[Any, ...] = ()
    ) -> Any:
        """What one of the three answers; while all stand still."""
        stages = self.stages
        while True:
            call = getattr(stages.handles[stage], method)
            try:
                return stages.ray.get(call.remote(*stages.newest(*versions), *more))
            except Exception as error:
                if objects_lost(stages.ray, error):
                    stages.check_versions()
                else:
                    self.lost(stage, error)

    def flush_counters(self) -> None:
        told: dict[str, Told] = {stage: self.question(stage, "tell") for stage in STAGES}
        self.told = [each.totals for each in told.values()]
        now = (self.vec_steps, self.updates, self.policy_updates)
        steps, critic, policy = (a - b for a, b in zip(now, self.tallied, strict=True))
        self.tallied = now
        for stage, each in told.items():
            self.log.add({f"split/{stage}_wait_ms": 1e3 * each.waited / max(1, steps)})
            prefix = "time/policy_" if stage == "policy" else "time/"
            self.log.add({k.replace("time/", prefix, 1): v for k, v in each.times.items()})
        if critic > 0 and steps > 0:
            self.log.add({"split/critic_updates_per_vec_step": critic / steps})
            self.log.add({"split/policy_updates_per_critic_update": policy / critic})
        self.log.add({"split/restarts": float(self.stages.restarts.count)})
        seconds = covered(self.compiles)
        self.clock.forget(seconds)
        self.compile_seconds += seconds
        self.compiles.clear()

    def evaluate(self) -> dict[str, float]:
        metrics: dict[str, float] = self.question("actor", "evaluate", ("policy", "statistics"))
        return metrics

    def state_dict(self) -> dict[str, Any]:
        return self._state(with_replay=True)

    def state_without_replay(self) -> dict[str, Any]:
        return self._state(with_replay=False)

    def _state(self, *, with_replay: bool) -> dict[str, Any]:
        """Of the same form as in one process."""
        critic = self.question("critic", "state_dict", ("policy",), (with_replay,))
        policy = self.question("policy", "state_dict", (), (with_replay,))
        actor = self.question("actor", "state_dict")
        theirs = actor | {"agent": critic["agent"] | policy["agent"]}
        if with_replay:
            theirs["replay"] = critic["replay"] | {"observations": policy["observations"]}
        mine = super().state_dict() | {"owed": 0, "policy_updates": self.policy_updates}
        state: dict[str, Any] = mine | to_tensors(theirs)
        return state

    def _load(self, state: dict[str, Any]) -> None:
        super()._load(state)
        self.policy_updates, self.asked_updates = state["policy_updates"], state["updates"]
        self.cut = state["env"] is None  # the simulator began anew

    def result(self, finished: bool) -> Result:
        newest = {name: self.stages.ray.get(v.ref) for name, v in self.stages.versions.items()}
        copy_flat_(policy_weights(self.halves), newest["policy"])
        copy_flat_(statistics(self.halves), newest["statistics"])
        return super().result(finished)


def taken(blocks: deque[Block], most: int | None) -> list[Block]:
    """The first blocks, `most` of them or (None) all."""
    count = len(blocks) if most is None else min(most, len(blocks))
    return [blocks.popleft() for _ in range(count)]


def covered(spans: list[tuple[float, float]]) -> float:
    """Seconds that lie in at least one of the spans (begin, end)."""
    seconds, until = 0.0, float("-inf")
    for begin, end in sorted(spans):
        seconds += max(0.0, end - max(begin, until))
        until = max(until, end)
    return seconds


def objects_lost(ray: Any, error: BaseException) -> bool:
    """Is this the loss of something that the process asked needs, and not of that process?"""
    kind = ray.exceptions.ObjectLostError
    return isinstance(error, kind) or isinstance(cause(error), kind)
