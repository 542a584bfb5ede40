"""The parts of a run, built from its recipe, and their state."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fleetfoot.agents.contract import Agent, CanDiagnose, Remembers, as_diagnosable
from fleetfoot.checkpoint import check_collector_fits, check_counts
from fleetfoot.data import EnvSpec, Obs, Transition
from fleetfoot.envs.vec_env import VecEnv, closed_on_error
from fleetfoot.errors import Notice
from fleetfoot.evaluate import Evaluator, QEstimate
from fleetfoot.execution import EagerLearner, make_learner
from fleetfoot.explore import Explorer, check_behaviour
from fleetfoot.guard import build_env
from fleetfoot.log import EpisodeStats, Log
from fleetfoot.pace import Pace
from fleetfoot.recipe import Recipe
from fleetfoot.replay.replay import Replay, ReplayConfig
from fleetfoot.replay.rollouts import Rollouts
from fleetfoot.run.journal import Journal, State
from fleetfoot.run.loading import buildable, fitting
from fleetfoot.run.ranks import ALONE, Ranks, current_ranks
from fleetfoot.run.sharded import (
    adapt_state,
    generator_states,
    global_spec,
    rank_recipe,
    reseed_agent,
    restore_generators,
    synchronize_agent,
)
from fleetfoot.system import usable_cores

MOST_STEPS = 2**53
PATIENCE = 5.0  # seconds without a line on the console
NEWEST_SHARE = 0.01  # of the replay: rows that the critic has hardly learned from yet


@dataclass(kw_only=True)
class Parts:
    """Everything that a recipe names, in one process: of a whole run, or of one rank of it."""

    recipe: Recipe  # of the whole run
    share: Recipe  # of this process; the same where there is only one
    device: torch.device
    env: VecEnv
    obs: Obs  # the first to act on
    agent: Agent
    explorer: Explorer
    replay: Replay | Rollouts
    pace: Pace
    episodes: EpisodeStats
    evaluator: Evaluator | None = None  # only on the first rank
    ranks: Ranks = ALONE
    owed: int = 0  # updates that the vec steps so far call for and that are not made yet

    def append(self, fresh: Transition) -> None:
        """Take in one vec step."""
        self.agent.observe(fresh)
        self.replay.append(fresh)
        self.owed += self.pace.owed()

    def learner(self, journal: Journal) -> EagerLearner:
        """Makes the updates of this process, as fast as the recipe asks for."""
        return make_learner(
            self.agent,
            self.replay,
            self.share.batch_size,
            precision=self.recipe.precision,
            mode=self.recipe.execution,
            device=self.device,
            timer=journal.timer,
            world=self.ranks.world,
        )

    def flush_counters(self, log: Log) -> None:
        log.add(self.episodes.metrics())

    def evaluate(self, vec_steps: int) -> dict[str, float]:
        assert self.evaluator is not None
        begun = time.perf_counter()
        if not self.recipe.evaluation.diagnose:
            metrics = self.evaluator(self.agent.policy).metrics()
        else:
            agent = as_diagnosable(self.agent)
            q_estimate = QEstimate(agent.q, self.recipe.gamma)
            metrics = self.evaluator(self.agent.policy, q_estimate).metrics()
            metrics |= self._diagnose(agent, vec_steps)
        return metrics | {"time/evaluate_s": time.perf_counter() - begun}

    def _diagnose(self, agent: CanDiagnose, vec_steps: int) -> dict[str, float]:
        """The vec steps are the seed of the rows examined: no draw of the replay's own is used."""
        assert isinstance(self.replay, Replay)  # no on-policy agent is diagnosable
        rows = self.replay.sample_apart(self.share.batch_size, seed=vec_steps)
        held_out = rows.held_out
        if held_out is not None and not held_out.weight.any():  # none so far
            held_out = None
        rows = rows._replace(held_out=None)
        newest = self.replay.sample_newest(self.share.batch_size, vec_steps, NEWEST_SHARE)
        diagnosis = {
            f"newest_{name}" if name.startswith("overfitting") else name: value
            for name, value in agent.diagnose(rows, newest).items()
        }
        if held_out is not None:
            diagnosis |= agent.diagnose(rows, held_out)
        return {f"diagnose/{name}": float(value) for name, value in diagnosis.items()}

    def state_dict(self, *, with_replay: bool) -> State:
        state: State = {
            "explorer": self.explorer.state_dict(),
            "env": self.env.state_dict(),
            "episodes": self.episodes.state_dict(),
        }
        if with_replay:
            state["replay"] = self.replay.state_dict()
        if not self.ranks.first:
            return state | {"generators": generator_states(self.agent)}
        state |= {
            "agent": self.agent.state_dict(),
            "pace": self.pace.state_dict(),
            "owed": self.owed,
        }
        return state if self.ranks.world == 1 else state | {"world": self.ranks.world}

    def load_state_dict(self, state: State) -> None:
        """Go on exactly. With another number of ranks, go on with what does not depend on it: the agent and the
        counters, in new episodes."""
        if state.get("world", 1) != self.ranks.world:
            state = self._without_ranks(state)
        self._check_fits(state)
        self.pace.load_state_dict(state["pace"])
        self.agent.load_state_dict(state["agent"])
        if "replay" in state:
            self.replay.load_state_dict(state.pop("replay"))  # do not keep it in memory twice
            self.owed = state["owed"] if self.replay.size else 0
        elif isinstance(self.replay, Rollouts):  # the rollout begins anew
            self.pace.vec_steps -= self.pace.vec_steps % self.replay.cfg.length
        else:  # it has to fill again first
            wait = self.recipe.pace.warmup_vec_steps
            self.pace.hold(wait)
            if self.ranks.first:
                text = f"the checkpoint holds no replay: it fills again, and learning goes on after {wait:,} vec steps."
                warnings.warn(text, Notice, stacklevel=2)
        if "generators" in state:
            restore_generators(self.agent, state["generators"])
        elif not self.ranks.first:
            reseed_agent(self.agent, self.recipe.seeds(self.ranks.rank).agent)
        self.explorer.load_state_dict(state["explorer"])
        self.episodes.load_state_dict(state["episodes"])
        if state["env"] is not None:
            self.obs = self.env.load_state_dict(state["env"])
        else:  # the simulator starts again: what follows does not continue what is stored
            self.replay.mark_break()
            if isinstance(self.agent, Remembers):
                self.agent.mark_break()
            self.episodes.restart()
            everywhere = torch.ones(self.share.num_envs, dtype=torch.bool, device=self.device)
            self.explorer.restart(everywhere)

    def _check_fits(self, state: State) -> None:
        """ValueError where the state is not one of these parts: a tensor of another shape would be spread, cut, or read
        beyond its end."""
        own = self.state_dict(with_replay="replay" in state)
        own.pop("world", None)
        if not self.ranks.first:  # it has what all share beside its own
            own |= {"agent": self.agent.state_dict(), "pace": self.pace.state_dict(), "owed": 0}
            own.pop("generators")
        check_collector_fits(state, own, self.share.num_envs)
        steps = self.pace.cfg.updates_after(state["vec_steps"])
        check_counts(state, vec_steps=MOST_STEPS, updates=MOST_STEPS, owed=steps)
        check_counts(state["pace"], vec_steps=state["vec_steps"], held_vec_steps=MOST_STEPS)

    def _without_ranks(self, state: State) -> State:
        state.pop("replay", None)
        state.pop("generators", None)
        explorer = adapt_state(state["explorer"], self.explorer.state_dict())
        return state | {"explorer": explorer, "env": None, "episodes": self.episodes.state_dict()}

    def close(self) -> None:
        with ExitStack() as stack:  # each is closed, also when another fails to
            stack.callback(self.env.close)
            if self.evaluator is not None:
                stack.callback(self.evaluator.close)


