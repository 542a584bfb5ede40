"""The journal of a run: counters, log, evaluations, checkpoints. It does not know who collects and who learns.

More than 300 lines: all that a run counts and writes is in one place.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from fleetfoot.agents.contract import Agent
from fleetfoot.checkpoint import Checkpoint, NoSpaceError, check_counts
from fleetfoot.config import to_json
from fleetfoot.data import EnvSpec, Transition
from fleetfoot.errors import Halted, UserError
from fleetfoot.evaluate import EvaluationCut
from fleetfoot.log import EVAL_RETURN, ClippingNotice, Counters, EpisodeStats, Log, Sink, added
from fleetfoot.log.timer import StepTimer
from fleetfoot.recipe import Recipe, Result
from fleetfoot.run.clock import Clock
from fleetfoot.run.folder import write_spec
from fleetfoot.run.loading import check_finite
from fleetfoot.run.ranks import ALONE, Ranks
from fleetfoot.run.sharded import check_same_weights

T = TypeVar("T")
State = dict[str, Any]


class Subject(Protocol):
    """What a journal asks of the run that it is about."""

    agent: Agent
    """Its policy is the result of the run."""

    def flush_counters(self, log: Log) -> None:
        """Give the log what has been counted since the last call."""
        ...

    def evaluate(self, vec_steps: int) -> dict[str, float]:
        """Metrics of the policy as it is now; empty where they arrive later (`Journal.record_evaluation`)."""
        ...

    def state_dict(self, *, with_replay: bool) -> State:
        """Everything that training changes, except what the journal itself keeps. On any rank but the first: only what
        this rank holds for itself."""
        ...


@dataclass(kw_only=True)
class Journal:
    """Counts vec steps and updates, and writes log and checkpoints when they are due."""

    recipe: Recipe
    folder: Path
    device: torch.device
    ranks: Ranks = ALONE
    log: Log = field(default_factory=lambda: Log([]))
    checkpoint: Checkpoint | None = None  # only on the first rank
    clock: Clock = field(default_factory=Clock)
    vec_steps: int = 0
    updates: int = 0
    last_return: float = math.nan
    best_return: float = math.nan
    # Vec steps and updates at the last save; both, because a free learner also learns between two vec steps.
    saved_at: tuple[int, int] = (-1, -1)
    compile_seconds: float = 0.0
    evaluation_owed: bool = False  # it was cut by a signal; whoever goes on makes it first
    resumed_from: str = ""  # the name of a checkpoint
    batched: bool = False  # one of several seeds that are trained as one

    def __post_init__(self) -> None:
        self.timer = StepTimer(self.device)

    def open(
        self, spec: EnvSpec, *, resumed: bool, console: bool = True, sinks: tuple[Sink, ...] = ()
    ) -> None:
        """Open log and checkpoints, and start the clock. `console`: False where another process prints; `sinks`: where
        the metrics go besides."""
        if self.ranks.first:
            write_spec(self.folder, spec)
            # Before the log forgets what is newer than the checkpoint that the run goes on from.
            self.checkpoint = self.recipe.checkpoint.build(
                self.folder / "checkpoints", back_to=self.resumed_from
            )
            cfg = self.recipe.log if console else replace(self.recipe.log, console=False)
            self.log = cfg.build(
                self.folder,
                total_vec_steps=self.recipe.total_vec_steps,
                recipe_json=to_json(self.recipe),
                resumed=self.counters() if resumed else None,
                best=None if math.isnan(self.best_return) else self.best_return,
            )
            self.log.sinks += (*sinks, *self._clipping_notice())
            if cfg.console:
                on = f"{spec.name}, {self.recipe.num_envs:,} environments, {self.device}"
                since = f", from vec step {self.vec_steps:,} on" if resumed else ""
                print(f"{self.recipe.name}: {on}{since}", flush=True)
        else:
            self.log = Log([], every_vec_steps=self.recipe.log.every_vec_steps)
        if self.ranks.world > 1:
            self.log.merge = lambda totals: added(self.ranks.gather_json(totals))
        self.clock.restart(self.clock.before)  # building the run was not training

    def _clipping_notice(self) -> tuple[Sink, ...]:
        """For agents whose value range somebody chose."""
        agent: Any = self.recipe.agent
        if getattr(agent, "v_min", "auto") == "auto":
            return ()
        return (ClippingNotice(agent.v_min, agent.v_max),)

    @property
    def trained(self) -> bool:
        """Are all vec steps made?"""
        return self.vec_steps >= self.recipe.total_vec_steps

    @property
    def finished(self) -> bool:
        return self.trained and not self.evaluation_owed

    def counters(self) -> Counters:
        return Counters(
            vec_steps=self.vec_steps,
            env_steps=self.vec_steps * self.recipe.num_envs,
            updates=self.updates,
            train_seconds=self.clock.seconds(),
        )

    def record_step(self, fresh: Transition, episodes: EpisodeStats) -> None:
        """Count one vec step."""
        self.vec_steps += 1
        episodes.update(fresh.reward, fresh.terminated | fresh.truncated)
        self.log.add(step_metrics(fresh))

    def record_updates(self, count: int, metrics: dict[str, Tensor]) -> None:
        self.updates += count
        self.log.add(metrics)

    @contextmanager
    def compiling(self, happens: bool = True) -> Iterator[None]:
        """Around work that, where it `happens`, compiles at its first use: that does not count as training."""
        if not happens:
            yield
            return
        self.wait_for_device()
        begun = time.perf_counter()
        with self.clock.paused():
            yield
            self.wait_for_device()
        self.timer.forget()
        self.compile_seconds += time.perf_counter() - begun

    def compiles_first(self, function: Callable[..., T]) -> Callable[..., T]:
        """`function`, whose first call compiles."""
        called = False

        def call(*arguments: Any) -> T:
            nonlocal called
            first, called = not called, True
            with self.compiling(first):
                return function(*arguments)

        return call

    def wait_for_device(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def next_multiple(self, *periods: int) -> int:
        """The coming vec step that is a multiple of one of these periods (0: never), or the last one of the run."""
        stops = ((self.vec_steps // period + 1) * period for period in periods if period > 0)
        return min([self.recipe.total_vec_steps, *stops])

    def due(self) -> bool:
        """Is there anything to write after this vec step?"""
        save = self.recipe.checkpoint.due(self.vec_steps)
        return self.evaluation_due() or save or self.log.due(self.vec_steps)

    def evaluation_due(self) -> bool:
        every = self.recipe.evaluation.every_vec_steps
        return self.trained or (every > 0 and self.vec_steps % every == 0)

    def after_vec_step(self, subject: Subject) -> None:
        """Log, evaluate and save, each when it is due, and all three at the end of the run.

        The log is read before anything is saved, so a checkpoint never holds numbers that are not finite.
        """
        self.timer.next_vec_step()
        if not self.due():
            return
        subject.flush_counters(self.log)
        self.wait_for_device()  # the clock reads work done, not work asked for
        with self.clock.paused():
            with self.ranks.raise_together():
                metrics = self.log.read(self.counters())
            metrics |= self.timer.metrics() | {"time/compile_s": self.compile_seconds}
            if self.evaluation_due():
                metrics |= self._evaluate(subject)
            with self.ranks.raise_together():
                self.log.write(self.counters(), metrics)
            if EVAL_RETURN in metrics:
                self.record_evaluation(subject, self.counters(), metrics)
            if self.trained or self.recipe.checkpoint.due(self.vec_steps):
                self.save(subject)

    def _evaluate(self, subject: Subject) -> dict[str, float]:
        """Empty, and owed, where the run is asked to stop meanwhile; owed too where its environments fail."""
        self.evaluation_owed = False
        try:
            metrics: dict[str, float] = self.ranks.broadcast_from_first(
                lambda: subject.evaluate(self.vec_steps)
            )
        except EvaluationCut:
            self.evaluation_owed = True
            return {}
        except Halted:
            self.evaluation_owed = True
            raise
        return metrics

    def catch_up(self, subject: Subject) -> None:
        """Before training goes on: make the evaluation that was cut when the run was stopped."""
        if not self.evaluation_owed:
            return
        with self.clock.paused():
            if metrics := self._evaluate(subject):
                with self.ranks.raise_together():
                    self.log.write(self.counters(), metrics)
                self.record_evaluation(subject, self.counters(), metrics)
                self.save(subject)  # or it would be owed again

    def record_evaluation(
        self,
        subject: Subject,
        counters: Counters,
        metrics: dict[str, float],
        state: State | None = None,
    ) -> None:
        """Note the return of the policy at `counters`, and save it if it is the best; `state`: of then, if not now."""
        self.last_return = metrics[EVAL_RETURN]
        if not math.isfinite(self.last_return) or self.last_return <= self.best_return:
            return  # not where the best is NaN: there was none before
        self.best_return = self.last_return

        def write(parts: Iterator[State]) -> None:
            assert self.checkpoint is not None
            self.checkpoint.save_best(
                self.state(subject, with_replay=False) if state is None else state,
                recipe_json=to_json(self.recipe),
                step=counters.vec_steps,
                score=self.best_return,
                parts=parts,
            )

        self._assemble(subject, write, with_replay=False)

    def save(self, subject: Subject) -> None:
        with_replay = self.recipe.checkpoint.replay

        def write(parts: Iterator[State]) -> None:
            assert self.checkpoint is not None
            state = self.state(subject, with_replay=with_replay)
            recipe_json = to_json(self.recipe)
            self.checkpoint.save(state, recipe_json=recipe_json, step=self.vec_steps, parts=parts)

        self._assemble(subject, write, with_replay=with_replay)
        self.saved_at = self.vec_steps, self.updates

    def _assemble(
        self, subject: Subject, write: Callable[[Iterator[State]], None], *, with_replay: bool
    ) -> None:
        """Let the first rank write its state and the parts of all others."""
        check_same_weights(subject.agent, self.ranks)
        part = None if self.ranks.first else subject.state_dict(with_replay=with_replay)
        self.ranks.write_on_first(part, write)

    def save_interrupted(self, subject: Subject) -> None:
        """Save now, unless what would be saved is not finite, or is saved already."""
        if self.saved_at != (self.vec_steps, self.updates):
            subject.flush_counters(self.log)
            with self.ranks.raise_together(), contextlib.suppress(Halted):
                self.log.flush(self.counters())  # where it cannot be written, the state perhaps can
            with self.ranks.raise_together():
                check_finite(subject.agent.state_dict())
            self.save(subject)

    @contextmanager
    def rescuing(self, subject: Subject, asked: Callable[[], bool]) -> Iterator[None]:
        """Around a training loop. What ends it from outside (`Halted`) costs nothing that was learned: the state is
        saved, if it is finite. `asked`: was the run told to stop?"""
        try:
            yield
        except Halted as error:
            saved, done = self._rescue(subject)
            # Told to stop, and saved: that an environment hung meanwhile does not matter.
            if not (asked() and saved):
                raise Halted(f"{str(error).rstrip('.')}; {done}.") from error

    def _rescue(self, subject: Subject) -> tuple[bool, str]:
        """Was the state saved? And what to say of it."""
        if self.ranks.world > 1:
            return (
                False,
                "the last checkpoint is kept",
            )  # other ranks are elsewhere, and cannot save
        if not self.updates:
            return False, "nothing was learned yet"
        try:
            self.save_interrupted(subject)
        except NoSpaceError as error:
            return False, str(error)  # which says what was saved all the same
        except UserError as error:
            return False, f"its state was not saved ({error})"
        steps = f"{self.vec_steps:,}"
        return True, f"saved after {steps} vec steps; fleetfoot resume {self.folder} continues it"

    def state(self, subject: Subject, *, with_replay: bool) -> State:
        """The state of the whole run."""
        return subject.state_dict(with_replay=with_replay) | {
            "vec_steps": self.vec_steps,
            "updates": self.updates,
            "train_seconds": self.clock.seconds(),
            "last_return": self.last_return,
            "best_return": self.best_return,
            "evaluation_owed": self.evaluation_owed,
            "batched": self.batched,
        }

    def load_state_dict(self, state: State) -> None:
        check_counts(state, vec_steps=2**53, updates=2**53)
        self.vec_steps, self.updates = state["vec_steps"], state["updates"]
        self.last_return, self.best_return = (
            float(state["last_return"]),
            float(state["best_return"]),
        )
        self.clock.restart(float(state["train_seconds"]))
        self.evaluation_owed = bool(state.get("evaluation_owed", False))
        self.resumed_from = str(state.get("resumed_from", ""))
        self.saved_at = self.vec_steps, self.updates

    def result(self, policy: nn.Module) -> Result:
        return Result(
            folder=self.folder,
            policy=policy,
            counters=self.counters(),
            last_return=self.last_return,
            best_return=self.best_return,
            finished=self.finished,
        )

    def close(self) -> None:
        self.log.close()


def step_metrics(fresh: Transition) -> dict[str, Tensor]:
    """What the log keeps of one vec step, [N] each."""
    magnitude = fresh.next_obs.actor.float().abs().flatten(1).mean(1)
    return {"env/obs_magnitude": magnitude, "env/reward": fresh.reward, **fresh.info}
