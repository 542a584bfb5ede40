"""What is written down about a run, whoever collects and whoever learns: counts, log, evaluations, checkpoints."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fleetfoot.agents.contract import Agent
from fleetfoot.checkpoint import Checkpoint
from fleetfoot.config import to_json
from fleetfoot.errors import UserError
from fleetfoot.log import EVAL_RETURN, Counters, Log
from fleetfoot.log.timer import StepTimer
from fleetfoot.pace import Pace
from fleetfoot.recipe import Recipe, Result
from fleetfoot.replay.replay import Replay
from fleetfoot.run.clock import Clock
from fleetfoot.run.ranks import ALONE, Ranks
from fleetfoot.run.sharded import check_same


@dataclass(kw_only=True)
class Bookkeeping:
    """What is written down about a run: counts, log, evaluations, checkpoints. Who collects and who learns is left
    open."""

    recipe: Recipe  # of the whole run
    folder: Path
    device: torch.device
    agent: Agent  # whose policy is the result
    pace: Pace
    log: Log
    checkpoint: Checkpoint | None  # the first rank's business
    clock: Clock
    split: StepTimer
    ranks: Ranks = ALONE
    vec_steps: int = 0
    updates: int = 0
    owed: int = 0  # updates that the vec steps so far call for and that are not made yet
    last_return: float = float("nan")
    best_return: float = float("nan")
    # vec steps and updates: a free learner goes on between two vec steps
    saved_at: tuple[int, int] = (-1, -1)
    compile_seconds: float = 0.0  # so far, since the process began

    def open_log(self, *, resumed: bool, console: bool = True) -> Log:
        """The log in the run's folder, at the counts as they are now. `console`: False where another process prints."""
        cfg = self.recipe.log if console else replace(self.recipe.log, console=False)
        return cfg.build(
            self.folder,
            total_vec_steps=self.recipe.total_vec_steps,
            recipe_json=to_json(self.recipe),
            resumed=self.counters() if resumed else None,
            best=None if math.isnan(self.best_return) else self.best_return,
        )

    def next_of(self, *every_vec_steps: int) -> int:
        """The coming vec step after which one of these is due (0: never), or the last one."""
        stops = ((self.vec_steps // e + 1) * e for e in every_vec_steps if e > 0)
        return min([self.recipe.total_vec_steps, *stops])

    def counters(self) -> Counters:
        return Counters(
            vec_steps=self.vec_steps,
            env_steps=self.vec_steps * self.recipe.num_envs,
            updates=self.updates,
            train_seconds=self.clock.seconds(),
        )

    def learned(self, metrics: dict[str, Tensor]) -> None:
        """Note that the updates owed were made, and what they found."""
        self.updates, self.owed = self.updates + self.owed, 0
        self.log.add(metrics)

    @contextmanager
    def compiling(self) -> Iterator[None]:
        """What compiles at its first use is used for the first time: that does not count as training."""
        self.wait()
        begun = time.perf_counter()
        with self.clock.paused():
            yield
            self.wait()
        self.split.forget()
        self.compile_seconds += time.perf_counter() - begun

    def wait(self) -> None:
        """For all work asked of the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def flush_counters(self) -> None:
        """Hand the log what has been counted since it was last read."""
        raise NotImplementedError

    def evaluate(self) -> dict[str, float]:
        """Metrics of an evaluation of the policy as it is now; none where they come later (see `evaluated`)."""
        raise NotImplementedError

    def evaluated(
        self, counters: Counters, metrics: dict[str, float], state: dict[str, Any] | None = None
    ) -> None:
        """Take note of the policy's return at `counters`; `state` is that of the run then, None: as it is now."""
        self.last_return = metrics[EVAL_RETURN]
        if not self.last_return <= self.best_return:  # also when there was none before
            self.best_return = self.last_return
            write = partial(self._write_best, state, counters.vec_steps)
            self._assemble(write, with_replay=False)

    def due(self, *, last: bool) -> bool:
        """Has `bookkeep` anything to do after this vec step?"""
        save = self.recipe.checkpoint.due(self.vec_steps)
        return last or self._evaluation_due() or save or self.log.due(self.vec_steps)

    def _evaluation_due(self) -> bool:
        every = self.recipe.evaluation.every_vec_steps
        return every > 0 and self.vec_steps % every == 0

    def bookkeep(self, *, last: bool) -> None:
        """Log, evaluate and save when each is due, and all three at the `last` step.

        The log is read before anything is saved, so a checkpoint never holds numbers that are not finite.
        """
        self.split.next_vec_step()
        if not self.due(last=last):
            return
        evaluate = last or self._evaluation_due()
        save = last or self.recipe.checkpoint.due(self.vec_steps)
        self.flush_counters()
        self.wait()  # the clock reads work done, not work asked for
        with self.clock.paused():
            with self.ranks.raise_together():
                metrics = self.log.read(self.counters())
            metrics |= self.split.metrics() | {"time/compile_s": self.compile_seconds}
            if evaluate:
                metrics |= self.ranks.first_says(self.evaluate)
            with self.ranks.raise_together():
                self.log.write(self.counters(), metrics)
            if EVAL_RETURN in metrics:
                self.evaluated(self.counters(), metrics)
            if save:
                self.save()

    def save(self) -> None:
        self._assemble(self._write, with_replay=self.recipe.checkpoint.replay)
        self.saved_at = self.vec_steps, self.updates

    def _assemble(self, write: Callable[[Iterator[Any]], None], *, with_replay: bool) -> None:
        check_same(self.agent, self.ranks)
        part = None if self.ranks.first else self.rank_state(with_replay=with_replay)
        self.ranks.assemble(part, write)

    def _write(self, parts: Iterator[Any]) -> None:
        assert self.checkpoint is not None
        state = self.state_dict() if self.recipe.checkpoint.replay else self.state_without_replay()
        recipe_json = to_json(self.recipe)
        self.checkpoint.save(state, recipe_json=recipe_json, step=self.vec_steps, parts=parts)

    def _write_best(self, state: dict[str, Any] | None, step: int, parts: Iterator[Any]) -> None:
        assert self.checkpoint is not None
        self.checkpoint.save_best(
            self.state_without_replay() if state is None else state,
            recipe_json=to_json(self.recipe),
            step=step,
            score=self.best_return,
            parts=parts,
        )

    def interrupted(self) -> None:
        """Save at once, unless what would be saved is spoiled or saved already."""
        if self.saved_at != (self.vec_steps, self.updates):
            self.flush_counters()
            with self.ranks.raise_together():
                self.log.flush(self.counters())
            self.save()

    def state_dict(self) -> dict[str, Any]:
        return {
            "pace": self.pace.state_dict(),
            "vec_steps": self.vec_steps,
            "updates": self.updates,
            "train_seconds": self.clock.seconds(),
            "last_return": self.last_return,
            "best_return": self.best_return,
        }

    def state_without_replay(self) -> dict[str, Any]:
        """The state without the replay."""
        return {name: value for name, value in self.state_dict().items() if name != "replay"}

    def rank_state(self, *, with_replay: bool) -> dict[str, Any]:
        """What the state of another rank than the first holds of its own."""
        raise NotImplementedError

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """UserError where the state does not fit."""
        try:
            self._load(state)
        except (KeyError, RuntimeError, ValueError) as error:
            reason = " ".join(str(error).split())[:300]
            raise UserError(f"the checkpoint does not fit this recipe: {reason}") from error
        self.vec_steps, self.updates = state["vec_steps"], state["updates"]
        self.last_return, self.best_return = state["last_return"], state["best_return"]
        self.clock.restart(state["train_seconds"])
        self.saved_at = self.vec_steps, self.updates

    def _load(self, state: dict[str, Any]) -> None:
        self.pace.load_state_dict(state["pace"])
        if "replay" not in state:  # it fills again first
            self.pace.hold(self.recipe.pace.warmup_vec_steps)

    def result(self, finished: bool) -> Result:
        return Result(
            folder=self.folder,
            policy=self.agent.policy,
            counters=self.counters(),
            last_return=self.last_return,
            best_return=self.best_return,
            finished=finished,
        )

    def close(self) -> None:
        self.log.close()


@dataclass(kw_only=True)
class Learning(Bookkeeping):
    """The half of a run that learns; who collects is left open."""

    replay: Replay

    def state_dict(self) -> dict[str, Any]:
        mine = {"agent": self.agent.state_dict(), "replay": self.replay.state_dict()}
        return super().state_dict() | mine | {"owed": self.owed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        had_replay = "replay" in state
        super().load_state_dict(state)
        self.owed = state.get("owed", 0) if had_replay and self.replay.size else 0

    def _load(self, state: dict[str, Any]) -> None:
        super()._load(state)
        self.agent.load_state_dict(state["agent"])
        if "replay" in state:
            self.replay.load_state_dict(state.pop("replay"))  # do not keep it in memory twice
