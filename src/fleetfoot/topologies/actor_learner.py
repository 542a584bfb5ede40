"""Ape-X: many actors collect, one learner learns from what is worth it.

Horgan et al. 2018, "Distributed Prioritized Experience Replay", arXiv 1803.00933. The loop of `synchronous` is cut at
*append* and *refresh*:

    actor i of M, each with V environments             learner
      weights <- newest version                          take a block; append its rows with their priorities
      act on rungs i V .. i V + V - 1 of one ladder      sample in proportion to priority
      n-step windows, first priorities                   update; write the new priorities back
      send a block of rows                               every so often: publish the weights

Three kinds of processes: the one that was started watches and prints; the learner, which owns replay, log and
checkpoints; the actors, and one more that evaluates. An actor that is lost is replaced, in its columns of the replay,
with seeds of its own. A learner that is lost begins again from its last checkpoint, with new actors.

Deviations from the paper:

    [1] The learner asks for blocks instead of being sent them (see `actor_fleet.py`); the bound on open requests
        replaces the bound on the replay's queue.
    [2] Rows arrive n steps late, when their priority is known; a window at the end of what has arrived is shorter
        until its rest is there.
    [3] The replay is trimmed per environment, each to its share of the capacity.
    [4] Batches are drawn ahead (the paper: up to 16) only where `prefetch` asks for it, and the lead of a free
        learner is bounded (`max_reuse`).
"""

from __future__ import annotations

from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from fleetfoot import checkpoint
from fleetfoot.data import Batch, Transition
from fleetfoot.evaluate import Evaluator
from fleetfoot.log import Console, Counters, EpisodeStats, Log
from fleetfoot.log.split import TimeSplit
from fleetfoot.pace import Lead
from fleetfoot.part import UserError, part, to_json
from fleetfoot.recipe import Recipe, Result, usable_cores
from fleetfoot.replay.prefetch import prefetching
from fleetfoot.speed import updater
from fleetfoot.topologies.actor_fleet import Fleet
from fleetfoot.topologies.block import unpack_lines
from fleetfoot.topologies.cluster import (
    PackedRecipe,
    RayConfig,
    Restarts,
    cause,
    cluster,
    died,
    load_ray,
    on_this_node,
    pack_recipe,
    remote,
    tell,
    to_arrays,
    to_tensors,
    unpack_recipe,
)
from fleetfoot.topologies.run import Clock, Interrupt, Learning

CPU = torch.device("cpu")
WAIT_SECONDS = 0.5  # between looks at whether the run shall stop


@part
class ActorLearnerConfig:
    """Actors in processes of their own, one learner with a shared prioritised replay (Ape-X)."""

    actors: int = 4
    """Actor processes (M); each has num_envs / M environments."""
    block_vec_steps: int = 25
    """Steps of an actor's environments that travel together."""
    blocks_ahead: int = 2
    """Blocks asked of each actor at once, the bound on what may wait for the learner."""
    publish_every_vec_steps: int = 100
    """Vec steps between two versions of the weights; Atari's four frames a step make 100 the paper's 400."""
    initial_priorities: bool = True
    """Actors state the first priorities; False: new rows get the largest so far."""
    acting: Literal["float32", "bf16"] = "float32"
    """bf16: actors choose actions with products in bfloat16, faster on cores that have it. Convolutions gain."""
    free: bool = False
    """The learner does not wait for the actors, nor they for it; False: updates as the pace owes them."""
    max_reuse: float = 32.0
    """free: rows learned from per row received, at most. A learner that has had its share waits for actors."""
    prefetch: int = 0
    """Batches drawn ahead by a thread while the learner works on the present one; 0: none, as always in lockstep."""
    lockstep: bool = False
    """One actor and the learner take turns: the same weights as `synchronous`, for tests."""
    ray: RayConfig = RayConfig()

    def __post_init__(self) -> None:
        for name in ("actors", "block_vec_steps", "blocks_ahead", "publish_every_vec_steps"):
            if getattr(self, name) < 1:
                raise UserError(f"topology.{name} must be at least 1, not {getattr(self, name)}.")
        if not 0 < self.max_reuse < float("inf"):
            raise UserError(f"topology.max_reuse must be above 0, not {self.max_reuse}.")
        if self.prefetch < 0:
            raise UserError(f"topology.prefetch must be 0 or more, not {self.prefetch}.")
        if self.lockstep and (self.actors > 1 or self.free):
            raise UserError("topology.lockstep is for one actor, and not free.")

    def run(self, recipe: Recipe, folder: Path, state: dict[str, Any] | None) -> Result:
        if recipe.num_envs % self.actors:
            raise UserError(
                f"{recipe.num_envs} environments cannot be shared equally by {self.actors} actors: "
                "make --num-envs a multiple of --topology.actors."
            )
        if self.states_priorities(recipe) and not getattr(recipe.agent, "appraises", False):
            raise UserError(
                f"actors with {type(recipe.agent).__name__} cannot state first priorities: use "
                "--topology.no-initial-priorities, or --replay.sampler UniformConfig."
            )
        packed, device = pack_recipe(recipe), recipe.torch_device()
        if state is not None:
            check_is_last(folder, state)
        cpus = (self.actors + 1) * self.ray.worker_cpus + self.ray.learner_cpus
        gpus = self.ray.gpus_of(device)
        here = (self.ray.learner_cpus, gpus)
        with cluster(self.ray, cpus=cpus, gpus=gpus, here=here) as ray, Interrupt() as interrupt:
            watch = Watch(ray, self, recipe, packed, folder, interrupt)
            try:
                return watch.until_done(resumed=state is not None, gpus=gpus)
            finally:
                watch.close()

    def states_priorities(self, recipe: Recipe) -> bool:
        """Do the actors compute first priorities? Only where there is a use for them."""
        useful = recipe.replay.sampler.prioritised
        return self.initial_priorities and not self.lockstep and useful


