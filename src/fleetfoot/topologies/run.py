"""What every topology needs around its loop: the parts of a run, its clock, its state, its interruption."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Self, cast

import torch
from torch import Tensor

from fleetfoot.agents.agent import Agent, DiagnosedAgent
from fleetfoot.checkpoint import Checkpoint
from fleetfoot.data import Batch, EnvSpec, Obs, Transition
from fleetfoot.envs.vec_env import VecEnv
from fleetfoot.evaluate import Belief, Evaluator
from fleetfoot.explore import Explorer, check_behaviour
from fleetfoot.log import EVAL_RETURN, Counters, EpisodeStats, Log, Totals
from fleetfoot.log.split import TimeSplit
from fleetfoot.pace import Pace
from fleetfoot.part import UserError, to_json
from fleetfoot.ranks import ALONE, Ranks, here
from fleetfoot.recipe import Recipe, Result, usable_cores
from fleetfoot.replay.replay import Replay
from fleetfoot.topologies.sharded import (
    bind,
    carried_over,
    check_same,
    generator_states,
    joint_spec,
    rank_recipe,
    reseed,
    restore_generators,
)

AGREE_EVERY = 8  # vec steps between two questions of a rank to the others whether to stop


class Clock:
    """Seconds of training: everything but what happens while it stands still."""

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

    def stop(self) -> None:
        self.before, self.running_since = self.seconds(), None

    def go_on(self) -> None:
        self.restart(self.before)

    def forget(self, seconds: float) -> None:
        """So many of the seconds counted were no training after all."""
        self.before -= seconds

    @contextmanager
    def paused(self) -> Iterator[None]:
        ran = self.running_since is not None
        self.stop()
        try:
            yield
        finally:
            if ran:
                self.go_on()


class Interrupt:
    """Turns the first Ctrl-C (or SIGTERM) into a flag, so that a run can stop between two steps and save."""

    def __init__(self, ranks: Ranks = ALONE) -> None:
        self.ranks = ranks
        self.asked = False  # here
        self.agreed = False  # by all ranks

    def stops(self, vec_steps: int) -> bool:
        """Is it time to stop? Call before every vec step. All ranks get the same answer, from time to time."""
        if self.ranks.world == 1 or vec_steps % AGREE_EVERY == 0:
            self.agreed = self.ranks.any(self.asked)
        return self.agreed

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
    split: TimeSplit
    ranks: Ranks = ALONE
    vec_steps: int = 0
    updates: int = 0
    owed: int = 0  # updates that the vec steps so far call for and that are not made yet
    last_return: float = float("nan")
    best_return: float = float("nan")
    saved_at: tuple[int, int] = (
        -1,
        -1,
    )  # vec steps and updates: a free learner goes on between two vec steps
    compile_seconds: float = 0.0  # so far, since the process began

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

    def tally(self) -> None:
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
        self.tally()
        self.wait()  # the clock reads work done, not work asked for
        with self.clock.paused():
            with self.ranks.agreeing():
                metrics = self.log.read(self.counters())
            metrics |= self.split.metrics() | {"time/compile_s": self.compile_seconds}
            if evaluate:
                metrics |= self.ranks.first_says(self.evaluate)
            with self.ranks.agreeing():
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
        part = None if self.ranks.first else self.own_state(with_replay=with_replay)
        self.ranks.assemble(part, write)

    def _write(self, parts: Iterator[Any]) -> None:
        assert self.checkpoint is not None
        state = self.state_dict() if self.recipe.checkpoint.replay else self.lean_state()
        recipe_json = to_json(self.recipe)
        self.checkpoint.save(state, recipe_json=recipe_json, step=self.vec_steps, parts=parts)

    def _write_best(self, state: dict[str, Any] | None, step: int, parts: Iterator[Any]) -> None:
        assert self.checkpoint is not None
        self.checkpoint.save_best(
            self.lean_state() if state is None else state,
            recipe_json=to_json(self.recipe),
            step=step,
            score=self.best_return,
            parts=parts,
        )

    def interrupted(self) -> None:
        """Save at once, unless what would be saved is spoiled or saved already."""
        if self.saved_at != (self.vec_steps, self.updates):
            self.tally()
            with self.ranks.agreeing():
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

    def lean_state(self) -> dict[str, Any]:
        """The state without the replay."""
        return {name: value for name, value in self.state_dict().items() if name != "replay"}

    def own_state(self, *, with_replay: bool) -> dict[str, Any]:
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


@dataclass(kw_only=True)
class Run(Learning):
    """A whole run in one process, or one rank of it."""

    share: Recipe  # of this process; the same where there is only one
    env: VecEnv
    obs: Obs  # what to act on first
    explorer: Explorer
    evaluator: Evaluator | None  # the first rank's business
    episodes: EpisodeStats

    @classmethod
    def build(
        cls,
        recipe: Recipe,
        folder: Path,
        state: dict[str, Any] | None,
        make_replay: Callable[[EnvSpec], Replay] | None = None,
    ) -> Self:
        """Build everything from the recipe; then, if there is a state, put every part into it. `make_replay`: where
        the replay is not this run's own."""
        ranks = here()
        with ranks.agreeing():
            return cls._build(recipe, folder, state, ranks, make_replay)

    @classmethod
    def env_device(cls, recipe: Recipe, device: torch.device) -> torch.device:
        """Where the environments hand out what they see."""
        return device

    @classmethod
    def _build(
        cls,
        recipe: Recipe,
        folder: Path,
        state: dict[str, Any] | None,
        ranks: Ranks,
        make_replay: Callable[[EnvSpec], Replay] | None,
    ) -> Self:
        share, seeds = rank_recipe(recipe, ranks), recipe.seeds(ranks.rank)
        device = share.torch_device()
        if device.type == "cuda" and device.index is not None:
            torch.cuda.set_device(device)  # whose streams everything else means
        torch.set_num_threads(share.threads or usable_cores())
        env = recipe.env.build(share.num_envs, seeds.env, cls.env_device(recipe, device))
        make = make_replay or partial(
            share.replay.build,
            gamma=recipe.gamma,
            seed=seeds.replay,
            device=device,
            beside=cls.bytes_beside(share, env.spec),
        )
        agent = recipe.agent.build(
            joint_spec(env.spec, ranks),
            gamma=recipe.gamma,
            total_updates=recipe.total_updates(),
            seed=recipe.seeds().agent,
            device=device,
        )
        bind(agent, ranks, seeds.agent)
        run = cls(
            recipe=recipe,
            share=share,
            ranks=ranks,
            folder=folder,
            device=device,
            env=env,
            obs=env.reset(),
            agent=agent,
            explorer=share.explorer.build(env.spec, seed=seeds.explorer, device=device),
            replay=make(env.spec),
            pace=recipe.pace.build(),
            evaluator=None,
            checkpoint=None,
            log=Log([], every_vec_steps=recipe.log.every_vec_steps),
            episodes=EpisodeStats(share.num_envs, device),
            clock=Clock(),
            split=TimeSplit(device),
        )
        check_behaviour(agent.behaviour, run.explorer.takes_noise)
        if recipe.evaluation.diagnose:
            run.diagnosed()  # refuse before anything is learned
        if state is not None:
            run.load_state_dict(state)
        if ranks.first:
            run.evaluator = Evaluator(recipe.env, recipe.evaluation, seeds.evaluation, device)
            run.checkpoint = recipe.checkpoint.build(folder / "checkpoints")
            run.log = recipe.log.build(
                folder,
                total_vec_steps=recipe.total_vec_steps,
                recipe_json=to_json(recipe),
                resumed=None if state is None else run.counters(),
                best=None if run.best_return != run.best_return else run.best_return,
            )
        run.clock.restart(run.clock.before)  # the time it took to build all this is not training
        if ranks.world > 1:
            run.log.merge = lambda totals: added(ranks.gather_json(totals))
        return run

    @classmethod
    def bytes_beside(cls, share: Recipe, spec: EnvSpec) -> int:
        """Of other memories, of as many rows as the replay, that come on its device."""
        return 0

    def collected(self, fresh: Transition) -> None:
        """Note one vec step for the log."""
        self.vec_steps += 1
        self.episodes.update(fresh.reward, fresh.terminated | fresh.truncated)
        seen = {"env/obs_magnitude": fresh.next_obs.actor.float().abs().mean()}
        self.log.add(seen | {"env/reward": fresh.reward, **fresh.info})

    def tally(self) -> None:
        self.log.add(self.episodes.metrics())

    def evaluate(self) -> dict[str, float]:
        assert self.evaluator is not None
        begun = time.perf_counter()
        if not self.recipe.evaluation.diagnose:
            metrics = self.evaluator(self.agent.policy).metrics()
        else:
            belief = Belief(self.diagnosed().q, self.recipe.gamma)
            metrics = self.evaluator(self.agent.policy, belief).metrics() | self.diagnose()
        return metrics | {"time/evaluate_s": time.perf_counter() - begun}

    def rows_apart(self) -> Batch:
        """Rows to examine; no draw of the replay is used up."""
        sampler = self.replay.sampler.apart(self.vec_steps)
        return self.replay.gather(*sampler.draw(self.share.batch_size, self.replay.ring))

    def diagnose(self) -> dict[str, float]:
        """What the agent says of itself."""
        rows = self.rows_apart()
        held_out = rows.held_out
        if held_out is not None and not held_out.weight.any():  # none so far
            held_out = None
        found = self.diagnosed().diagnose(rows._replace(held_out=None), held_out)
        return {f"diagnose/{name}": float(value) for name, value in found.items()}

    def diagnosed(self) -> DiagnosedAgent:
        if not (hasattr(self.agent, "diagnose") and hasattr(self.agent, "q")):
            raise UserError(
                f"{type(self.agent).__name__} cannot be diagnosed; use --evaluation.no-diagnose."
            )
        return cast(DiagnosedAgent, self.agent)

    def state_dict(self) -> dict[str, Any]:
        whole = super().state_dict() | {
            "explorer": self.explorer.state_dict(),
            "env": self.env.state_dict(),
            "episodes": self.episodes.state_dict(),
        }
        return whole if self.ranks.world == 1 else whole | {"world": self.ranks.world}

    def own_state(self, *, with_replay: bool) -> dict[str, Any]:
        own = {
            "generators": generator_states(self.agent),
            "explorer": self.explorer.state_dict(),
            "env": self.env.state_dict(),
            "episodes": self.episodes.state_dict(),
        }
        return own | {"replay": self.replay.state_dict()} if with_replay else own

    def _load(self, state: dict[str, Any]) -> None:
        """Go on exactly; with another number of ranks, go on with what does not depend on it: the agent, the counters,
        and new episodes."""
        if state.get("world", 1) != self.ranks.world:
            for name in ("replay", "generators"):
                state.pop(name, None)
            explorer = carried_over(state["explorer"], self.explorer.state_dict())
            state = state | {"explorer": explorer, "env": None}
            state["episodes"] = self.episodes.state_dict()
        super()._load(state)
        if "generators" in state:
            restore_generators(self.agent, state["generators"])
        elif not self.ranks.first:
            reseed(self.agent, self.recipe.seeds(self.ranks.rank).agent)
        for name in ("explorer", "episodes"):
            getattr(self, name).load_state_dict(state[name])
        if state["env"] is not None:
            self.obs = self.env.load_state_dict(state["env"])
        else:  # the simulator began anew: what follows does not continue
            self.replay.cut()
            self.episodes.restart()
            everywhere = torch.ones(self.share.num_envs, dtype=torch.bool, device=self.device)
            self.explorer.restart(everywhere)

    def close(self) -> None:
        with ExitStack() as stack:  # each is closed, also when another fails to
            for part in (self.env, self.evaluator, self.log):
                if part is not None:
                    stack.callback(part.close)


def added(everyone: list[Totals]) -> Totals:
    """The sums and counts of all ranks together."""
    names = sorted({name for totals in everyone for name in totals})
    shares = {name: [totals[name] for totals in everyone if name in totals] for name in names}
    return {name: (sum(t for t, _ in of), sum(n for _, n in of)) for name, of in shares.items()}