def build_parts(
    recipe: Recipe,
    ranks: Ranks = ALONE,
    *,
    env_device: torch.device | None = None,
    make_replay: Callable[[EnvSpec], Replay | Rollouts] | None = None,
) -> Parts:
    """`env_device`: where the environments put their observations, if not on the device of the agent; `make_replay`:
    builds the replay, if the recipe alone does not say how."""
    share, seeds = rank_recipe(recipe, ranks), recipe.seeds(ranks.rank)
    device = share.torch_device()
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)  # the current streams are those of this device
    torch.set_num_threads(share.threads or usable_cores())
    place = env_device or device
    env = build_env(recipe.env, share.num_envs, seeds.env, place, recipe.env_timeout)
    with closed_on_error(env):
        if isinstance(share.replay, ReplayConfig):
            share.replay.check_batch(env.spec, share.batch_size, device)
        make_replay = make_replay or partial(
            share.replay.build, gamma=recipe.gamma, seed=seeds.replay, device=device
        )
        agent = recipe.build_agent(global_spec(env.spec, ranks), device)
        synchronize_agent(agent, ranks, seeds.agent)
        explorer = share.explorer.build(env.spec, seed=seeds.explorer, device=device)
        check_behaviour(agent.behaviour, explorer.takes_noise)
        if recipe.evaluation.diagnose:
            as_diagnosable(agent)  # refuse before anything is learned
        return Parts(
            recipe=recipe,
            share=share,
            ranks=ranks,
            device=device,
            env=env,
            obs=env.reset(),
            agent=agent,
            explorer=explorer,
            replay=make_replay(env.spec),
            pace=recipe.pace.build(),
            episodes=EpisodeStats(share.num_envs, device),
        )


