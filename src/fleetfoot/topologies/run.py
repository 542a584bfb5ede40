"""What every topology needs around its loop: the parts of a run, its clock, its state, its interruption."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from fleetfoot.agents.agent import Agent
from fleetfoot.checkpoint import Checkpoint
from fleetfoot.data import Obs, Transition
from fleetfoot.envs.vec_env import VecEnv
from fleetfoot.evaluate import Evaluator
from fleetfoot.explore import Explorer, check_behaviour
from fleetfoot.log import EVAL_RETURN, Counters, EpisodeStats, Log
from fleetfoot.pace import Pace
from fleetfoot.part import UserError, to_json
from fleetfoot.recipe import Recipe, Result, usable_cores
from fleetfoot.replay.replay import Replay


class Clock:
    """Seconds of training: everything but what happens inside `paused`."""

    def __init__(self, read: Callable[[], float] = time.perf_counter) -> None:
        self.read = read
        self.restart(0.0)

    def restart(self, seconds: float) -> None:
        """Go on from so many seconds, now."""
        self.before = seconds
        self.running_since: float | None = self.read()

    def seconds(self) -> float:
        if self.running_since is None:
            return self.before
        return self.before + self.read() - self.running_since

    @contextmanager
    def paused(self) -> Iterator[None]:
        self.before, self.running_since = self.seconds(), None
        try:
            yield
        finally:
            self.running_since = self.read()


class Interrupt:
    """Turns the first Ctrl-C (or SIGTERM) into a flag, so that a run can stop between two steps and save."""

    def __init__(self) -> None:
        self.asked = False

    def __enter__(self) -> Interrupt:
        self.before: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self.before[number] = signal.signal(number, self._ask)
        return self

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked:  # the second time the user means it
            raise KeyboardInterrupt
        self.asked = True

    def __exit__(self, *exc: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)


@dataclass(kw_only=True)
class Learning:
    """The half of a run that learns, and what is written down about it; who collects is left open."""

    recipe: Recipe
    folder: Path
    device: torch.device
    agent: Agent
    replay: Replay
    pace: Pace
    log: Log
    checkpoint: Checkpoint
    clock: Clock
    vec_steps: int = 0
    updates: int = 0
    last_return: float = float("nan")
    best_return: float = float("nan")
    saved_at: int = -1

    def counters(self) -> Counters:
        return Counters(
            vec_steps=self.vec_steps,
            env_steps=self.vec_steps * self.recipe.num_envs,
            updates=self.updates,
            train_seconds=self.clock.seconds(),
        )

    def tally(self) -> None:
        """Hand the log what has been counted since it was last read."""
        raise NotImplementedError

    def evaluate(self) -> dict[str, float]:
        """Metrics of an evaluation of the policy as it is now; none where they come later (see `evaluated`)."""
        raise NotImplementedError

    def evaluated(self, counters: Counters, metrics: dict[str, float], state: Any) -> None:
        """Take note of the policy's return at `counters`; `state` is that of the run then."""
        self.last_return = metrics[EVAL_RETURN]
        if not self.last_return <= self.best_return:  # also when there was none before
            self.best_return = self.last_return
            self.checkpoint.save_best(
                state,
                recipe_json=to_json(self.recipe),
                step=counters.vec_steps,
                score=self.best_return,
            )

    def bookkeep(self, *, last: bool) -> None:
        """Log, evaluate and save when each is due, and all three at the `last` step.

        The log is read before anything is saved, so a checkpoint never holds numbers that are not finite.
        """
        every = self.recipe.evaluation.every_vec_steps
        evaluate = last or (every > 0 and self.vec_steps % every == 0)
        save = last or self.recipe.checkpoint.due(self.vec_steps)
        if not (evaluate or save or self.log.due(self.vec_steps)):
            return
        self.tally()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # the clock reads work done, not work asked for
        with self.clock.paused():
            metrics = self.log.read(self.counters())
            if evaluate:
                metrics |= self.evaluate()
            self.log.write(self.counters(), metrics)
            if EVAL_RETURN in metrics:
                self.evaluated(self.counters(), metrics, self.state_dict())
            if save:
                self.save()

    def save(self) -> None:
        self.checkpoint.save(
            self.state_dict(), recipe_json=to_json(self.recipe), step=self.vec_steps
        )
        self.saved_at = self.vec_steps

    def interrupted(self) -> None:
        """Save at once, unless what would be saved is spoiled or saved already."""
        if self.saved_at != self.vec_steps:
            self.tally()
            self.log.flush(self.counters())
            self.save()

    def state_dict(self) -> dict[str, Any]:
        return {
            "agent": self.agent.state_dict(),
            "replay": self.replay.state_dict(),
            "pace": self.pace.state_dict(),
            "vec_steps": self.vec_steps,
            "updates": self.updates,
            "train_seconds": self.clock.seconds(),
            "last_return": self.last_return,
            "best_return": self.best_return,
        }

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
        self.saved_at = self.vec_steps

    def _load(self, state: dict[str, Any]) -> None:
        for name in ("agent", "pace"):
            getattr(self, name).load_state_dict(state[name])
        if "replay" in state:
            self.replay.load_state_dict(state.pop("replay"))  # do not keep it in memory twice
        else:
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
class Run(Learning):
    """A whole run in one process."""

    env: VecEnv
    obs: Obs  # what to act on first
    explorer: Explorer
    evaluator: Evaluator
    episodes: EpisodeStats

    @staticmethod
    def build(recipe: Recipe, folder: Path, state: dict[str, Any] | None) -> Run:
        """Build everything from the recipe; then, if there is a state, put every part into it."""
        device, seeds = recipe.torch_device(), recipe.seeds()
        torch.set_num_threads(recipe.threads or usable_cores())
        env = recipe.env.build(recipe.num_envs, seeds.env, device)
        agent = recipe.agent.build(
            env.spec,
            gamma=recipe.gamma,
            total_updates=recipe.total_updates(),
            seed=seeds.agent,
            device=device,
        )
        run = Run(
            recipe=recipe,
            folder=folder,
            device=device,
            env=env,
            obs=env.reset(),
            agent=agent,
            explorer=recipe.explorer.build(env.spec, seed=seeds.explorer, device=device),
            replay=recipe.replay.build(
                env.spec, gamma=recipe.gamma, seed=seeds.replay, device=device
            ),
            pace=recipe.pace.build(),
            evaluator=Evaluator(recipe.env, recipe.evaluation, seeds.evaluation, device),
            log=Log([]),
            checkpoint=recipe.checkpoint.build(folder / "checkpoints"),
            episodes=EpisodeStats(recipe.num_envs, device),
            clock=Clock(),
        )
        check_behaviour(agent.behaviour, run.explorer.takes_noise)
        if state is not None:
            run.load_state_dict(state)
        run.log = recipe.log.build(
            folder,
            total_vec_steps=recipe.total_vec_steps,
            recipe_json=to_json(recipe),
            resumed=None if state is None else run.counters(),
            best=None if run.best_return != run.best_return else run.best_return,
        )
        return run

    def collected(self, fresh: Transition) -> None:
        """Note one vec step for the log."""
        self.vec_steps += 1
        self.episodes.update(fresh.reward, fresh.terminated | fresh.truncated)
        seen = {"env/obs_magnitude": fresh.next_obs.actor.float().abs().mean()}
        self.log.add(seen | {"env/reward": fresh.reward, **fresh.info})

    def tally(self) -> None:
        self.log.add(self.episodes.metrics())

    def evaluate(self) -> dict[str, float]:
        return self.evaluator(self.agent.policy).metrics()

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {
            "explorer": self.explorer.state_dict(),
            "env": self.env.state_dict(),
            "episodes": self.episodes.state_dict(),
        }

    def _load(self, state: dict[str, Any]) -> None:
        super()._load(state)
        for name in ("explorer", "episodes"):
            getattr(self, name).load_state_dict(state[name])
        if state["env"] is not None:
            self.obs = self.env.load_state_dict(state["env"])
        else:  # the simulator began anew: what follows does not continue
            self.replay.cut()
            self.episodes.restart()
            everywhere = torch.ones(self.recipe.num_envs, dtype=torch.bool, device=self.device)
            self.explorer.restart(everywhere)

    def close(self) -> None:
        with ExitStack() as stack:  # each is closed, also when another fails to
            for part in (self.env, self.evaluator, self.log):
                stack.callback(part.close)