def check_is_last(folder: Path, state: dict[str, Any]) -> None:
    """The learner reads its checkpoint itself, after a crash as well, so it must be the last one."""
    if checkpoint.load(folder, with_replay=False).step != state["vec_steps"]:
        raise UserError(
            "this topology goes on from the last checkpoint alone: give the run folder."
        )


class Watch:
    """The process that the user started: shows how the learner gets on, and begins it again where it was lost."""

    def __init__(
        self,
        ray: Any,
        cfg: ActorLearnerConfig,
        recipe: Recipe,
        packed: PackedRecipe,
        folder: Path,
        interrupt: Interrupt,
    ):
        self.ray, self.cfg, self.packed = ray, cfg, packed
        self.folder, self.interrupt = folder.resolve(), interrupt
        self.console: Console | None = None
        if recipe.log.console:
            seconds = recipe.log.console_seconds
            self.console = Console(recipe.total_vec_steps, every_seconds=seconds)
        self.newest = Counters()
        self.answered = False  # by the present learner

    def until_done(self, resumed: bool, gpus: float) -> Result:
        restarts = Restarts(self.cfg.ray.max_restarts)
        where = on_this_node(self.ray)
        cpus = self.cfg.ray.learner_cpus
        while True:
            make = remote(
                self.ray,
                Learner,
                cpus=cpus,
                gpus=gpus,
                max_concurrency=2,
                scheduling_strategy=where,
            )
            handle = make.remote(self.packed, str(self.folder))
            self.answered = False
            try:
                return self.follow(handle, handle.train.remote(resumed, restarts.count > 0))
            except Exception as error:
                if isinstance(inner := cause(error), UserError):
                    raise UserError(str(inner)) from error
                if not died(self.ray, error) or self.interrupt.asked:
                    raise
                restarts.note("the learner", error)
                resumed = (self.folder / "checkpoints" / "last.json").exists()
            finally:
                self.ray.kill(handle)

    def follow(self, handle: Any, work: Any) -> Result:
        """Show news until the work is done. A learner that has no room yet answers nothing: never wait for it."""
        stop: Any = None
        news = handle.news.remote()
        while True:
            done, _ = self.ray.wait([work], timeout=WAIT_SECONDS)
            if self.interrupt.asked and stop is None:
                stop = handle.stop.remote()
            if done or self.ray.wait([news], timeout=0)[0]:
                for item in self.ray.get(news):
                    self.show(item)
                self.answered = True
                news = handle.news.remote()
            if done:
                result: Result = self.ray.get(work)
                for item in self.ray.get(news):
                    self.show(item)
                return result
            if stop is not None and not self.can_save(stop):
                raise KeyboardInterrupt

    def can_save(self, stop: Any) -> bool:
        """Has the learner begun, or may it have? One that waits for room has nothing to save and would never end."""
        if not self.answered:
            return False
        return not self.ray.wait([stop], timeout=0)[0] or bool(self.ray.get(stop))

    def show(self, item: str | tuple[Counters, dict[str, float]]) -> None:
        if isinstance(item, str):
            tell(item)
            return
        counters, metrics = item
        # An evaluation comes back when training has gone on; nobody wants to see the bar go backwards.
        self.newest = max(self.newest, counters, key=lambda c: c.vec_steps)
        if self.console is not None:
            self.console.write(self.newest, metrics)

    def close(self) -> None:
        if self.console is not None:
            self.console.close()