@contextmanager
def announced(what: str, after: float = PATIENCE) -> Iterator[threading.Timer]:
    """Around work that may be slow: print what it is after so many seconds."""
    timer = threading.Timer(after, print, (f"{what} ...",), {"flush": True})
    timer.daemon = True
    timer.start()
    try:
        yield timer
    finally:
        timer.cancel()


@contextmanager
def open_run(recipe: Recipe, folder: Path, state: State | None) -> Iterator[tuple[Journal, Parts]]:
    """A run in this process, from the start or from the `state` of a checkpoint; closed at the end."""
    with built_run(recipe, folder, state) as (journal, parts):
        with journal.ranks.raise_together():
            journal.open(parts.env.spec, resumed=state is not None)
        with closing(journal):
            yield journal, parts


@contextmanager
def built_run(
    recipe: Recipe,
    folder: Path,
    state: State | None,
    *,
    console: bool = True,
    check: Callable[[Parts], None] | None = None,
    **options: Any,
) -> Iterator[tuple[Journal, Parts]]:
    """The same before its journal is opened: until then nothing in the folder changes.

    `console`: False where another run prints; `check`: may refuse the parts; `options` are those of `build_parts`.
    """
    ranks = current_ranks()
    with ExitStack() as stack:
        with ranks.raise_together():
            if console and recipe.log.console and ranks.first:
                said: AbstractContextManager[Any] = announced(
                    f"building {recipe.num_envs:,} environments"
                )
            else:
                said = nullcontext()
            with said, buildable() if state is not None else nullcontext():
                parts = build_parts(recipe, ranks, **options)
            stack.callback(parts.close)
            if check is not None:
                check(parts)
            journal = Journal(recipe=recipe, folder=folder, device=parts.device, ranks=ranks)
            if state is not None:
                with fitting():
                    parts.load_state_dict(state)
                    journal.load_state_dict(state)
            if ranks.first:
                seed = recipe.seeds().evaluation
                parts.evaluator = Evaluator(
                    recipe.env, recipe.evaluation, seed, parts.device, recipe.env_timeout
                )
        yield journal, parts
