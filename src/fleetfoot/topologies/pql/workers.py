"""PQL's actor, critic learner and policy learner, each in a process of its own. They work when asked to.

A round returns several objects, of which the first is small: the seconds that went into compiling. The others are what
the next one needs, and stay in Ray's object store until it asks for them.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fleetfoot.agents.contract import ActorCritic, as_actor_critic
from fleetfoot.data import EnvSpec, Step, Transition
from fleetfoot.evaluate import Evaluator
from fleetfoot.execution import EagerLearner, Half
from fleetfoot.explore import check_behaviour
from fleetfoot.log import EpisodeStats, Log, Totals
from fleetfoot.log.timer import StepTimer
from fleetfoot.recipe import Recipe, Seeds
from fleetfoot.replay.observations import Observations
from fleetfoot.replay.replay import Replay
from fleetfoot.rollout import rollout
from fleetfoot.topologies.apex.actor import Reported
from fleetfoot.topologies.pql.exchange import copy_flat_, flat
from fleetfoot.topologies.pql.halves import (
    critic_weights,
    half_learner,
    policy_weights,
    statistics,
    synchronize,
)
from fleetfoot.topologies.ray.cluster import (
    PackedRecipe,
    load_ray,
    to_arrays,
    to_tensors,
    unpack_recipe,
)
from fleetfoot.topologies.ray.transport import pack_lines, split_lines, unpack_lines, unpack_obs

CPU = torch.device("cpu")


class Version(NamedTuple):
    """Weights, as `flat` makes them. None in number 0: those that every process builds itself."""

    number: int
    arrays: Any


class Told(NamedTuple):
    """What a process has measured since it was last asked."""

    totals: Totals
    times: dict[str, float]
    waited: float  # seconds between rounds


class Stage:
    """What the three have in common. All work happens in methods: what a Ray actor's constructor raises is lost."""

    agent: ActorCritic

    def __init__(self, packed: PackedRecipe, threads: int, on_gpu: bool):
        self.packed, self.threads = packed, threads
        self.device = torch.device("cuda") if on_gpu else CPU

    def _begin(self) -> Recipe:
        torch.set_num_threads(self.threads)
        self.recipe = unpack_recipe(self.packed)
        self.log, self.split = Log([]), StepTimer(self.device)
        self.numbers: dict[str, int] = {}  # of the versions that are used
        self.compiled = self.waited = 0.0
        self.idle_since: float | None = None
        return self.recipe

    def _build_agent(self, spec: EnvSpec) -> ActorCritic:
        return as_actor_critic(self.recipe.build_agent(spec, self.device))

    def _learner(self, memory: Replay | Observations, half: Half) -> EagerLearner:
        return half_learner(half, self.recipe, self.agent, memory, self.device, self.split)

    @contextmanager
    def _round(self, vec_steps: int) -> Iterator[None]:
        """So many vec steps are worked at inside."""
        if self.idle_since is not None:
            self.waited += time.perf_counter() - self.idle_since
        self.compiled = 0.0
        yield
        for _ in range(vec_steps):
            self.split.next_vec_step()
        self.idle_since = time.perf_counter()

    @contextmanager
    def _compiling(self) -> Iterator[None]:
        """What compiles at its first use is used for the first time."""
        synchronize(self.device)
        begun = time.perf_counter()
        yield
        synchronize(self.device)
        self.split.forget()
        self.compiled += time.perf_counter() - begun

    def _refresh(self, name: str, version: Version, tensors: Sequence[Tensor]) -> None:
        # A version can be lost on its way, together with a machine.
        if version.number != self.numbers.get(name, 0) and version.arrays is not None:
            copy_flat_(tensors, version.arrays)
            self.numbers[name] = version.number

    def _node(self) -> str:
        node: str = load_ray().get_runtime_context().get_node_id()
        return node

    def _learn(self, learn: EagerLearner, count: int) -> None:
        if learn.ready(count):
            self.log.add(learn(count))
        else:
            with self._compiling():
                self.log.add(learn(count))

    def tell(self) -> Told:
        synchronize(self.device)
        told = Told(self.log.totals(), self.split.metrics(), self.waited)
        self.waited, self.idle_since = 0.0, None  # nobody waits while the books are kept
        return told