class News:
    """What the watching process has not fetched yet; a sink of the log."""

    def __init__(self) -> None:
        self.items: deque[Any] = deque()

    def write(self, counters: Counters, metrics: Any) -> None:
        self.items.append((counters, dict(metrics)))

    def close(self) -> None: ...

    def take(self) -> list[Any]:
        return [self.items.popleft() for _ in range(len(self.items))]


class Learner:
    """Lives in a process of its own, with one thread for `train` and one for the other two."""

    def __init__(self, packed: PackedRecipe, folder: str):
        self.packed, self.folder = packed, Path(folder)
        self.told, self.asked, self.begun = News(), False, False

    def stop(self) -> bool:
        """Save and return from `train` as soon as possible; False: its actors are not all there yet."""
        self.asked = True
        return self.begun

    def news(self) -> list[Any]:
        return self.told.take()

    def train(self, resumed: bool, again: bool) -> Result:
        """`again`: an earlier learner of this run was lost, before its first checkpoint unless `resumed`."""
        try:
            state = checkpoint.load(self.folder).state if resumed else None
            run = FleetRun.of(self.packed, self.folder, state, self.told, again)
            self.begun = True
            try:
                depth = 0 if run.cfg.lockstep else run.cfg.prefetch
                with prefetching(run.replay, run.recipe.batch_size, depth) as run.replay:
                    result = actor_learner(run, lambda: self.asked)
                return replace(result, policy=result.policy.to(CPU))
            finally:
                run.close()
        except UserError as error:  # its own kind may not survive the way to another process
            raise UserError(str(error)) from None


def actor_learner(run: FleetRun, asked: Any) -> Result:
    recipe, agent, replay, fleet = run.recipe, run.agent, run.replay, run.fleet
    cfg = run.cfg
    update = updater(agent, precision=recipe.precision, mode=recipe.execution, device=run.device)

    def learn(count: int) -> None:
        for batch in replay.batches(count, recipe.batch_size):
            learned = update(batch)
            replay.reprioritize(batch.row_id, learned.td_error)
            run.learned_from(batch, learned.metrics)

    def over() -> bool:
        return run.vec_steps >= recipe.total_vec_steps or asked()

    run.publish()
    fleet.ask()
    while not over():
        warm = cfg.free and run.vec_steps >= recipe.pace.warmup_vec_steps
        warm = warm and run.pace.held_vec_steps == 0  # a replay that was not saved fills first
        ready = warm and run.lead.allows(recipe.batch_size)
        for block in fleet.blocks(
            most=cfg.actors * cfg.blocks_ahead if cfg.free else 1,
            timeout=0.0 if ready else WAIT_SECONDS,
            ask=not cfg.lockstep,  # the actor goes on while its block is learned from
        ):
            td_error = None if block.td_error is None else to_tensors(block.td_error).to(run.device)
            for i, transition in enumerate(unpack_lines(block.lines, run.spec, run.device)):
                agent.observe(transition)
                error = None if td_error is None else td_error[i]
                replay.append(transition, error, block.actor)
                if run.collected(transition, block.actor):
                    owed = run.pace.owed()
                    learn(0 if cfg.free else owed)
                    run.bookkeep(last=run.vec_steps == recipe.total_vec_steps)
                    if over():
                        break
            run.note(block)
            if over():
                break
        if ready and not over():  # what is saved last is what is returned
            run.lead.spend(recipe.batch_size)
            learn(1)
        if run.vec_steps - run.published_at >= cfg.publish_every_vec_steps or cfg.lockstep:
            run.publish()
        if cfg.lockstep:
            fleet.ask()
        run.take_evaluation()
    if run.vec_steps < recipe.total_vec_steps:
        run.interrupted()
    return run.result(finished=run.vec_steps >= recipe.total_vec_steps)


