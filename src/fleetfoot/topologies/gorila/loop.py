"""Gorila: bundles that learn for themselves and send their gradients to one server.

Nair et al., "Massively Parallel Methods for Deep Reinforcement Learning", arXiv 1507.04296. Every bundle runs the loop
of `synchronous` on a replica of the network, and the loop is cut at `step`: gradients go to the server, weights come
back.

    (1)  pull when an episode begins; act; append; pull; sample; gradient
    (2)  throw the gradient away if its loss is above mean + `outlier_stds` std of the losses of this bundle
    (3)  otherwise send it, with the version of the weights it was computed with, and wait until the server has it

What the server does with it is in `server_shard.py`, the bundle is in `bundle.py`; both know nothing of Ray. Here they
become processes, and the process that started the run hands out work, evaluates, logs, saves and replaces what is lost.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fleetfoot.agents.contract import Agent
from fleetfoot.config import part
from fleetfoot.errors import UserError
from fleetfoot.evaluate import Evaluator
from fleetfoot.log import Log, Mean
from fleetfoot.log.split import TimeSplit
from fleetfoot.recipe import Recipe, Result
from fleetfoot.run.clock import Clock
from fleetfoot.run.folder import write_spec
from fleetfoot.run.interrupt import Interrupt
from fleetfoot.run.journal import Bookkeeping
from fleetfoot.system import usable_cores
from fleetfoot.topologies.gorila.bundle import Report, build_agent
from fleetfoot.topologies.gorila.fleet import BundleFleet
from fleetfoot.topologies.gorila.server import LAGS, GradientStats
from fleetfoot.topologies.ray.cluster import RayConfig, cluster

CPU = torch.device("cpu")


@part
class ParameterServerConfig:
    """Bundles of actor, learner and replay that send gradients to a sharded server, as processes on Ray.

    `num_envs`, `batch_size`, `replay` and `pace` are those of one bundle. Vec steps are counted over all bundles.
    """

    bundles: int = 4
    """Processes that collect and compute gradients."""
    shards: int = 1
    """Processes that the server's parameters are spread over."""
    max_age: int | None = None
    """Updates that a gradient may be behind the server before it is thrown away; None: four for each bundle."""
    outlier_stds: float | None = 4.0
    """Throw gradients away whose loss is so many standard deviations above the bundle's mean; None: never."""
    outlier_memory: int = 1_000
    """Losses that mean and standard deviation look back on; none is thrown away before a tenth of them was seen."""
    shift_vec_steps: int = 50
    """Vec steps that a bundle makes before it reports."""
    lockstep: bool = False
    """Bundles work in turns and pull before every action: the same weights every time, and with one bundle those of
    `synchronous`."""
    ray: RayConfig = RayConfig()

    def __post_init__(self) -> None:
        for name in ("bundles", "shards", "outlier_memory", "shift_vec_steps"):
            if getattr(self, name) < 1:
                raise UserError(f"topology.{name} must be at least 1, not {getattr(self, name)}.")
        if self.max_age is not None and self.max_age < 0:
            raise UserError(f"topology.max_age must be 0 or more, not {self.max_age}.")
        if self.outlier_stds is not None and not self.outlier_stds > 0:
            raise UserError(f"topology.outlier_stds must be above 0, not {self.outlier_stds}.")

    def run(self, recipe: Recipe, folder: Path, state: dict[str, Any] | None) -> Result:
        gpus = self.ray.gpus_of(recipe.torch_device())
        cpus = (self.bundles + self.shards) * self.ray.worker_cpus
        torch.set_num_threads(recipe.threads or usable_cores())
        with closing(
            Evaluator(recipe.env, recipe.evaluation, recipe.seeds().evaluation, CPU)
        ) as evaluator:
            spec = replace(evaluator.env.spec, num_envs=recipe.num_envs)
            agent = build_agent(recipe, spec, self.bundles, CPU)  # mistakes show before Ray starts
            with (
                cluster(self.ray, cpus=cpus, gpus=gpus) as ray,
                closing(BundleFleet(ray, self, recipe, agent)) as fleet,
                closing(ServerRun.of(recipe, folder, state, agent, evaluator, fleet)) as run,
            ):
                fleet.start(state)
                run.clock.restart(run.clock.before)  # starting processes is no training
                return parameter_server(run)


