"""A bundle of Gorila: an actor, a replay and a learner that work on a replica of the server's network.

The bundle runs the loop of `synchronous`. It replaces three things of the agent from outside: the stepper sends
gradients to the server instead of applying them, the agent does not update its target, and pulls overwrite the network
and its target.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor

from fleetfoot.agents.contract import Served, as_served, traits
from fleetfoot.checkpoint import check_collector_fits
from fleetfoot.data import EnvSpec, Obs, Transition
from fleetfoot.errors import UserError
from fleetfoot.execution import updater
from fleetfoot.explore import check_behaviour
from fleetfoot.guard import build_env
from fleetfoot.log import EpisodeStats, Log, Totals
from fleetfoot.log.timer import StepTimer
from fleetfoot.optim import LocalStepper
from fleetfoot.recipe import Recipe, Seeds
from fleetfoot.rollout import rollout
from fleetfoot.run.journal import step_metrics
from fleetfoot.run.loading import fitting
from fleetfoot.topologies.gorila.replica import Outliers, RemoteStepper, Replica, ServerLost
from fleetfoot.topologies.gorila.server import Server, ServerConfig

T = TypeVar("T")
# Parts of a bundle whose state passes on to the bundle that replaces it.
CARRIED_STATE = ("explorer", "pace", "outliers")


def build_agent(recipe: Recipe, spec: EnvSpec, bundles: int, device: torch.device) -> Served:
    """The agent of the recipe; UserError where a parameter server cannot train it."""
    agent = recipe.build_agent(spec, device, total_updates=total_updates(recipe, bundles))
    name, use = type(agent).__name__, "use DQNConfig, or another topology."
    served = as_served(agent)
    if traits(recipe.agent).follows_episodes:
        raise UserError(
            f"{name} would scale rewards in each bundle by what that bundle has seen: give --agent.v-min and "
            "--agent.v-max as numbers."
        )
    trained = {id(p) for p in served.step_critic.parameters}
    if {id(p) for p in served.policy.parameters()} != trained:
        raise UserError(f"{name} has more networks than the parameter server trains: {use}")
    if len(served.critic.state_dict()) != len(served.step_critic.parameters):
        raise UserError(
            f"{name} keeps statistics besides its weights, which a parameter server does not share: "
            "use --agent.no-normalize-obs."
        )
    if _is_constrained(served.step_critic):
        raise UserError(
            "this network keeps its weights on a manifold, which the shards of a parameter server cannot: "
            "use another network, say MLPConfig."
        )
    return served


@torch.no_grad()
def _is_constrained(step: LocalStepper) -> bool:
    """Does `constrain_` change the weights?"""
    weights: list[Tensor] = list(step.parameters)
    before = [w.clone() for w in weights]
    shifted = [w * 1.5 + 0.1 for w in before]
    torch._foreach_copy_(weights, shifted)
    step.constrain_()
    unchanged = all(torch.equal(w, s) for w, s in zip(weights, shifted, strict=True))
    torch._foreach_copy_(weights, before)
    return not unchanged


def total_updates(recipe: Recipe, bundles: int) -> int:
    """Updates of a whole run in which no gradient is dropped. Every bundle has its own warm-up."""
    return max(1, bundles * recipe.pace.updates_after(recipe.total_vec_steps // bundles))


def server_config(agent: Served, total: int, max_age: int) -> ServerConfig:
    """How the server updates the weights of `agent`."""
    return ServerConfig(
        optim=dataclasses.replace(agent.step_critic.cfg, max_grad_norm=None),
        total_updates=total,
        target_every=agent.target_every,
        tau=agent.tau,
        max_age=max_age,
    )


class Report(NamedTuple):
    """What a bundle reports after a shift."""

    vec_steps: int
    num_gradients: int
    metrics: Totals
    carried_state: dict[str, Any]  # for the bundle that replaces this one, if it is lost
    server_lost: bool  # a shard had died: the shift ended early


def bundle_seeds(seed: int, index: int, incarnation: int) -> Seeds:
    """The first bundle draws the random numbers of `synchronous`. Every other bundle, and every replacement of a lost
    one, has its own."""
    return Seeds.of(seed, index, incarnation) if index or incarnation else Seeds.of(seed)


def per_bundle(part: T, bundles: int) -> T:
    """A part whose durations are in vec steps of the whole run, converted to the vec steps of one bundle."""
    durations = {
        f.name: -(-getattr(part, f.name) // bundles)
        for f in dataclasses.fields(cast(Any, part))
        if f.name.endswith("_vec_steps")
    }
    return cast(T, dataclasses.replace(cast(Any, part), **durations))


class Bundle:
    """Environments, replay and learner of one bundle."""

    def __init__(
        self,
        recipe: Recipe,
        server: Server,
        *,
        bundles: int,
        index: int = 0,
        incarnation: int = 0,
        lockstep: bool = False,
        outlier_stds: float | None = None,
        outlier_memory: int = 1000,
    ):
        """`incarnation`: how often this bundle has been replaced."""
        device, seeds = recipe.torch_device(), bundle_seeds(recipe.seed, index, incarnation)
        self.recipe, self.index, self.lockstep = recipe, index, lockstep
        self.env = build_env(recipe.env, recipe.num_envs, seeds.env, device, recipe.env_timeout)
        spec = self.env.spec
        self.agent = build_agent(recipe, spec, bundles, device)
        explorer = per_bundle(recipe.explorer, bundles)
        self.explorer = explorer.build(spec, seed=seeds.explorer, device=device)
        self.replay = recipe.off_policy_replay().build(
            spec, gamma=recipe.gamma, seed=seeds.replay, device=device
        )
        self.pace = recipe.pace.build()
        self.episodes = EpisodeStats(recipe.num_envs, device)
        check_behaviour(self.agent.behaviour, self.explorer.takes_noise)
        self.replica = Replica(server, self.agent.critic, self.agent.critic_target)
        self.outliers = Outliers(outlier_stds, outlier_memory)
        self.stepper = RemoteStepper(self.agent.step_critic, self.replica, self.outliers, index)
        self.agent.step_critic = self.stepper
        self.agent.update_target = lambda: None  # type: ignore[method-assign]  # the server updates it
        self.update = updater(
            self.agent, precision=recipe.precision, mode=recipe.execution, device=device
        )
        self.log = Log([])
        self.episode_began = True  # in any environment, at the last vec step
        self.steps = self._rollout(self.env.reset())

    def _rollout(self, obs: Obs) -> Iterator[Transition]:
        timer = StepTimer(self.env.spec.device)
        return rollout(self.env.step, self.agent.behaviour, self.explorer, obs, timer)

    def work(self, vec_steps: int) -> Report:
        """One shift: make `vec_steps`, and after each the updates that the pace asks for."""
        steps_done, gradients_before = 0, self.stepper.num_gradients
        server_lost = False
        try:
            for _ in range(vec_steps):
                self.collect()
                steps_done += 1
                self.learn()
        except ServerLost:
            server_lost = True
        self.log.add(self.episodes.metrics())
        return Report(
            vec_steps=steps_done,
            num_gradients=self.stepper.num_gradients - gradients_before,
            metrics=self.log.totals(),
            carried_state=self.carried_state(),
            server_lost=server_lost,
        )

    def collect(self) -> None:
        if self.episode_began or self.lockstep:
            self.replica.pull()
        fresh = next(self.steps)
        ended = fresh.terminated | fresh.truncated
        self.episode_began = bool(ended.any())
        self.agent.observe(fresh)
        self.replay.append(fresh)
        self.episodes.update(fresh.reward, ended)
        self.log.add(step_metrics(fresh))

    def learn(self) -> None:
        updates = self.pace.owed()
        for _ in range(updates):
            self.replica.pull()  # after acting and before the gradient
            batch = self.replay.sample(self.recipe.batch_size)
            learned = self.update(batch)
            self.replay.reprioritize(batch.row_id, learned.td_error)
            self.log.add(learned.metrics)
        self.replay.trim(updates)

    def carried_state(self) -> dict[str, Any]:
        return {name: getattr(self, name).state_dict() for name in CARRIED_STATE}

    def take_over(self, carried_state: dict[str, Any]) -> None:
        """Replace a lost bundle: continue its schedules, and fill the replay before the first update."""
        for name, state in carried_state.items():
            getattr(self, name).load_state_dict(state)
        self.pace.hold(self.recipe.pace.warmup_vec_steps)

    def state_dict(self, with_replay: bool) -> dict[str, Any]:
        return self.carried_state() | {
            "episodes": self.episodes.state_dict(),
            "env": self.env.state_dict(),
            "replay": self.replay.state_dict() if with_replay else None,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        own = self.state_dict(with_replay=state["replay"] is not None)
        with fitting():
            check_collector_fits(state, own, self.recipe.num_envs)
        for name in (*CARRIED_STATE, "episodes"):
            getattr(self, name).load_state_dict(state[name])
        if state["replay"] is None:
            self.pace.hold(self.recipe.pace.warmup_vec_steps)
        else:
            self.replay.load_state_dict(state["replay"])
        if state["env"] is not None:
            self.steps = self._rollout(self.env.load_state_dict(state["env"]))
        else:  # the simulator starts again: the next transitions do not continue the stored ones
            self.replay.mark_break()
            self.episodes.restart()
            everywhere = torch.ones(
                self.recipe.num_envs, dtype=torch.bool, device=self.env.spec.device
            )
            self.explorer.restart(everywhere)

    def close(self) -> None:
        self.env.close()