class RemoteEvaluator:
    """Greedy episodes in a process of their own, while training goes on."""

    def __init__(self, packed: PackedRecipe):
        self.packed = packed
        self.evaluator: Evaluator | None = None

    def evaluate(self, policy: Any) -> dict[str, float]:
        if self.evaluator is None:
            torch.set_num_threads(1)
            recipe = unpack_recipe(self.packed)
            seeds = recipe.seeds()
            self.evaluator = Evaluator(recipe.env, recipe.evaluation, seeds.evaluation, CPU)
            agent = recipe.agent.build(
                self.evaluator.env.spec,
                gamma=recipe.gamma,
                total_updates=1,
                seed=seeds.agent,
                device=CPU,
            )
            self.policy = agent.policy
        self.policy.load_state_dict(to_tensors(policy))
        return self.evaluator(self.policy).metrics()


@dataclass(kw_only=True)
class FleetRun(Learning):
    """The learner's half of a run, and its view of those who collect."""

    cfg: ActorLearnerConfig
    ray: Any
    packed: PackedRecipe
    fleet: Fleet
    spec: Any  # of all environments together
    episodes: list[EpisodeStats]  # of each actor
    lines: list[int]  # vec steps received from each actor
    lead: Lead
    published_at: int = 0
    learned_rows: int = 0
    received_rows: int = 0
    rate_since: tuple[float, int, int] = (0.0, 0, 0)
    evaluator: Any = None
    evaluating: tuple[Any, Counters, dict[str, Any]] | None = None

    @staticmethod
    def of(
        packed: PackedRecipe, folder: Path, state: dict[str, Any] | None, news: News, again: bool
    ) -> FleetRun:
        recipe, ray = unpack_recipe(packed), load_ray()
        cfg = recipe.topology
        assert isinstance(cfg, ActorLearnerConfig)
        device, seeds = recipe.torch_device(), recipe.seeds()
        torch.set_num_threads(recipe.threads or max(1, usable_cores() - cfg.actors))
        before = [-1] * cfg.actors if state is None else state["incarnations"]
        if len(before) != cfg.actors:
            raise UserError("the checkpoint was made with another number of actors.")
        fleet = Fleet(
            ray,
            cfg.ray,
            packed,
            actors=cfg.actors,
            lines=1 if cfg.lockstep else cfg.block_vec_steps,
            ahead=1 if cfg.lockstep else cfg.blocks_ahead,
            priorities=cfg.states_priorities(recipe),
            bf16=cfg.acting == "bf16",
            incarnations=[count + 1 for count in before],
            past=[0] * cfg.actors if state is None else state["lines"],
            restarts=Restarts(cfg.ray.max_restarts, news.items.append),
        )
        spec = fleet.start()
        run = FleetRun(
            recipe=recipe,
            folder=folder,
            device=device,
            agent=recipe.agent.build(
                spec,
                gamma=recipe.gamma,
                total_updates=recipe.total_updates(),
                seed=seeds.agent,
                device=device,
            ),
            replay=recipe.replay.build(
                spec, gamma=recipe.gamma, seed=seeds.replay, device=device, writers=cfg.actors
            ),
            pace=recipe.pace.build(),
            log=Log([]),
            checkpoint=recipe.checkpoint.build(folder / "checkpoints"),
            clock=Clock(),
            split=TimeSplit(device),
            cfg=cfg,
            ray=ray,
            packed=packed,
            fleet=fleet,
            spec=spec,
            episodes=[EpisodeStats(spec.num_envs // cfg.actors, device) for _ in before],
            lines=[0] * cfg.actors,
            lead=Lead(
                cfg.max_reuse,
                rows=recipe.num_envs * cfg.block_vec_steps * cfg.blocks_ahead,
                batch_size=recipe.batch_size,
            ),
        )
        fleet.replaced = run.cut
        if state is not None:
            run.load_state_dict(state)
        resumed = run.counters() if state is not None else Counters() if again else None
        log = replace(recipe.log, console=False).build(
            folder,
            total_vec_steps=recipe.total_vec_steps,
            recipe_json=to_json(recipe),
            resumed=resumed,
            best=None if run.best_return != run.best_return else run.best_return,
        )
        run.log = Log([*log.sinks, news], every_vec_steps=log.every_vec_steps)
        run.rate_since = (run.clock.seconds(), 0, 0)
        return run

    def publish(self) -> None:
        weights = {"behaviour": self.agent.behaviour.state_dict()}
        if self.fleet.priorities:
            agent: Any = self.agent
            weights["appraiser"] = agent.appraiser.state_dict()
        self.fleet.publish(weights)
        self.published_at = self.vec_steps

    def cut(self, actor: int) -> None:
        """What comes next from an actor does not follow from what came before."""
        self.replay.cut(actor)
        self.episodes[actor].restart()

    def collected(self, fresh: Transition, actor: int) -> bool:
        """Note a line of one actor; is a vec step (as many rows as there are environments) complete with it?"""
        self.lines[actor] += 1
        self.received_rows += len(fresh.reward)
        self.lead.earn(len(fresh.reward))
        self.episodes[actor].update(fresh.reward, fresh.terminated | fresh.truncated)
        seen = {"env/obs_magnitude": fresh.next_obs.actor.float().abs().mean()}
        self.log.add(seen | {"env/reward": fresh.reward, **fresh.info})
        complete = sum(self.lines) // self.cfg.actors > self.vec_steps
        self.vec_steps += complete
        return complete

    def learned_from(self, batch: Batch, metrics: dict[str, Tensor]) -> None:
        self.owed = 1
        self.learned(metrics)
        self.learned_rows += len(batch.reward)

    def note(self, block: Any) -> None:
        lag = self.fleet.weights.version - block.version
        self.log.add({"fleet/lag_versions": lag, "fleet/block_seconds": block.seconds})

    def tally(self) -> None:
        for episodes in self.episodes:
            self.log.add(episodes.metrics())
        now = (self.clock.seconds(), self.received_rows, self.learned_rows)
        seconds, rows, learned = (a - b for a, b in zip(now, self.rate_since, strict=True))
        self.rate_since = now
        if seconds > 0 and rows > 0:
            rates = {
                "fleet/rows_in_per_second": rows / seconds,
                "fleet/rows_learned_per_second": learned / seconds,
                "fleet/rows_learned_per_row_in": learned / rows,
            }
            self.log.add(rates)
        counts = {
            "fleet/queue_blocks": self.fleet.queue(),
            "fleet/restarts": self.fleet.restarts.count,
        }
        self.log.add({name: float(count) for name, count in counts.items()})

    def evaluate(self) -> dict[str, float]:
        """In lockstep and at the end, wait for the metrics; otherwise ask for them, unless the last are still due."""
        last = self.vec_steps == self.recipe.total_vec_steps
        if last:
            self.save()  # a run that is trained is not lost to environments that only evaluate
        if self.cfg.lockstep or last:
            self.take_evaluation(wait=True)
            while True:
                try:
                    metrics: dict[str, float] = self.ray.get(self._ask_evaluator())
                    return metrics
                except Exception as error:
                    self._lose_evaluator(error)
        if self.evaluating is None:
            lean = {name: value for name, value in self.state_dict().items() if name != "replay"}
            self.evaluating = self._ask_evaluator(), self.counters(), _copy(lean)
        return {}

    def _ask_evaluator(self) -> Any:
        if self.evaluator is None:
            make = remote(self.ray, RemoteEvaluator, cpus=self.cfg.ray.worker_cpus)
            self.evaluator = make.remote(self.packed)
        return self.evaluator.evaluate.remote(to_arrays(self.agent.policy.state_dict()))

    def _lose_evaluator(self, error: Exception) -> None:
        """The next evaluation has a new process."""
        if isinstance(inner := cause(error), UserError):
            raise UserError(str(inner)) from error
        self.fleet.restarts.note("the evaluator", error)
        self.ray.kill(self.evaluator)
        self.evaluator = None

    def take_evaluation(self, wait: bool = False) -> None:
        """Write down an evaluation that has come back."""
        if self.evaluating is None:
            return
        ref, counters, state = self.evaluating
        if not self.ray.wait([ref], timeout=None if wait else 0)[0]:
            return
        self.evaluating = None
        try:
            metrics = self.ray.get(ref)
        except Exception as error:
            self._lose_evaluator(error)
            return
        with self.clock.paused():
            self.log.write(counters, metrics)
            self.evaluated(counters, metrics, state)

    def state_dict(self) -> dict[str, Any]:
        mine = {"incarnations": self.fleet.incarnations, "lines": self.lines}
        return super().state_dict() | {name: list(value) for name, value in mine.items()}

    def _load(self, state: dict[str, Any]) -> None:
        super()._load(state)
        self.lines = list(state["lines"])
        self.replay.cut()  # the actors are new

    def close(self) -> None:
        with ExitStack() as stack:
            stack.callback(self.log.close)
            stack.callback(self.fleet.close)
            if self.evaluator is not None:
                stack.callback(self.ray.kill, self.evaluator)


def _copy(tree: Any) -> Any:
    """A state that later updates do not change."""
    if isinstance(tree, Tensor):
        return tree.detach().clone()
    if isinstance(tree, dict):
        return {key: _copy(value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(_copy(value) for value in tree)
    return tree