def parameter_server(run: ServerRun) -> Result:
    total = run.recipe.total_vec_steps
    with Interrupt() as interrupt:
        while run.vec_steps < total and not interrupt.asked:
            stop = run.next_stop()
            for report in run.fleet.work(stop - run.vec_steps, interrupt):
                run.take(report)
                if run.vec_steps < stop:
                    run.maybe_log()
            if run.vec_steps == stop:
                run.bookkeep(last=stop == total)
        if interrupt.asked:
            run.interrupted()
    return run.result(finished=run.vec_steps >= total)


@dataclass(kw_only=True)
class ServerRun(Bookkeeping):
    """The starting process's view of a run. Its agent is a replica that is evaluated and saved, and learns nothing; the
    paces that count are those of the bundles."""

    fleet: BundleFleet
    evaluator: Evaluator
    logged: GradientStats  # of the server, when they were last logged
    logged_at: int = 0  # vec steps

    @staticmethod
    def of(
        recipe: Recipe,
        folder: Path,
        state: dict[str, Any] | None,
        agent: Agent,
        evaluator: Evaluator,
        fleet: BundleFleet,
    ) -> ServerRun:
        run = ServerRun(
            recipe=recipe,
            folder=folder,
            device=CPU,
            agent=agent,
            pace=recipe.pace.build(),
            log=Log([]),
            checkpoint=recipe.checkpoint.build(folder / "checkpoints"),
            clock=Clock(),
            split=TimeSplit(CPU),
            fleet=fleet,
            evaluator=evaluator,
            logged=GradientStats(),
        )
        if state is not None:
            run.load_state_dict(state)
        run.log = run.open_log(resumed=state is not None)
        write_spec(folder, evaluator.env.spec)
        run.logged_at = run.vec_steps
        return run

    def next_stop(self) -> int:
        """The vec step at which something needs all bundles to stand still."""
        every = (self.recipe.evaluation.every_vec_steps, self.recipe.checkpoint.every_vec_steps)
        return self.next_of(*every)

    def take(self, report: Report) -> None:
        self.vec_steps += report.vec_steps
        both = {k: (torch.tensor(t), torch.tensor(n)) for k, (t, n) in report.sums.items()}
        self.log.add({name: Mean(total, count) for name, (total, count) in both.items()})

    def maybe_log(self) -> None:
        every = self.log.every_vec_steps
        if self.vec_steps // every > self.logged_at // every:
            self.flush_counters()
            self.log.flush(self.counters())

    def flush_counters(self) -> None:
        """Also makes the agent what the server is now."""
        books = self.fleet.ask(self.fleet.server.books)
        self.updates, self.logged_at = books.total("accepted"), self.vec_steps
        self.log.add(gradient_metrics(books, self.logged))
        self.log.add({"fleet/restarts": float(self.fleet.restarts.count)})
        self.logged = books
        self.fleet.ask(self.fleet.replica.pull)

    def evaluate(self) -> dict[str, float]:
        return self.evaluator(self.agent.policy).metrics()

    def state_dict(self) -> dict[str, Any]:
        return self._state(with_replay=True)

    def state_without_replay(self) -> dict[str, Any]:
        return self._state(with_replay=False)

    def _state(self, *, with_replay: bool) -> dict[str, Any]:
        own = super().state_dict() | {"agent": {"policy": self.agent.policy.state_dict()}}
        return own | self.fleet.state_dict(with_replay)

    def _load(self, state: dict[str, Any]) -> None:
        """The server and the bundles load their own."""
        self.logged = GradientStats(**state["server"][0]["books"])


def gradient_metrics(now: GradientStats, before: GradientStats) -> dict[str, float]:
    """What became of all gradients so far, and how far behind those since `before` were."""
    kinds = ("accepted", "stale", "outlying")
    metrics = {f"gradients/{kind}": float(now.total(kind)) for kind in kinds}
    fresh = [a - b for a, b in zip(now.lags, before.lags, strict=True)]
    if min(fresh) < 0 or sum(fresh) == 0:  # it went back to a checkpoint, or nothing arrived
        return metrics
    arrived = sum(fresh)
    names = [f"lag/upto{end}" for end in LAGS] + [f"lag/above{LAGS[-1]}"]
    shares = {name: count / arrived for name, count in zip(names, fresh, strict=True)}
    return metrics | shares | {"lag/mean": (now.lag_sum - before.lag_sum) / arrived}
