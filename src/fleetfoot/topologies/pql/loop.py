"""PQL: one collects, one learns critics, one learns the policy, all at the same time.

Li et al. 2023, "Parallel Q-Learning", arXiv 2307.12983. The loop of `synchronous` is cut at *append* and *refresh*, and
the learner between its two updates. Three threads, on a GPU each with a stream of its own, or (`split_on_ray.py`) three
processes:

    actor                                 critic learner                      policy learner
      newest policy and statistics          take a vec step; observe, append     take its observations
      act; step the environments            newest policy                        newest critic and statistics
      hand on the vec step                  the critic updates owed              the policy updates owed
                                            publish critic and statistics        publish the policy
                                            hand on the observations

Each has an agent of its own, built from the same recipe, and uses a part of it; versions of weights travel, modules do
not. One vec step and the updates it calls for are a *round* of each of the three, and `Gate` lets nobody be more than
`lead` rounds ahead of the next: the ratios hold by counting, whoever is slow.

Deviations from the paper's code:

    [1] It measures rates and sleeps; here those who are ahead wait until they are not.
    [2] Weights and data do not travel through the actor. The policy learner gets its observations from the critic
        learner, after it: at most 2 `lead` vec steps old.
    [3] Statistics of observations change with the critic learner's replay, not with the actor.

With `lockstep`, one thread lets the three take turns, update by update, each with the newest version: no lag at all.
The policy learner then draws the very rows that the critic learner has drawn, and all weights are those of
`synchronous`.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from fleetfoot.agents.contract import ActorCritic, as_actor_critic, every
from fleetfoot.config import part
from fleetfoot.data import EnvSpec, Obs, Step, Transition
from fleetfoot.errors import UserError
from fleetfoot.execution import RECORDING, resolved
from fleetfoot.log.timer import StepTimer
from fleetfoot.recipe import Recipe, Result
from fleetfoot.replay.observations import Observations
from fleetfoot.replay.samplers import UniformConfig
from fleetfoot.rollout import rollout
from fleetfoot.run.interrupt import Interrupt
from fleetfoot.system import usable_cores
from fleetfoot.topologies.old_run import Run
from fleetfoot.topologies.overlap import quick_turns
from fleetfoot.topologies.pql.exchange import Channel, Reader, Versions, copied
from fleetfoot.topologies.pql.gate import Gate
from fleetfoot.topologies.pql.halves import (
    critic_weights,
    half_learner,
    policy_weights,
    statistics,
    synchronize,
)

STAGES = ("actor", "critic", "policy")
SETTLED = 16  # rounds with updates after which a learner has compiled and recorded what it uses


class Placement(Protocol):
    """Where the three work."""

    def place(self, recipe: Recipe, folder: Path, state: dict[str, Any] | None) -> Result:
        """Train from the start, or from a checkpoint's `state`. The recipe's topology is a `SplitLearnersConfig`."""
        ...


@part
class InProcessConfig:
    """Threads of one process, on one device."""

    def place(self, recipe: Recipe, folder: Path, state: dict[str, Any] | None) -> Result:
        run = SplitRun.build(recipe, folder, state)
        try:
            return split_learners(run)
        finally:
            run.close()


@part
class SplitLearnersConfig:
    """Actor, critic learner and policy learner at the same time (PQL).

    Their ratios are `pace.updates_per_vec_step` critic updates per vec step and `agent.policy_every` critic updates per
    policy update."""

    lead: int = 2
    """Rounds (a vec step and its updates) that the actor may be ahead of the critic learner, and that one of the policy
    learner; with 1 the actor and the critic learner take turns."""
    free: bool = False
    """After the warm-up nobody waits for anybody, whatever the ratios become."""
    lockstep: bool = False
    """The three take turns: the same weights as `synchronous`, for tests."""
    placement: Placement = InProcessConfig()

    def __post_init__(self) -> None:
        if self.lead < 1:
            raise UserError(f"topology.lead must be at least 1, not {self.lead}.")
        if self.lockstep and self.free:
            raise UserError("topology.lockstep and topology.free exclude each other.")

    def run(self, recipe: Recipe, folder: Path, state: dict[str, Any] | None) -> Result:
        if self.lockstep and not isinstance(recipe.replay.sampler, UniformConfig):
            raise UserError(
                "topology.lockstep needs a uniform replay: --replay.sampler UniformConfig."
            )
        return self.placement.place(recipe, folder, state)


def split_learners(run: SplitRun) -> Result:
    total, cfg, gate = run.recipe.total_vec_steps, run.cfg, run.gate

    def step_env(action: Tensor) -> Step:
        with run.split("simulate"):
            return run.env.step(action)

    vec_steps = rollout(step_env, run.acting.behaviour, run.explorer, run.obs, run.split)
    rounds = {} if cfg.lockstep else {"critic": run.critic_round, "policy": run.policy_round}
    with Interrupt(run.ranks) as interrupt, at_work(gate, rounds, run.device):
        while run.vec_steps < total and not interrupt.stops(run.vec_steps):
            gate.begin("actor")
            with run.one_at_a_time():
                run.refresh_actor()
                transition = next(vec_steps)
            run.collected(transition)
            run.collected_rows.put(copied(transition) if run.device.type == "cuda" else transition)
            gate.finish("actor")
            if cfg.lockstep:
                run.take_turns()
            last = run.vec_steps == total
            if run.due(last=last):
                with gate.still():
                    run.catch_up()
                    run.bookkeep(last=last)
            else:
                run.split.next_vec_step()
        if interrupt.agreed:
            with gate.still():
                run.catch_up()
                run.interrupted()
    return run.result(finished=run.vec_steps >= total)


@contextmanager
def at_work(
    gate: Gate, rounds: dict[str, Callable[[], None]], device: torch.device
) -> Iterator[None]:
    """Make each stage's rounds in a thread of its own, until the end of the block. An error in one of them ends the
    others, and comes out of the gate."""

    def work(stage: str, make_round: Callable[[], None]) -> None:
        try:
            stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
            with torch.cuda.stream(stream):
                while gate.begin(stage):
                    make_round()
                    gate.finish(stage)
        except BaseException as error:
            gate.fail(error)

    synchronize(device)  # what was built on this thread's stream is there
    threads = [
        threading.Thread(target=work, args=item, name=f"{item[0]} learner")
        for item in rounds.items()
    ]
    with quick_turns():
        try:
            for thread in threads:
                thread.start()
            yield
        finally:
            gate.stop()
            for thread in threads:
                if thread.ident is not None:
                    thread.join()


@dataclass(kw_only=True)
class SplitRun(Run):
    """A whole run in one process. `agent` is the critic learner's, and the whole truth after `catch_up`."""

    policy_updates: int = 0

    def __post_init__(self) -> None:
        recipe = self.recipe
        assert isinstance(recipe.topology, SplitLearnersConfig)
        self.cfg = recipe.topology
        self.valuing = as_actor_critic(self.agent)  # the critic learner's
        if not recipe.threads and self.device.type == "cpu":
            torch.set_num_threads(max(1, usable_cores() // len(STAGES)))
        self.acting, self.climbing = self._copy(), self._copy()  # the actor's, the policy learner's
        # The rows of the critic learner again in lockstep, otherwise others.
        seed = self.recipe.seeds().replay + (not self.cfg.lockstep)
        self.seen = Observations(recipe.replay, self.env.spec, seed=seed, device=self.device)
        self.policy_split = StepTimer(self.device)
        self.learn_critic = half_learner(
            "update_critic", recipe, self.valuing, self.replay, self.device, self.split
        )
        self.learn_policy = half_learner(
            "update_policy", recipe, self.climbing, self.seen, self.device, self.policy_split
        )
        self.critic = Versions(critic_weights(self.valuing))
        self.statistics = Versions(statistics(self.valuing))
        self.policy = Versions(policy_weights(self.climbing))
        self.acting_policy = Reader(self.policy, policy_weights(self.acting))
        self.acting_statistics = Reader(self.statistics, statistics(self.acting))
        self.valuing_policy = Reader(self.policy, policy_weights(self.valuing))
        self.climbing_critic = Reader(self.critic, critic_weights(self.climbing))
        self.climbing_statistics = Reader(self.statistics, statistics(self.climbing))
        self.collected_rows: Channel[Transition] = Channel()
        self.appended_obs: Channel[tuple[Obs, int]] = Channel()  # with the policy updates owed
        self.gate = Gate(
            STAGES,
            lead=self.cfg.lead,
            free_after=recipe.pace.warmup_vec_steps if self.cfg.free else None,
        )
        self.tallied = (self.vec_steps, self.updates, self.policy_updates)
        self.chunk = max(1, int(recipe.pace.updates_per_vec_step))  # updates of a free round
        self.climbs = False  # the policy learner has something to climb
        self.eager = resolved(recipe.execution, self.device) == "eager"
        self.learned_rounds = {"critic": 0, "policy": 0}  # with updates in them, in this process

    @classmethod
    def bytes_beside(cls, share: Recipe, spec: EnvSpec) -> int:
        return Observations.bytes(share.replay, spec)

    def _copy(self) -> ActorCritic:
        """Another agent, equal to the first as long as neither has learned."""
        return as_actor_critic(self.recipe.build_agent(self.env.spec, self.device))

    @contextmanager
    def one_at_a_time(self) -> Iterator[None]:
        """For a stage's round. Until both learners have compiled and recorded what they will use, no two at once: torch
        compiles one thread's modules with all of them patched, and a simulator may record CUDA graphs of its own."""
        if self.eager or min(self.learned_rounds.values()) >= SETTLED:
            yield
            return
        with RECORDING:
            yield
            synchronize(self.device)

    def refresh_actor(self) -> None:
        self.log.add({"split/acting_policy_lag": float(self.acting_policy.lag())})
        self.acting_policy.refresh()
        self.acting_statistics.refresh()

    def critic_round(self) -> None:
        with self.one_at_a_time():
            self._critic_round()

    def _critic_round(self) -> None:
        fresh, owed = self.take_in(None if self.cfg.free else 1)
        self.valuing_policy.refresh()
        self.log.add(self.learn_critic(owed))
        self.learned_rounds["critic"] += owed > 0
        self.log.add({"split/critic_learner_policy_lag": float(self.valuing_policy.lag())})
        self.publish_critic()
        due = every(self.valuing.policy_every, self.valuing.updates - owed, owed)
        for i, obs in enumerate(fresh):
            self.appended_obs.put((obs, sum(due) if i == 0 else 0))

    def take_in(self, most: int | None) -> tuple[list[Obs], int]:
        """Append vec steps that the actor has handed on; tells their observations and the critic updates due."""
        owed, fresh = 0, self.collected_rows.take(most)
        with self.split("append"):
            for transition in fresh:
                self.valuing.observe(transition)
                self.replay.append(transition)
                owed += self.pace.owed()
        if self.cfg.free and owed + self.valuing.updates > 0 and self.pace.held_vec_steps == 0:
            owed = self.chunk
        return [transition.obs for transition in fresh], owed

    def publish_critic(self) -> None:
        self.critic.publish()
        self.statistics.publish()

    def policy_round(self) -> None:
        with self.one_at_a_time():
            self._policy_round()

    def _policy_round(self) -> None:
        owed = self.take_in_obs(None if self.cfg.free else 1)
        if self.cfg.free and self.climbs:
            owed = max(1, self.chunk // self.climbing.policy_every)
        self.climbing_critic.refresh()
        self.climbing_statistics.refresh()
        self.log.add(self.learn_policy(owed))
        self.learned_rounds["policy"] += owed > 0
        self.log.add({"split/policy_learner_critic_lag": float(self.climbing_critic.lag())})
        self.policy.publish()
        self.policy_updates += owed
        self.policy_split.next_vec_step()

    def take_in_obs(self, most: int | None) -> int:
        """Append observations that the critic learner has handed on; tells the policy updates due with them."""
        fresh = self.appended_obs.take(most)
        for obs, _ in fresh:
            self.seen.append(obs)
        owed = sum(count for _, count in fresh)
        self.climbs = self.climbs or owed > 0
        return owed

    def take_turns(self) -> None:
        """The rounds of both learners, update by update."""
        (obs,), owed = self.take_in(1)
        self.seen.append(obs)
        self.publish_critic()
        for _ in range(owed):
            self.valuing_policy.refresh()
            self.log.add(self.learn_critic(1))
            self.publish_critic()
            self.climbing_critic.refresh()
            self.climbing_statistics.refresh()
            if self.valuing.updates % self.valuing.policy_every == 0:
                self.log.add(self.learn_policy(1))
                self.policy.publish()
                self.policy_updates += 1
            else:
                self.seen.sample(self.recipe.batch_size)  # stay at the rows of the critic learner
        for stage in STAGES[1:]:
            self.gate.finish(stage)

    def catch_up(self) -> None:
        """Make `agent` the whole truth. Only while the learners stand still."""
        synchronize(self.device)
        # Nothing is on its way, unless they run free.
        for obs in self.take_in(None)[0]:
            self.appended_obs.put((obs, 0))
        self.take_in_obs(None)
        self.valuing_policy.refresh()
        self.updates = self.valuing.updates
        synchronize(self.device)  # the learners go on with what was written on this thread's stream

    def flush_counters(self) -> None:
        super().flush_counters()
        now = (self.vec_steps, self.updates, self.policy_updates)
        steps, critic, policy = (a - b for a, b in zip(now, self.tallied, strict=True))
        self.tallied = now
        for stage, seconds in self.gate.waited.items():
            self.log.add({f"split/{stage}_wait_ms": 1e3 * seconds / max(1, steps)})
            self.gate.waited[stage] = 0.0
        if critic > 0 and steps > 0:
            self.log.add({"split/critic_updates_per_vec_step": critic / steps})
            self.log.add({"split/policy_updates_per_critic_update": policy / critic})
        times = self.policy_split.metrics()
        self.log.add({name.replace("/", "/policy_", 1): value for name, value in times.items()})

    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict()
        climbing = self.climbing.state_dict()
        state["agent"] |= {name: climbing[name] for name in self.climbing.policy_state}
        state["replay"] |= {"observations": self.seen.state_dict()}
        return state | {"policy_updates": self.policy_updates}

    def _load(self, state: dict[str, Any]) -> None:
        if "replay" in state:
            self.seen.load_state_dict(state["replay"].pop("observations"))
        super()._load(state)
        for agent in (self.acting, self.climbing):
            agent.load_state_dict(copy.deepcopy(state["agent"]))
        self.publish_critic()
        self.policy.publish()
        self.policy_updates = state["policy_updates"]
        self.tallied = (state["vec_steps"], state["updates"], self.policy_updates)
