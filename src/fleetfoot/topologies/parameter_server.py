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

import dataclasses
from pathlib import Path
from typing import Any

import torch

from fleetfoot.evaluate import Evaluator
from fleetfoot.log import EVAL_RETURN, Counters, Log, Mean
from fleetfoot.part import UserError, part, to_json
from fleetfoot.recipe import Recipe, Result, usable_cores
from fleetfoot.topologies.bundle import Report, build_agent
from fleetfoot.topologies.bundle_fleet import BundleFleet
from fleetfoot.topologies.cluster import RayConfig, cluster
from fleetfoot.topologies.run import Clock, Interrupt
from fleetfoot.topologies.server_shard import LAGS, Books


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
        books = Bookkeeper(self, recipe, folder, state)
        try:
            with cluster(self.ray, cpus=cpus, gpus=gpus) as ray:
                fleet = BundleFleet(ray, self, recipe, books.agent)
                try:
                    fleet.start(state)
                    books.clock.restart(books.clock.before)  # starting processes is no training
                    return parameter_server(fleet, books)
                finally:
                    fleet.close()
        finally:
            books.close()


def parameter_server(fleet: BundleFleet, books: Bookkeeper) -> Result:
    total = books.recipe.total_vec_steps
    with Interrupt() as interrupt:
        while books.vec_steps < total and not interrupt.asked:
            stop = books.next_stop()
            for report in fleet.work(stop - books.vec_steps, interrupt):
                books.take(report)
                if books.vec_steps < stop:
                    books.maybe_log(fleet)
            if books.vec_steps == stop:
                books.bookkeep(fleet, last=stop == total)
        if interrupt.asked:
            books.interrupted(fleet)
    return books.result(finished=books.vec_steps >= total)


