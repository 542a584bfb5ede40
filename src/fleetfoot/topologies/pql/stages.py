"""PQL's three stages: actor, critic learner, policy learner.

Each has its own agent, built from the same recipe, and uses a part of it. A stage knows neither threads nor Ray: a
transport gives it the newest weights and the vec steps of a round, and publishes the weights that the round changed.

More than 300 lines: the three stages belong beside each other.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor

from fleetfoot.agents.contract import as_actor_critic
from fleetfoot.checkpoint import check_collector_fits, check_fits
from fleetfoot.data import Obs, Step, Transition
from fleetfoot.envs.vec_env import closed_on_error
from fleetfoot.evaluate import Evaluator
from fleetfoot.execution import RECORDING, Half, make_learner
from fleetfoot.explore import check_behaviour
from fleetfoot.guard import build_env
from fleetfoot.log import EpisodeStats, Log
from fleetfoot.log.timer import StepTimer
from fleetfoot.recipe import Recipe, Seeds
from fleetfoot.replay.observations import Observations
from fleetfoot.replay.replay import Replay
from fleetfoot.rollout import rollout
from fleetfoot.run.journal import State, step_metrics
from fleetfoot.run.loading import fitting
from fleetfoot.topologies.pql.exchange import (
    WEIGHTS,
    Order,
    Outcome,
    Report,
    Setup,
    Version,
)


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class Stage:
    """What the three have in common."""

    title: ClassVar[str]
    reads: ClassVar[tuple[str, ...]]  # weights that others publish
    writes: ClassVar[tuple[str, ...]] = ()  # weights that it publishes
    bytes_to_fill: int = 0  # of main memory, which counts as used only when it is written to

    def __init__(self, recipe: Recipe, device: torch.device, setup: Setup):
        assert setup.spec is not None
        self.recipe, self.device, self.spec = recipe, device, replace(setup.spec, device=device)
        self.agent = as_actor_critic(recipe.build_agent(self.spec, device))
        self.log, self.timer = Log([]), StepTimer(device)
        self.used: dict[str, int] = {}
        self.published = False
        self.compile_seconds = self.waited = 0.0
        self.idle_since: float | None = None

    def weights(self, name: str) -> list[Tensor]:
        return WEIGHTS[name](self.agent)

    def round(
        self, order: Order, versions: Mapping[str, Version], vec_steps: Sequence[Any] = ()
    ) -> Outcome:
        """One round with these versions of the weights that the stage `reads`, and with what it selects of each vec
        step handed over."""
        if self.idle_since is not None:
            self.waited += time.perf_counter() - self.idle_since
        self.compile_seconds = 0.0
        for name in self.reads:
            if versions[name].number != self.used.get(name):
                self.used[name] = versions[name].copy(self.weights(name))
        outcome = self._work(order, vec_steps)
        for _ in vec_steps:
            self.timer.next_vec_step()
        self.idle_since = time.perf_counter()
        changed = outcome.changed if self.published else self.writes  # all of them at first
        self.published = True
        return outcome._replace(
            used=dict(self.used), changed=changed, compile_seconds=self.compile_seconds
        )

    def _work(self, order: Order, vec_steps: Sequence[Any]) -> Outcome:
        raise NotImplementedError

    def load(self, share: State) -> None:
        """Take over the stage's share of a checkpoint; UserError where that does not fit the recipe."""
        raise NotImplementedError

    @staticmethod
    def select(fresh: Transition) -> Any:
        """The part of a vec step that the stage reads."""
        return fresh

    @contextmanager
    def _compiling(self, happens: bool) -> Iterator[None]:
        """Around work that, where it `happens`, compiles at its first use: that does not count as training."""
        if not happens:
            yield
            return
        with RECORDING:  # synchronize() would break a recording in another thread
            synchronize(self.device)
            begun = time.perf_counter()
            yield
            synchronize(self.device)
        self.timer.forget()
        self.compile_seconds += time.perf_counter() - begun

    def report(self) -> Report:
        synchronize(self.device)
        report = Report(self.log.totals(), self.timer.metrics(), self.waited)
        self.waited, self.idle_since = 0.0, None  # writing the log is not waiting
        return report


