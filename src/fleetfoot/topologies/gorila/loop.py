"""Gorila: bundles that learn on their own data and send their gradients to one parameter server.

Nair et al., "Massively Parallel Methods for Deep Reinforcement Learning", arXiv 1507.04296. Every bundle runs the loop
of `synchronous` on a replica of the network, cut at `step`: gradients go to the server, weights come back.

    (1)  pull when an episode begins; act; append; pull; sample; compute the gradient
    (2)  drop the gradient if its loss is above mean + `outlier_stds` std of the losses of this bundle
    (3)  otherwise send it, with the version of the weights it was computed with, and wait for the server

The server is in `server.py` and the bundle in `bundle.py`; neither depends on Ray. `ray_server.py` and `fleet.py` make
processes of them. The process that started the run, here, assigns work, evaluates, logs and saves.
"""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from fleetfoot.agents.contract import Agent
from fleetfoot.config import at_least, part
from fleetfoot.errors import UserError
from fleetfoot.evaluate import Evaluator
from fleetfoot.log import Log
from fleetfoot.recipe import Recipe, Result
from fleetfoot.run.interrupt import Interrupt
from fleetfoot.run.journal import Journal, State
from fleetfoot.run.loading import fitting
from fleetfoot.system import usable_cores
from fleetfoot.topologies.gorila.bundle import Report, build_agent
from fleetfoot.topologies.gorila.fleet import BundleFleet
from fleetfoot.topologies.gorila.ray_server import RayServer
from fleetfoot.topologies.gorila.replica import Replica
from fleetfoot.topologies.gorila.server import LAG_BINS, GradientStats
from fleetfoot.topologies.ray.cluster import RayConfig, cluster
from fleetfoot.topologies.ray.workers import Restarts

CPU = torch.device("cpu")


@part
class ParameterServerConfig:
    """Bundles of actor, replay and learner that send gradients to a sharded parameter server, as processes on Ray.

    `num_envs`, `batch_size`, `replay` and `pace` apply to each bundle. Vec steps are counted over all bundles.
    """

    bundles: int = 4
    """Number of processes that collect and compute gradients."""
    shards: int = 1
    """Number of processes that the parameters of the server are split over."""
    max_age: int | None = None
    """Drop gradients that are more updates behind the server than this; None: four per bundle."""
    outlier_stds: float | None = 4.0
    """Drop gradients whose loss is this many standard deviations above the mean of the bundle; None: never."""
    outlier_memory: int = 1_000
    """Number of past losses that mean and standard deviation cover. The first tenth of them is never dropped."""
    shift_vec_steps: int = 50
    """Vec steps that a bundle makes between two reports."""
    lockstep: bool = False
    """Bundles take turns and pull before every action. The result is deterministic, and with one bundle it
    equals that of `synchronous`."""
    ray: RayConfig = RayConfig()

    def __post_init__(self) -> None:
        at_least(self, "topology", bundles=1, shards=1, outlier_memory=1, shift_vec_steps=1)
        at_least(self, "topology", max_age=0)
        if self.outlier_stds is not None and not self.outlier_stds > 0:
            raise UserError(f"topology.outlier_stds must be above 0, not {self.outlier_stds}.")

    def run(self, recipe: Recipe, folder: Path, state: State | None) -> Result:
        torch.set_num_threads(recipe.threads or usable_cores())
        with ExitStack() as stack:
            seed = recipe.seeds().evaluation
            evaluator = Evaluator(recipe.env, recipe.evaluation, seed, CPU, recipe.env_timeout)
            stack.callback(evaluator.close)
            spec = replace(evaluator.env.spec, num_envs=recipe.num_envs)
            agent = build_agent(recipe, spec, self.bundles, CPU)  # UserErrors before Ray starts
            gpus = self.ray.gpus_of(recipe.torch_device())
            cpus = (self.bundles + self.shards) * self.ray.worker_cpus
            ray = stack.enter_context(cluster(self.ray, cpus=cpus, gpus=gpus, folder=folder))
            restarts = Restarts(self.ray.max_restarts)
            server = stack.enter_context(closing(RayServer(ray, self, recipe, agent, restarts)))
            fleet = stack.enter_context(closing(BundleFleet(ray, self, recipe, server)))
            journal = stack.enter_context(
                closing(Journal(recipe=recipe, folder=folder, device=CPU))
            )
            replica = Replica(server, agent.critic, agent.critic_target)
            run = ServerRun(journal, fleet, agent, replica, evaluator)
            if state is not None:
                with fitting():
                    journal.load_state_dict(state)
                    run.load_state_dict(state)
            fleet.start()
            journal.open(spec, resumed=state is not None)
            return train(journal, run)


