"""The learner's half of an Ape-X run: what it keeps and writes down, and its view of those who collect."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fleetfoot.data import EnvSpec, Transition
from fleetfoot.errors import UserError
from fleetfoot.log import EpisodeStats, Log
from fleetfoot.log.split import TimeSplit
from fleetfoot.run.clock import Clock
from fleetfoot.run.folder import write_spec
from fleetfoot.run.journal import Learning
from fleetfoot.system import usable_cores
from fleetfoot.topologies.apex.fleet import ActorFleet
from fleetfoot.topologies.apex.lead import Lead
from fleetfoot.topologies.ray.cluster import PackedRecipe, Restarts, load_ray, unpack_recipe
from fleetfoot.topologies.ray.evaluator import Evaluations
from fleetfoot.topologies.ray.monitor import News
from fleetfoot.topologies.ray.transport import Block

if TYPE_CHECKING:
    from fleetfoot.topologies.apex.loop import ActorLearnerConfig

BURST = 4  # updates of a free learner between two looks at what has arrived: to look takes as long as a short update


@dataclass(kw_only=True)
class FleetRun(Learning):
    cfg: ActorLearnerConfig
    fleet: ActorFleet
    evaluations: Evaluations
    spec: EnvSpec  # of all environments together
    episodes: list[EpisodeStats]  # of each actor
    lines: list[int]  # vec steps received from each actor
    lead: Lead
    published_at: int = 0
    learned_rows: int = 0
    received_rows: int = 0
    rate_since: tuple[float, int, int] = (0.0, 0, 0)

    @staticmethod
    def of(
        packed: PackedRecipe, folder: Path, state: dict[str, Any] | None, news: News, again: bool
    ) -> FleetRun:
        recipe, ray = unpack_recipe(packed), load_ray()
        cfg: ActorLearnerConfig = recipe.topology  # type: ignore[assignment]
        device = recipe.torch_device()
        torch.set_num_threads(recipe.threads or max(1, usable_cores() - cfg.actors))
        before = [-1] * cfg.actors if state is None else state["incarnations"]
        if len(before) != cfg.actors:
            raise UserError("the checkpoint was made with another number of actors.")
        restarts = Restarts(cfg.ray.max_restarts, news.items.append)
        fleet = ActorFleet(
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
            restarts=restarts,
        )
        spec = fleet.start()
        run = FleetRun(
            recipe=recipe,
            folder=folder,
            device=device,
            agent=recipe.build_agent(spec, device),
            replay=recipe.replay.build(
                spec,
                gamma=recipe.gamma,
                seed=recipe.seeds().replay,
                device=device,
                writers=cfg.actors,
            ),
            pace=recipe.pace.build(),
            log=Log([]),
            checkpoint=recipe.checkpoint.build(folder / "checkpoints"),
            clock=Clock(),
            split=TimeSplit(device),
            cfg=cfg,
            fleet=fleet,
            evaluations=Evaluations(ray, packed, cpus=cfg.ray.worker_cpus, restarts=restarts),
            spec=spec,
            episodes=[EpisodeStats(spec.num_envs // cfg.actors, device) for _ in before],
            lines=[0] * cfg.actors,
            lead=Lead(
                cfg.max_reuse,
                rows=recipe.num_envs * cfg.block_vec_steps * cfg.blocks_ahead,
                most_at_once=BURST * recipe.batch_size,
            ),
        )
        if state is not None:
            run.load_state_dict(state)
        log = run.open_log(resumed=state is not None or again, console=False)
        write_spec(folder, spec)
        run.log = Log([*log.sinks, news], every_vec_steps=log.every_vec_steps)
        run.rate_since = (run.clock.seconds(), 0, 0)
        return run

    def publish(self) -> None:
        weights = {"behaviour": self.agent.behaviour.state_dict()}
        if self.fleet.priorities:
            agent: Any = self.agent
            weights["initial_priority"] = agent.initial_priority.state_dict()
        self.fleet.publish(weights)
        self.published_at = self.vec_steps

    def mark_break(self, actor: int) -> None:
        """What comes next from an actor does not follow from what came before."""
        self.replay.mark_break(actor)
        self.episodes[actor].restart()

    def collected(self, steps: Sequence[Transition], actor: int) -> int:
        """Note lines of one actor; how many vec steps (as many rows as there are environments) are complete by now
        that were not before?"""
        self.lines[actor] += len(steps)
        rows = sum(len(fresh.reward) for fresh in steps)
        self.received_rows += rows
        self.lead.earn(rows)
        for fresh in steps:
            self.episodes[actor].update(fresh.reward, fresh.terminated | fresh.truncated)
        last = steps[-1]
        seen = {"env/obs_magnitude": last.next_obs.actor.float().abs().mean()}
        self.log.add(seen | {"env/reward": torch.stack([s.reward for s in steps]), **last.info})
        return sum(self.lines) // self.cfg.actors - self.vec_steps

    def note(self, block: Block) -> None:
        lag = self.fleet.weights.version - block.version
        self.log.add({"fleet/lag_versions": lag, "fleet/block_seconds": block.seconds})

    def flush_counters(self) -> None:
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
            "fleet/restarts": self.evaluations.restarts.count,
        }
        self.log.add({name: float(count) for name, count in counts.items()})

    def evaluate(self) -> dict[str, float]:
        """In lockstep and at the end, wait for the metrics; otherwise ask for them, unless the last are still due."""
        last = self.vec_steps == self.recipe.total_vec_steps
        if self.cfg.lockstep or last:
            self.take_evaluation(wait=True)
            try:
                return self.evaluations.now(self.agent.policy)
            except UserError:
                if last:  # a run that is trained is not lost to environments that only evaluate
                    self.save()
                raise
        if self.evaluations.asked is None:
            self.evaluations.ask(
                self.agent.policy, self.counters(), _copy(self.state_without_replay())
            )
        return {}

    def take_evaluation(self, wait: bool = False) -> None:
        """Write down an evaluation that has come back."""
        if (done := self.evaluations.take(wait=wait)) is None:
            return
        with self.clock.paused():
            self.log.write(done.counters, done.metrics)
            self.evaluated(*done)

    def state_dict(self) -> dict[str, Any]:
        mine = {"incarnations": self.fleet.workers.lives, "lines": self.lines}
        return super().state_dict() | {name: list(value) for name, value in mine.items()}

    def _load(self, state: dict[str, Any]) -> None:
        super()._load(state)
        self.lines = list(state["lines"])
        self.replay.mark_break()  # the actors are new

    def close(self) -> None:
        with ExitStack() as stack:
            stack.callback(self.log.close)
            stack.callback(self.fleet.close)
            stack.callback(self.evaluations.close)


def _copy(tree: Any) -> Any:
    """A state that later updates do not change."""
    if isinstance(tree, Tensor):
        return tree.detach().clone()
    if isinstance(tree, dict):
        return {key: _copy(value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(_copy(value) for value in tree)
    return tree
