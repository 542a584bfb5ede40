"""A bundle of Gorila: an actor and a learner with a replay of their own, on a replica of the server's network.

The bundle runs the loop of `synchronous`. Three things take the place of an agent's own, from outside: its stepper
sends gradients to the server instead of making a step, its target does not follow by itself, and both the network and
its target change by pulls alone.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor

from fleetfoot.agents.contract import Served, as_served
from fleetfoot.data import EnvSpec
from fleetfoot.errors import UserError
from fleetfoot.execution import updater
from fleetfoot.explore import check_behaviour
from fleetfoot.log import EpisodeStats, Mean
from fleetfoot.log.timer import StepTimer
from fleetfoot.optim import LocalStepper
from fleetfoot.recipe import Recipe, Seeds
from fleetfoot.rollout import rollout
from fleetfoot.topologies.gorila.server import NOTHING, Server, ServerConfig, Version

T = TypeVar("T")
CARRIED_STATE = ("explorer", "pace", "outliers")  # what a successor of a lost bundle goes on with


class ServerLost(Exception):  # noqa: N818
    """A shard does not answer any more."""


def build_agent(recipe: Recipe, spec: EnvSpec, bundles: int, device: torch.device) -> Served:
    """The recipe's agent, if a parameter server can teach it."""
    agent = recipe.build_agent(spec, device, total_updates=total_updates(recipe, bundles))
    name, use = type(agent).__name__, "use DQNConfig, or another topology."
    served = as_served(agent)
    taught = {id(p) for p in served.step_critic.parameters}
    if {id(p) for p in served.policy.parameters()} != taught:
        raise UserError(f"{name} has more networks than the parameter server teaches: {use}")
    if len(served.critic.state_dict()) != len(served.step_critic.parameters):
        raise UserError(
            f"{name} keeps statistics besides its weights, which a parameter server does not carry: "
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
    """Do weights off their place come back to it?"""
    weights: list[Tensor] = list(step.parameters)
    before = [w.clone() for w in weights]
    moved = [w * 1.5 + 0.1 for w in before]
    torch._foreach_copy_(weights, moved)
    step.constrain_()
    kept = all(torch.equal(w, m) for w, m in zip(weights, moved, strict=True))
    torch._foreach_copy_(weights, before)
    return not kept


def total_updates(recipe: Recipe, bundles: int) -> int:
    """Updates of a whole run, if no gradient is thrown away: every bundle has a warm-up of its own."""
    return max(1, bundles * recipe.pace.updates_after(recipe.total_vec_steps // bundles))


def make_rule(agent: Served, total: int, max_age: int) -> ServerConfig:
    return ServerConfig(
        optim=dataclasses.replace(agent.step_critic.cfg, max_grad_norm=None),
        total_updates=total,
        target_every=agent.target_every,
        tau=agent.tau,
        max_age=max_age,
    )


def flat(tensors: list[Tensor]) -> Tensor:
    """End to end, on the CPU."""
    return torch.cat([t.detach().reshape(-1) for t in tensors]).cpu()


class Outliers:
    """A running mean and standard deviation of one bundle's losses, and the test that goes by them.

    Every loss counts with 1/n at first and with 1/memory later, also those that are refused: otherwise a bound that
    losses have outgrown would stay where it is.
    """

    def __init__(self, stds: float | None, memory: int):
        self.stds, self.memory = stds, memory
        self.count, self.mean, self.var = 0, 0.0, 0.0

    def take(self, loss: float) -> bool:
        """Is this loss within so many standard deviations of those before?"""
        if not math.isfinite(loss):
            return False  # the log will stop the run; the server must not learn from it
        usual = self.stds is None or self.count < self.memory // 10
        usual = usual or loss <= self.mean + cast(float, self.stds) * math.sqrt(self.var)
        self.count += 1
        share = max(1 / self.count, 1 / self.memory)
        away = loss - self.mean
        self.mean += share * away
        self.var = (1 - share) * (self.var + share * away * away)
        return usual

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count, "mean": self.mean, "var": self.var}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count, self.mean, self.var = state["count"], state["mean"], state["var"]


class Replica:
    """A network and its target that change by pulls alone."""

    def __init__(self, server: Server, agent: Served):
        self.server = server
        self.weights: list[Tensor] = list(agent.critic.parameters())
        self.target: list[Tensor] = list(agent.critic_target.parameters())
        self.flat, self.flat_target = flat(self.weights), flat(self.target)
        self.known = [NOTHING] * len(server.cuts)

    @property
    def stamp(self) -> Version:
        """Of the oldest part: other bundles may have changed the server between two shards' answers."""
        return min(self.known)

    def pull(self) -> None:
        answers = self.server.pull(self.known)
        for place, new in zip(self.server.cuts, answers, strict=True):
            if new.weights is not None:
                self.flat[place.start : place.stop] = new.weights
            if new.target is not None:
                self.flat_target[place.start : place.stop] = new.target
        if any(new.weights is not None for new in answers):
            _spread(self.flat, self.weights)
        if any(new.target is not None for new in answers):
            _spread(self.flat_target, self.target)
        self.known = [new.stamp for new in answers]


@torch.no_grad()
def _spread(vector: Tensor, tensors: list[Tensor]) -> None:
    parts = vector.split_with_sizes([t.numel() for t in tensors])
    torch._foreach_copy_(tensors, [p.view_as(t) for p, t in zip(parts, tensors, strict=True)])


class RemoteStepper:
    """From a loss to changed weights, of which only the first half happens here."""

    def __init__(self, local: LocalStepper, replica: Replica, outliers: Outliers, bundle: int):
        self.local, self.replica, self.outliers, self.bundle = local, replica, outliers, bundle
        self.computed = 0

    def __call__(self, loss: Tensor) -> Tensor:
        gradients = self.local.gradients(loss)
        norm = torch.nn.utils.get_total_norm(gradients)
        most = self.local.cfg.max_grad_norm
        if most is not None:  # here, where the whole gradient is
            torch._foreach_mul_(gradients, (most / (norm + 1e-6)).clamp(max=1.0))
        self.computed += 1
        server = self.replica.server
        if self.outliers.take(abs(float(loss.detach()))):
            server.push(flat(gradients), self.replica.stamp, self.bundle)
        else:
            server.outlying(self.bundle)
        return norm

    def state_dict(self) -> dict[str, Any]:
        """The optimiser's state is the server's."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Report(NamedTuple):
    """What a bundle tells after a piece of work."""

    vec_steps: int
    computed: int  # gradients
    sums: dict[str, tuple[float, float]]  # of each metric: total and count
    habits: dict[str, Any]  # what a successor should go on with, should this bundle be lost
    server_lost: bool  # a shard did not answer: the work ended early


class Sums:
    """Totals and counts of metrics."""

    def __init__(self) -> None:
        self.totals: dict[str, Tensor | float] = {}
        self.counts: dict[str, Tensor | float] = {}

    def add(self, metrics: Mapping[str, Tensor | Mean]) -> None:
        for name, value in metrics.items():
            wide = (value.total if isinstance(value, Mean) else value.detach()).double()
            count = value.count if isinstance(value, Mean) else 1.0
            self.totals[name] = self.totals.get(name, 0.0) + wide.mean()
            self.counts[name] = self.counts.get(name, 0.0) + count

    def read(self) -> dict[str, tuple[float, float]]:
        read = {name: (float(t), float(self.counts[name])) for name, t in self.totals.items()}
        self.totals, self.counts = {}, {}
        return read


def bundle_seeds(seed: int, index: int, life: int) -> Seeds:
    """A bundle that is alone draws what `synchronous` draws. All others have random numbers of their own, and so have
    those that take the place of a lost one."""
    return Seeds.of(seed, index, life) if index or life else Seeds.of(seed)


def shortened(part: T, bundles: int) -> T:
    """A part whose lengths in vec steps are those of the whole run, for a bundle that makes its share of them."""
    lengths = {
        f.name: -(-getattr(part, f.name) // bundles)
        for f in dataclasses.fields(cast(Any, part))
        if f.name.endswith("_vec_steps")
    }
    return cast(T, dataclasses.replace(cast(Any, part), **lengths))


class Bundle:
    def __init__(
        self,
        recipe: Recipe,
        server: Server,
        *,
        bundles: int,
        index: int = 0,
        life: int = 0,
        lockstep: bool = False,
        outlier_stds: float | None = None,
        outlier_memory: int = 1000,
    ):
        device, seeds = recipe.torch_device(), bundle_seeds(recipe.seed, index, life)
        self.recipe, self.index, self.lockstep = recipe, index, lockstep
        self.env = recipe.env.build(recipe.num_envs, seeds.env, device)
        spec = self.env.spec
        self.agent = build_agent(recipe, spec, bundles, device)
        explorer = shortened(recipe.explorer, bundles)
        self.explorer = explorer.build(spec, seed=seeds.explorer, device=device)
        self.replay = recipe.replay.build(
            spec, gamma=recipe.gamma, seed=seeds.replay, device=device
        )
        self.pace = recipe.pace.build()
        self.episodes = EpisodeStats(recipe.num_envs, device)
        check_behaviour(self.agent.behaviour, self.explorer.takes_noise)
        self.replica = Replica(server, self.agent)
        self.outliers = Outliers(outlier_stds, outlier_memory)
        self.stepper = RemoteStepper(self.agent.step_critic, self.replica, self.outliers, index)
        self.agent.step_critic = self.stepper
        self.agent.update_target = lambda: None  # type: ignore[method-assign]  # the server's target does
        self.update = updater(
            self.agent, precision=recipe.precision, mode=recipe.execution, device=device
        )
        self.sums = Sums()
        self.begun = True  # an episode has just begun somewhere
        first, split = self.env.reset(), StepTimer(device)
        self.steps = rollout(self.env.step, self.agent.behaviour, self.explorer, first, split)

    def work(self, vec_steps: int) -> Report:
        """Make so many vec steps and what the pace owes after each."""
        done, before = 0, self.stepper.computed
        server_lost = False
        try:
            for _ in range(vec_steps):
                self.collect()
                done += 1
                self.learn()
        except ServerLost:
            server_lost = True
        self.sums.add(self.episodes.metrics())
        habits = {name: getattr(self, name).state_dict() for name in CARRIED_STATE}
        computed = self.stepper.computed - before
        return Report(done, computed, self.sums.read(), habits, server_lost)

    def collect(self) -> None:
        if self.begun or self.lockstep:
            self.replica.pull()
        fresh = next(self.steps)
        ended = fresh.terminated | fresh.truncated
        self.begun = bool(ended.any())
        self.agent.observe(fresh)
        self.replay.append(fresh)
        self.episodes.update(fresh.reward, ended)
        seen = {"env/obs_magnitude": fresh.next_obs.actor.float().abs().mean()}
        self.sums.add(seen | {"env/reward": fresh.reward, **fresh.info})

    def learn(self) -> None:
        owed = self.pace.owed()
        for _ in range(owed):
            self.replica.pull()  # after acting and before the gradient
            batch = self.replay.sample(self.recipe.batch_size)
            learned = self.update(batch)
            self.replay.reprioritize(batch.row_id, learned.td_error)
            self.sums.add(learned.metrics)
        self.replay.trim(owed)

    def succeed(self, habits: dict[str, Any]) -> None:
        """Take the place of a bundle that was lost: go on exploring where it was, and fill the replay first."""
        for name, state in habits.items():
            getattr(self, name).load_state_dict(state)
        self.pace.hold(self.recipe.pace.warmup_vec_steps)

    def state_dict(self, with_replay: bool) -> dict[str, Any]:
        state = {
            name: getattr(self, name).state_dict() for name in (*CARRIED_STATE, "episodes", "env")
        }
        return state | {"replay": self.replay.state_dict() if with_replay else None}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in (*CARRIED_STATE, "episodes"):
            getattr(self, name).load_state_dict(state[name])
        if state["replay"] is None:
            self.pace.hold(self.recipe.pace.warmup_vec_steps)
        else:
            self.replay.load_state_dict(state["replay"])
        if state["env"] is not None:
            obs = self.env.load_state_dict(state["env"])
            split = StepTimer(self.env.spec.device)
            self.steps = rollout(self.env.step, self.agent.behaviour, self.explorer, obs, split)
        else:  # the simulator began anew: what follows does not continue
            self.replay.mark_break()
            self.episodes.restart()
            everywhere = torch.ones(
                self.recipe.num_envs, dtype=torch.bool, device=self.env.spec.device
            )
            self.explorer.restart(everywhere)

    def close(self) -> None:
        self.env.close()
