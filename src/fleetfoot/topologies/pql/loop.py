"""PQL: an actor, a critic learner and a policy learner, all at the same time.

Li et al. 2023, "Parallel Q-Learning", arXiv 2307.12983. The loop of `synchronous` is cut at *append* and *refresh*, and
the learner between its two updates:

    actor                                 critic learner                      policy learner
      newest policy and statistics          take a vec step; observe, append     take its observations
      act; step the environments            newest policy                        newest critic and statistics
      hand over the vec step                the critic updates owed              the policy updates owed
                                            publish critic and statistics        publish the policy

    stages.py      the three, each with its own agent; versions of weights travel, modules do not
    schedule.py    which round each of them makes next, with which vec steps and how many updates
    threads.py     carries both between threads of one process ...
    on_ray.py      ... or between processes, on one or several machines

One vec step and the updates it calls for are a *round* of each of the three, and `Gate` lets nobody be more than `lead`
rounds ahead of the next: the ratios hold by counting, whoever is slow.

Deviations from the paper's code:

    [1] It measures rates and sleeps; here those who are ahead wait until they are not.
    [2] Weights and data do not travel through the actor. The policy learner gets its observations after the critic
        learner: at most 2 `lead` vec steps old.
    [3] Statistics of observations change with the critic learner's replay, not with the actor.

With `lockstep` the three take turns, update by update, each with the newest version, without any lag. The policy
learner then draws the rows that the critic learner has drawn, and all weights are those of `synchronous`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from fleetfoot import checkpoint
from fleetfoot.agents.contract import ActorCritic, Agent
from fleetfoot.config import at_least, part
from fleetfoot.data import EnvSpec
from fleetfoot.errors import Halted, UserError
from fleetfoot.log import Log, Totals, added
from fleetfoot.recipe import Recipe, Result
from fleetfoot.replay.samplers import UniformConfig
from fleetfoot.run.interrupt import Interrupt
from fleetfoot.run.journal import Journal, State
from fleetfoot.run.loading import fitting
from fleetfoot.topologies.pql.exchange import Outcome, Report, Version
from fleetfoot.topologies.pql.schedule import Round, Schedule, joined
from fleetfoot.topologies.pql.stages import STAGES
from fleetfoot.topologies.pql.threads import InProcessConfig

LAGS = {  # of each stage: the metric, and the weights whose age it measures
    "actor": ("split/acting_policy_lag", "policy"),
    "critic": ("split/critic_learner_policy_lag", "policy"),
    "policy": ("split/policy_learner_critic_lag", "critic"),
}


class Transport(Protocol):
    """Has the stages make rounds, wherever they run, and tells the coordinator when one is finished."""

    ahead: int  # rounds of one stage that may be begun at once
    all_here: bool  # all stages are in this process
    device: torch.device
    spec: EnvSpec
    agent: ActorCritic  # the policy of this one is the result of the run
    coordinator: Coordinator

    @property
    def versions(self) -> Mapping[str, Version]: ...

    def submit(self, planned: Round) -> None: ...  # behind those of its stage begun before
    def wait_until(self, done: Callable[[], bool]) -> None: ...
    def run(self, planned: Round) -> None: ...  # now, while all stages are idle
    def ask(self, stage: str, method: str, *arguments: Any) -> Any: ...  # likewise
    def metrics(self) -> dict[str, float]: ...

    def leave_actor(self) -> bool:
        """The environments have failed for good. Can the learners still be asked? From now on nobody asks the actor."""
        ...


class Placement(Protocol):
    """Where the three work."""

    def open(
        self, recipe: Recipe, state: State | None, same_rows: bool, interrupt: Interrupt
    ) -> AbstractContextManager[Transport]:
        """Build the stages, from the start or from the `state` of a checkpoint, and close them at the end. `same_rows`:
        the policy learner draws the rows that the critic learner draws."""
        ...


@part
class SplitLearnersConfig:
    """Actor, critic learner and policy learner at the same time (PQL).

    Their ratios are `pace.updates_per_vec_step` critic updates per vec step and `agent.policy_every` critic updates per
    policy update."""

    lead: int = 2
    """Rounds (a vec step and its updates) that the actor may be ahead of the critic learner, and the critic learner
    ahead of the policy learner; with 1 the actor and the critic learner take turns."""
    free: bool = False
    """After the warm-up no stage waits for another, whatever the ratios become."""
    lockstep: bool = False
    """The three stages take turns; the same weights as `synchronous`, for tests."""
    placement: Placement = InProcessConfig()

    def __post_init__(self) -> None:
        at_least(self, "topology", lead=1)
        if self.lockstep and self.free:
            raise UserError("topology.lockstep and topology.free exclude each other.")

    def run(self, recipe: Recipe, folder: Path, state: State | None) -> Result:
        if self.lockstep and not isinstance(recipe.off_policy_replay().sampler, UniformConfig):
            raise UserError(
                "topology.lockstep needs a uniform replay: --replay.sampler UniformConfig."
            )
        interrupt = Interrupt()
        with self.placement.open(recipe, state, self.lockstep, interrupt) as transport:
            journal = Journal(recipe=recipe, folder=folder, device=transport.device)
            coordinator = Coordinator(journal, transport, self, interrupt)
            if state is not None:
                coordinator.load(state)
            journal.open(transport.spec, resumed=state is not None)
            journal.log.merge = lambda totals: added([totals, *coordinator.totals])
            with closing(journal), interrupt:
                coordinator.settle()
                with coordinator.rescuing():
                    journal.catch_up(coordinator)
                    while not (journal.finished or interrupt.asked):
                        coordinator.advance()
                        journal.after_vec_step(coordinator)
                    if not journal.finished:
                        journal.save_interrupted(coordinator)
                return journal.result(coordinator.policy())


class Coordinator:
    """Submits the rounds that the schedule plans, counts them in the journal, and speaks for all three stages when
    the journal writes. It works in the thread that trains; `finished` is called in any thread."""

    def __init__(
        self, journal: Journal, transport: Transport, cfg: SplitLearnersConfig, interrupt: Interrupt
    ):
        self.journal, self.transport, self.cfg, self.interrupt = journal, transport, cfg, interrupt
        transport.coordinator = self
        self.agent: Agent = transport.agent
        self.schedule = Schedule(
            journal.recipe.pace.build(),
            lead=cfg.lead,
            free=cfg.free,
            policy_every=transport.agent.policy_every,
        )
        self.lock = threading.RLock()
        self.logged = dict(self.schedule.counts)  # when the log was last written
        self.compilations: list[tuple[float, float]] = []  # begin and end
        self.totals: list[Totals] = []  # what the stages have reported

    def load(self, state: State) -> None:
        with fitting():
            self.schedule.load_state_dict(state)
            self.journal.load_state_dict(state)
        self.logged = dict(self.schedule.counts)
        state.pop("replay", None)  # the stages have it: do not keep it in memory twice

    def advance(self) -> None:
        """Train until the next vec step after which the journal has something to write, or until Ctrl-C; then all
        stages are idle, at the same vec step and with the newest weights."""
        journal, schedule, recipe = self.journal, self.schedule, self.journal.recipe
        periods = recipe.evaluation.every_vec_steps, recipe.checkpoint.every_vec_steps
        schedule.stop_at = journal.next_multiple(*periods, journal.log.every_vec_steps)
        if self.cfg.lockstep:
            while journal.vec_steps < schedule.stop_at and not self.interrupt.asked:
                for planned in schedule.turn():
                    self.transport.run(planned)
        else:
            self._submit()
            self.transport.wait_until(self._idle)
        self.settle()

    @contextmanager
    def rescuing(self) -> Iterator[None]:
        """Around the training: if the environments fail, the vec step under way is dropped and the rest is saved. Where
        it is a learner that is lost, the last checkpoint counts."""
        with self.journal.rescuing(self, lambda: self.interrupt.asked):
            try:
                yield
            except Halted as error:
                if not self.transport.leave_actor():
                    raise UserError(
                        f"{str(error).rstrip('.')}; the last checkpoint is kept."
                    ) from error
                with self.lock:
                    self.schedule.drop_vec_step()
                if not self.cfg.lockstep:
                    self._submit()
                self.transport.wait_until(self._idle)
                self.settle()
                if not self.transport.all_here:
                    # The agent here has not learned; what is saved must be finite.
                    self.agent.load_state_dict(self.state_dict(with_replay=False)["agent"])
                raise

    def settle(self) -> None:
        for planned in self.schedule.settle():
            self.transport.run(planned)

    def _submit(self) -> None:
        """Begin all rounds that may begin."""
        with self.lock:
            if self.interrupt.asked:
                self.schedule.stop_soon()
            for stage in STAGES:
                while planned := self.schedule.next_round(stage, self.transport.ahead):
                    self.transport.submit(planned)

    def _idle(self) -> bool:
        with self.lock:
            return self.schedule.idle()

    def finished(self, made: Round, outcome: Outcome, data: Any = None) -> None:
        """A round is finished, and its weights are published. `data`: the vec step collected, as the transport carries
        it."""
        with self.lock:
            self.schedule.finish(made, data)
            self.journal.vec_steps = self.schedule.counts["actor"]
            self.journal.updates = self.schedule.counts["critic"]
            if made.amount or made.blocks:
                name, weights = LAGS[made.stage]
                lag = self.transport.versions[weights].number - outcome.used[weights]
                self.journal.log.add({name: float(lag)})
            if outcome.compile_seconds > 0:
                now = time.perf_counter()
                self.compilations.append((now - outcome.compile_seconds, now))
            if not self.cfg.lockstep:
                self._submit()

    def lost(self, stage: str) -> State | None:
        """A stage's process is lost. Returns the checkpoint that its successor starts from; None: from nothing."""
        if stage == "actor":  # it begins new episodes
            self.schedule.breaks = True
            return None
        state = None
        if (self.journal.folder / "checkpoints" / "last.json").exists():
            state = checkpoint.load(self.journal.folder).state
        if state is None or "replay" not in state:
            self.schedule.refill(stage)
        if stage == "critic":
            self.schedule.mark_break()
        return state

    def flush_counters(self, log: Log) -> None:
        reports: dict[str, Report] = {s: self.transport.ask(s, "report") for s in STAGES}
        self.totals = [report.totals for report in reports.values()]
        counts = dict(self.schedule.counts)
        steps, critic, policy = (counts[stage] - self.logged[stage] for stage in STAGES)
        self.logged = counts
        for stage, report in reports.items():
            log.add({f"split/{stage}_wait_ms": 1e3 * report.waited / max(1, steps)})
            prefix = "time/policy_" if stage == "policy" else "time/"
            log.add({name.replace("time/", prefix, 1): ms for name, ms in report.times.items()})
        if critic > 0 and steps > 0:
            log.add({"split/critic_updates_per_vec_step": critic / steps})
            log.add({"split/policy_updates_per_critic_update": policy / critic})
        log.add(self.transport.metrics())
        seconds = covered(self.compilations)
        self.compilations.clear()
        self.journal.clock.forget(seconds)
        self.journal.compile_seconds += seconds

    def evaluate(self, vec_steps: int) -> dict[str, float]:
        metrics: dict[str, float] = self.transport.ask("actor", "evaluate")
        return metrics

    def policy(self) -> nn.Module:
        self.agent.policy.load_state_dict(self.transport.ask("actor", "policy_state"))
        return self.agent.policy

    def state_dict(self, *, with_replay: bool) -> State:
        shares = {s: self.transport.ask(s, "state_dict", with_replay) for s in STAGES}
        return self.schedule.state_dict() | joined(shares, self.transport.agent.policy_state)


def covered(spans: list[tuple[float, float]]) -> float:
    """Seconds that lie in at least one of the spans (begin, end)."""
    seconds, until = 0.0, float("-inf")
    for begin, end in sorted(spans):
        seconds += max(0.0, end - max(begin, until))
        until = max(until, end)
    return seconds