class SplitActor(Stage):
    """Simulates and explores."""

    def start(self, life: int, past: int, state: dict[str, Any] | None) -> EnvSpec:
        """Build everything; tells what the environments are. `life`: how many actors were lost before; `past`: vec
        steps they made; `state`: of a checkpoint."""
        recipe = self._begin()
        self.seeds = Seeds.of(recipe.seed, 0, life) if life else recipe.seeds()
        with self._reported():
            self.env = recipe.env.build(recipe.num_envs, self.seeds.env, self.device)
            obs = self.env.reset()
        self.spec = self.env.spec
        self.agent = self._build_agent(self.spec)
        self.explorer = recipe.explorer.build(
            self.spec, seed=self.seeds.explorer, device=self.device
        )
        check_behaviour(self.agent.behaviour, self.explorer.takes_noise)
        self.episodes = EpisodeStats(recipe.num_envs, self.device)
        self.evaluator: Evaluator | None = None
        if state is None:
            self.explorer.skip(past)
        else:
            state = copy.deepcopy(to_tensors(state))  # those of the object store cannot be changed
            for name in ("explorer", "episodes"):
                getattr(self, name).load_state_dict(state[name])
            if state["env"] is not None:
                obs = self.env.load_state_dict(state["env"])
            else:
                self.episodes.restart()
                self.explorer.restart(torch.ones_like(self.episodes.returns, dtype=torch.bool))
        self.vec_steps = rollout(self._step, self.agent.behaviour, self.explorer, obs, self.split)
        self.first = True
        return self.spec

    def _step(self, action: Tensor) -> Step:
        with self.split("simulate"):
            return self.env.step(action)

    def collect(
        self, policy_number: int, policy: Any, statistics_number: int, normal: Any
    ) -> tuple[float, Any, Any]:
        """One vec step: what was seen, and the rest of the transition."""
        with self._round(1), self._reported():
            self._follow(policy_number, policy, statistics_number, normal)
            if self.first:
                with self._compiling():
                    fresh = next(self.vec_steps)
                self.first = False
            else:
                fresh = next(self.vec_steps)
            self.episodes.update(fresh.reward, fresh.terminated | fresh.truncated)
            size = {"env/obs_magnitude": fresh.next_obs.actor.float().abs().mean()}
            self.log.add(size | {"env/reward": fresh.reward, **fresh.info})
            seen, rest = split_lines(pack_lines([fresh], self.spec))
        return self.compiled, seen, rest

    def _follow(self, policy_number: int, policy: Any, statistics_number: int, normal: Any) -> None:
        self._refresh("policy", Version(policy_number, policy), policy_weights(self.agent))
        self._refresh("statistics", Version(statistics_number, normal), statistics(self.agent))

    def evaluate(
        self, policy_number: int, policy: Any, statistics_number: int, normal: Any
    ) -> dict[str, float]:
        """Here, because this is where simulators run well."""
        begun = time.perf_counter()
        self._follow(policy_number, policy, statistics_number, normal)
        with self._reported():
            if self.evaluator is None:
                recipe, seeds = self.recipe, self.recipe.seeds()
                self.evaluator = Evaluator(
                    recipe.env, recipe.evaluation, seeds.evaluation, self.device
                )
            metrics = self.evaluator(self.agent.policy).metrics()
        return metrics | {"time/evaluate_s": time.perf_counter() - begun}

    def tell(self) -> Told:
        self.log.add(self.episodes.metrics())
        return super().tell()

    def state_dict(self) -> dict[str, Any]:
        state = {
            "explorer": self.explorer.state_dict(),
            "env": self.env.state_dict(),
            "episodes": self.episodes.state_dict(),
        }
        whole: dict[str, Any] = to_arrays(state, copy=False)
        return whole

    def close(self) -> None:
        """Simulators may have processes of their own."""
        self.env.close()
        if self.evaluator is not None:
            self.evaluator.close()

    def _reported(self) -> Reported:
        return Reported(f"environment seed {self.seeds.env}")