class Bookkeeper:
    """What the starting process keeps for itself: counts, clock, log, evaluation, checkpoints."""

    def __init__(
        self, cfg: ParameterServerConfig, recipe: Recipe, folder: Path, state: dict[str, Any] | None
    ):
        device, seeds = torch.device("cpu"), recipe.seeds()
        self.cfg, self.recipe, self.folder = cfg, recipe, folder
        self.evaluator = Evaluator(recipe.env, recipe.evaluation, seeds.evaluation, device)
        spec = dataclasses.replace(self.evaluator.env.spec, num_envs=recipe.num_envs)
        self.agent = build_agent(recipe, spec, cfg.bundles, device)
        self.checkpoint = recipe.checkpoint.build(folder / "checkpoints")
        self.clock = Clock()
        self.vec_steps = self.updates = 0
        self.last_return = self.best_return = float("nan")
        self.saved_at = -1
        self.logged = Books()
        if state is not None:
            self.vec_steps, self.updates = state["vec_steps"], state["updates"]
            self.last_return, self.best_return = state["last_return"], state["best_return"]
            self.clock.restart(state["train_seconds"])
            self.saved_at = self.vec_steps
            self.logged = Books(**state["server"][0]["books"])
        self.logged_at = self.vec_steps
        self.log: Log = recipe.log.build(
            folder,
            total_vec_steps=recipe.total_vec_steps,
            recipe_json=to_json(recipe),
            resumed=None if state is None else self.counters(),
            best=None if self.best_return != self.best_return else self.best_return,
        )

    def counters(self) -> Counters:
        return Counters(
            vec_steps=self.vec_steps,
            env_steps=self.vec_steps * self.recipe.num_envs,
            updates=self.updates,
            train_seconds=self.clock.seconds(),
        )

    def next_stop(self) -> int:
        """The vec step at which something needs all bundles to stand still."""
        every = (self.recipe.evaluation.every_vec_steps, self.recipe.checkpoint.every_vec_steps)
        stops = ((self.vec_steps // e + 1) * e for e in every if e > 0)
        return min([self.recipe.total_vec_steps, *stops])

    def take(self, report: Report) -> None:
        self.vec_steps += report.vec_steps
        both = {k: (torch.tensor(t), torch.tensor(n)) for k, (t, n) in report.sums.items()}
        self.log.add({name: Mean(total, count) for name, (total, count) in both.items()})

    def maybe_log(self, fleet: BundleFleet) -> None:
        every = self.log.every_vec_steps
        if self.vec_steps // every > self.logged_at // every:
            metrics = self.read(fleet)
            self.log.write(self.counters(), metrics)

    def read(self, fleet: BundleFleet) -> dict[str, float]:
        """The metrics since the last reading."""
        books = fleet.ask(fleet.server.books)
        self.updates, self.logged_at = books.total("accepted"), self.vec_steps
        metrics = self.log.read(self.counters()) | gradient_metrics(books, self.logged)
        self.logged = books
        return metrics | {"fleet/restarts": float(fleet.restarts.count)}

    def bookkeep(self, fleet: BundleFleet, *, last: bool) -> None:
        """Evaluate and save when each is due, and both at the `last` step. All bundles are idle."""
        every = self.recipe.evaluation.every_vec_steps
        evaluate = last or (every > 0 and self.vec_steps % every == 0)
        save = last or self.recipe.checkpoint.due(self.vec_steps)
        if not (evaluate or save):
            return
        with self.clock.paused():
            metrics = self.read(fleet)
            fleet.ask(fleet.replica.pull)
            if evaluate:
                metrics |= self.evaluator(self.agent.policy).metrics()
            self.log.write(self.counters(), metrics)
            if evaluate:
                self.last_return = metrics[EVAL_RETURN]
                if not self.last_return <= self.best_return:  # also when there was none before
                    self.best_return = self.last_return
                    self.checkpoint.save_best(
                        self.state_dict(fleet, with_replay=False),
                        recipe_json=to_json(self.recipe),
                        step=self.vec_steps,
                        score=self.best_return,
                    )
            if save:
                self.save(fleet)

    def save(self, fleet: BundleFleet) -> None:
        self.checkpoint.save(
            self.state_dict(fleet, with_replay=self.recipe.checkpoint.replay),
            recipe_json=to_json(self.recipe),
            step=self.vec_steps,
        )
        self.saved_at = self.vec_steps

    def interrupted(self, fleet: BundleFleet) -> None:
        """Save at once, unless what would be saved is spoiled or saved already."""
        if self.saved_at != self.vec_steps:
            metrics = self.read(fleet)
            self.log.write(self.counters(), metrics)
            fleet.ask(fleet.replica.pull)
            self.save(fleet)

    def state_dict(self, fleet: BundleFleet, *, with_replay: bool) -> dict[str, Any]:
        return fleet.state_dict(with_replay) | {
            "agent": {"policy": self.agent.policy.state_dict()},
            "vec_steps": self.vec_steps,
            "updates": self.updates,
            "train_seconds": self.clock.seconds(),
            "last_return": self.last_return,
            "best_return": self.best_return,
        }

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
        self.evaluator.close()
        self.log.close()


def gradient_metrics(now: Books, before: Books) -> dict[str, float]:
    """What became of all gradients so far, and how far behind those since `before` were."""
    kinds = ("accepted", "stale", "outlying")
    metrics = {f"gradients/{kind}": float(now.total(kind)) for kind in kinds}
    fresh = [a - b for a, b in zip(now.lags, before.lags, strict=True)]
    if (
        min(fresh) < 0 or sum(fresh) == 0
    ):  # the server went back to a checkpoint, or nothing arrived
        return metrics
    arrived = sum(fresh)
    names = [f"lag/upto{end}" for end in LAGS] + [f"lag/above{LAGS[-1]}"]
    shares = {name: count / arrived for name, count in zip(names, fresh, strict=True)}
    return metrics | shares | {"lag/mean": (now.lag_sum - before.lag_sum) / arrived}