@dataclass
class ServerRun:
    """The subject of the journal. Its agent is a replica that is evaluated and saved."""

    journal: Journal
    fleet: BundleFleet
    agent: Agent
    replica: Replica
    evaluator: Evaluator
    logged: GradientStats = field(default_factory=GradientStats)  # at the last log entry
    logged_at: int = 0  # vec steps

    def record(self, report: Report) -> None:
        self.journal.vec_steps += report.vec_steps
        for name, (total, count) in report.metrics.items():
            self.journal.log.add_total(name, total, count)

    def log_if_due(self) -> None:
        """Write a log entry that needs no bundle to stop."""
        log, every = self.journal.log, self.journal.log.every_vec_steps
        if self.journal.vec_steps // every > self.logged_at // every:
            self.flush_counters(log)
            log.flush(self.journal.counters())

    def flush_counters(self, log: Log) -> None:
        """Also pull the weights of the server."""
        server = self.fleet.server
        stats = server.retry(server.gradient_stats)
        self.journal.updates, self.logged_at = stats.total("accepted"), self.journal.vec_steps
        log.add(gradient_metrics(stats, self.logged))
        log.add({"fleet/restarts": float(server.restarts.count)})
        self.logged = stats
        server.retry(self.replica.pull)

    def evaluate(self, vec_steps: int) -> dict[str, float]:
        self.fleet.server.retry(self.replica.pull)  # a run that goes on begins with this
        return self.evaluator(self.agent.policy).metrics()

    def state_dict(self, *, with_replay: bool) -> State:
        policy = self.agent.policy.state_dict()
        return {"agent": {"policy": policy}} | self.fleet.state_dict(with_replay)

    def load_state_dict(self, state: State) -> None:
        self.logged = GradientStats(**state["server"][0]["gradient_stats"])
        self.logged_at = state["vec_steps"]
        self.fleet.load_state_dict(state)


def train(journal: Journal, run: ServerRun) -> Result:
    """The loop of the starting process."""
    recipe = journal.recipe
    # At a multiple of these all bundles stop.
    periods = recipe.evaluation.every_vec_steps, recipe.checkpoint.every_vec_steps
    with Interrupt() as interrupt, journal.rescuing(run, lambda: interrupt.asked):
        journal.catch_up(run)
        while not (journal.finished or interrupt.asked):
            stop = journal.next_multiple(*periods)
            for report in run.fleet.work(stop - journal.vec_steps, interrupt):
                run.record(report)
                if journal.vec_steps < stop:
                    run.log_if_due()
            if journal.vec_steps == stop:
                journal.after_vec_step(run)
        if interrupt.asked:
            journal.save_interrupted(run)
    return journal.result(run.agent.policy)


def gradient_metrics(now: GradientStats, before: GradientStats) -> dict[str, float]:
    """Counts of all gradients so far, and the lags of those since `before`."""
    outcomes = ("accepted", "stale", "outlying")
    metrics = {f"gradients/{outcome}": float(now.total(outcome)) for outcome in outcomes}
    lags = [a - b for a, b in zip(now.lags, before.lags, strict=True)]
    if min(lags) < 0 or sum(lags) == 0:  # the server was restored, or nothing arrived
        return metrics
    arrived = sum(lags)
    names = [f"lag/upto{end}" for end in LAG_BINS] + [f"lag/above{LAG_BINS[-1]}"]
    shares = {name: count / arrived for name, count in zip(names, lags, strict=True)}
    return metrics | shares | {"lag/mean": (now.lag_sum - before.lag_sum) / arrived}