class CriticLearner(Stage):
    """Learns the critics, and owns the replay and the statistics of observations."""

    def start(
        self,
        spec: EnvSpec,
        beside: tuple[str, int],
        state: dict[str, Any] | None,
        updates: int,
        critic: Any,
        normal: Any,
    ) -> None:
        """`beside`: what the policy learner's `start` told; `state`: of a checkpoint; `updates`: made so far. `critic`
        and `normal`: what was published last, where that is newer than the state."""
        recipe = self._begin()
        self.spec = replace(spec, device=self.device)
        self.agent = self._build_agent(self.spec)
        self.replay = recipe.replay.build(
            self.spec,
            gamma=recipe.gamma,
            seed=recipe.seeds().replay,
            device=self.device,
            beside=beside[1] if beside[0] == self._node() and self.device == CPU else 0,
        )
        if state is not None:
            self.agent.load_state_dict(copy.deepcopy(to_tensors(state["agent"])))
            if "replay" in state:
                self.replay.load_state_dict(to_tensors(state["replay"]))
        self.agent.updates = updates
        if critic is not None:
            copy_flat_(critic_weights(self.agent), critic)
            copy_flat_(statistics(self.agent), normal)
        self.learn = self._learner(self.replay, "update_critic")

    def publish(self) -> tuple[Any, Any]:
        """Critics, and statistics of observations."""
        return flat(critic_weights(self.agent)), flat(statistics(self.agent))

    def round(
        self, owed: int, follows: Sequence[bool], number: int, policy: Any, *lines: Any
    ) -> tuple[float, Any, Any]:
        """Append vec steps, each in two parts of `lines`, and make so many updates with this policy. `follows`: which
        of the vec steps follow from the one before."""
        with self._round(len(follows)):
            with self.split("append"):
                for i, continued in enumerate(follows):
                    if not continued:
                        self.replay.mark_break()
                    fresh = self._unpack(*lines[2 * i : 2 * i + 2])
                    self.agent.observe(fresh)
                    self.replay.append(fresh)
            self._refresh("policy", Version(number, policy), policy_weights(self.agent))
            self._learn(self.learn, owed)
            critic, normal = self.publish()
        return self.compiled, critic, normal

    def _unpack(self, seen: Any, rest: Any) -> Transition:
        return next(unpack_lines(seen | rest, self.spec, self.device))

    def state_dict(self, number: int, policy: Any, with_replay: bool) -> dict[str, Any]:
        self._refresh("policy", Version(number, policy), policy_weights(self.agent))
        state = {"agent": self.agent.state_dict()}
        if with_replay:
            state["replay"] = self.replay.state_dict()
        whole: dict[str, Any] = to_arrays(state, copy=False)
        return whole


class PolicyLearner(Stage):
    """Learns the policy, from observations alone."""

    def start(
        self, spec: EnvSpec, seed: int, state: dict[str, Any] | None, policy: Any
    ) -> tuple[str, int]:
        """As for the critic learner. Tells on which machine, and how many bytes of main memory it will come to use:
        those of a GPU are taken at once, others are not before they are written to."""
        recipe = self._begin()
        spec = replace(spec, device=self.device)
        self.agent = self._build_agent(spec)
        Observations.check_fit(recipe.replay, spec, self.device)
        self.seen = Observations(recipe.replay, spec, seed=seed, device=self.device)
        if state is not None:
            self.agent.load_state_dict(copy.deepcopy(to_tensors(state["agent"])))
            if "observations" in state:
                self.seen.load_state_dict(to_tensors(state["observations"]))
        if policy is not None:
            copy_flat_(policy_weights(self.agent), policy)
        self.learn = self._learner(self.seen, "update_policy")
        return self._node(), Observations.bytes(recipe.replay, spec) if self.device == CPU else 0

    def publish(self) -> Any:
        return flat(policy_weights(self.agent))

    def round(
        self,
        owed: int,
        critic_number: int,
        critic: Any,
        statistics_number: int,
        normal: Any,
        *seen: Any,
    ) -> tuple[float, Any]:
        """Append observations and make so many updates with these critics."""
        with self._round(len(seen)):
            for each in seen:
                self.seen.append(unpack_obs(each, self.device))
            self._refresh("critic", Version(critic_number, critic), critic_weights(self.agent))
            self._refresh("statistics", Version(statistics_number, normal), statistics(self.agent))
            self._learn(self.learn, owed)
            policy = self.publish() if owed else None
        return self.compiled, policy

    def pass_by(self) -> None:
        """Draw rows for no use, to stay at those of the critic learner."""
        self.seen.sample(self.recipe.batch_size)

    def state_dict(self, with_replay: bool) -> dict[str, Any]:
        """What `update_policy` alone changes, and the observations."""
        mine = self.agent.state_dict()
        state = {"agent": {name: mine[name] for name in self.agent.policy_state}}
        if with_replay:
            state["observations"] = self.seen.state_dict()
        whole: dict[str, Any] = to_arrays(state, copy=False)
        return whole