class Actor(Stage):
    """Simulates and explores, and evaluates."""

    title, reads = "the actor", ("policy", "statistics")

    def __init__(self, recipe: Recipe, device: torch.device, setup: Setup):
        seeds = self.seeds_of(recipe, setup)
        self.env = build_env(recipe.env, recipe.num_envs, seeds.env, device, recipe.env_timeout)
        with closed_on_error(self.env):
            obs = self.env.reset()
            super().__init__(recipe, device, setup._replace(spec=self.env.spec))
            self.explorer = recipe.explorer.build(self.spec, seed=seeds.explorer, device=device)
            check_behaviour(self.agent.behaviour, self.explorer.takes_noise)
            self.explorer.skip(setup.vec_steps)
            self.episodes = EpisodeStats(recipe.num_envs, device)
            self.evaluator = Evaluator(
                recipe.env,
                recipe.evaluation,
                recipe.seeds().evaluation,
                device,
                recipe.env_timeout,
            )
            self.first = True
            self._act_on(obs)

    @staticmethod
    def seeds_of(recipe: Recipe, setup: Setup) -> Seeds:
        lost = setup.actors_lost
        return Seeds.of(recipe.seed, 0, lost) if lost else recipe.seeds()

    def _act_on(self, obs: Obs) -> None:
        self.steps = rollout(self._step, self.agent.behaviour, self.explorer, obs, self.timer)

    def _step(self, action: Tensor) -> Step:
        with self._compiling(self.first), self.timer("simulate"):
            self.first = False
            return self.env.step(action)

    def _work(self, order: Order, vec_steps: Sequence[Any]) -> Outcome:
        """Collect a vec step."""
        if not order.amount:
            return Outcome({})
        fresh = next(self.steps)
        self.episodes.update(fresh.reward, fresh.terminated | fresh.truncated)
        self.log.add(step_metrics(fresh))
        self.timer.next_vec_step()
        return Outcome({}, fresh=fresh)

    def evaluate(self) -> dict[str, float]:
        begun = time.perf_counter()
        metrics = self.evaluator(self.agent.policy).metrics()
        return metrics | {"time/evaluate_s": time.perf_counter() - begun}

    def policy_state(self) -> State:
        state: State = self.agent.policy.state_dict()
        return state

    def report(self) -> Report:
        self.log.add(self.episodes.metrics())
        return super().report()

    def state_dict(self, with_replay: bool) -> State:
        return {
            "explorer": self.explorer.state_dict(),
            "env": self.env.state_dict(),
            "episodes": self.episodes.state_dict(),
        }

    def load(self, share: State) -> None:
        share = copy.deepcopy(share)  # simulators keep tensors, and those of a store are read-only
        with fitting():
            own = self.state_dict(with_replay=False)
            check_collector_fits(share, own, self.recipe.num_envs)
            self.explorer.load_state_dict(share["explorer"])
            self.episodes.load_state_dict(share["episodes"])
            if share["env"] is not None:
                self._act_on(self.env.load_state_dict(share["env"]))
                return
        self.episodes.restart()  # the simulator starts again
        self.explorer.restart(torch.ones_like(self.episodes.returns, dtype=torch.bool))

    def close(self) -> None:
        try:
            self.env.close()
        finally:
            self.evaluator.close()


class Learner(Stage):
    """One half of an agent's update, and the memory it draws from."""

    half: ClassVar[Half]
    memory_name: ClassVar[str]  # in a checkpoint

    def _learns_from(self, memory: Replay | Observations) -> None:
        self.memory = memory
        self.learner = make_learner(
            self.agent,
            memory,
            self.recipe.batch_size,
            half=self.half,
            precision=self.recipe.precision,
            mode=self.recipe.execution,
            device=self.device,
            timer=self.timer,
        )

    def _learn(self, updates: int) -> None:
        with self._compiling(not self.learner.ready(updates)):
            self.log.add(self.learner(updates))

    def state_dict(self, with_replay: bool) -> State:
        state: State = {"agent": self.agent.state_dict()}
        return state | {self.memory_name: self.memory.state_dict()} if with_replay else state

    def load(self, share: State) -> None:
        with fitting():
            check_fits(share, self.state_dict(self.memory_name in share), "state")
            self.agent.load_state_dict(copy.deepcopy(share["agent"]))  # optimisers keep tensors
            if self.memory_name in share:
                self.memory.load_state_dict(share[self.memory_name])


class CriticLearner(Learner):
    """Learns the critics, and owns the replay and the statistics of observations."""

    title, reads, writes = "the critic learner", ("policy",), ("critic", "statistics")
    half, memory_name = "update_critic", "replay"

    def __init__(self, recipe: Recipe, device: torch.device, setup: Setup):
        super().__init__(recipe, device, setup)
        self.replay = recipe.off_policy_replay().build(
            self.spec,
            gamma=recipe.gamma,
            seed=recipe.seeds().replay,
            device=device,
            beside=setup.bytes_beside,
        )
        self._learns_from(self.replay)

    def _work(self, order: Order, vec_steps: Sequence[Transition]) -> Outcome:
        """Append the vec steps and update the critics."""
        with self.timer("append"):
            for fresh, follows in zip(vec_steps, order.follows, strict=True):
                if not follows:
                    self.replay.mark_break()
                self.agent.observe(fresh)
                self.replay.append(fresh)
        self._learn(order.amount)
        return Outcome({}, ("critic",) * (order.amount > 0) + ("statistics",) * bool(vec_steps))


class PolicyLearner(Learner):
    """Learns the policy, from observations alone."""

    title, reads, writes = "the policy learner", ("critic", "statistics"), ("policy",)
    half, memory_name = "update_policy", "observations"

    def __init__(self, recipe: Recipe, device: torch.device, setup: Setup):
        super().__init__(recipe, device, setup)
        Observations.check_fit(recipe.off_policy_replay(), self.spec, device)
        seed = recipe.seeds().replay + (not setup.same_rows)
        self.observations = Observations(
            recipe.off_policy_replay(), self.spec, seed=seed, device=device
        )
        self._learns_from(self.observations)
        if device.type == "cpu":
            self.bytes_to_fill = Observations.bytes(recipe.off_policy_replay(), self.spec)

    @staticmethod
    def select(fresh: Transition) -> Obs:
        return fresh.obs

    def _work(self, order: Order, vec_steps: Sequence[Obs]) -> Outcome:
        """Append the observations and update the policy."""
        for obs in vec_steps:
            self.observations.append(obs)
        for _ in range(order.skipped_batches):
            self.observations.sample(self.recipe.batch_size)
        self._learn(order.amount)
        return Outcome({}, ("policy",) * (order.amount > 0))


StageType: TypeAlias = type[Actor] | type[CriticLearner] | type[PolicyLearner]
STAGES: dict[str, StageType] = {"actor": Actor, "critic": CriticLearner, "policy": PolicyLearner}
