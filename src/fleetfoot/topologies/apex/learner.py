"""The learner's process: it puts agent, replay, journal and actors together. Its loops are in `loop.py`."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from fleetfoot import checkpoint
from fleetfoot.agents.contract import Agent
from fleetfoot.data import Transition
from fleetfoot.errors import UserError
from fleetfoot.execution import make_learner
from fleetfoot.log import EpisodeStats, Log
from fleetfoot.recipe import Result
from fleetfoot.run.journal import Journal, State, step_metrics
from fleetfoot.run.loading import fitting
from fleetfoot.system import usable_cores
from fleetfoot.topologies.apex.fleet import ActorFleet
from fleetfoot.topologies.apex.lead import Lead
from fleetfoot.topologies.apex.wire import Block
from fleetfoot.topologies.ray import transport
from fleetfoot.topologies.ray.cluster import load_ray
from fleetfoot.topologies.ray.monitor import Outbox
from fleetfoot.topologies.ray.workers import Evaluations, Restarts

if TYPE_CHECKING:
    from fleetfoot.topologies.apex.loop import ActorLearnerConfig

# Updates of a free learner before it looks for blocks again: looking takes as long as a short update.
BURST = 4


class Learner:
    """Has one thread for `train` and one for `stop` and `reports`, which the monitor calls."""

    def __init__(self, packed: transport.PackedRecipe, folder: str):
        self.packed, self.folder = packed, Path(folder)
        self.outbox = Outbox()
        self.stop_requested, self.built = False, False

    def stop(self) -> bool:
        """Let `train` save and return. False: the actors are not all there yet, so there is nothing to save."""
        self.stop_requested = True
        return self.built

    def reports(self) -> list[Any]:
        return self.outbox.take()

    def train(self, resumed: bool, restarted: bool) -> Result:
        """`resumed`: from the last checkpoint; `restarted`: another learner of this run was lost before."""
        try:
            with ExitStack() as stack:
                self._build(stack, resumed, restarted)
                self.built = True
                with self.journal.rescuing(self, lambda: self.stop_requested):
                    self.cfg.learn(self)
                if not self.journal.finished:
                    self.journal.save_interrupted(self)
                return self.journal.result(self.agent.policy.to("cpu"))
        except UserError as error:  # the monitor's process may not know its subclass
            raise UserError(str(error)) from None

    def _build(self, stack: ExitStack, resumed: bool, restarted: bool) -> None:
        self.recipe = recipe = transport.unpack_recipe(self.packed)
        self.cfg = cfg = cast("ActorLearnerConfig", recipe.topology)
        ray, device = load_ray(), recipe.torch_device()
        torch.set_num_threads(recipe.threads or max(1, usable_cores() - cfg.actors))
        state = checkpoint.load(self.folder).to_resume() if resumed else None
        self.restarts = Restarts(cfg.ray.max_restarts, self.outbox.items.append)
        with fitting():
            self.fleet = ActorFleet(ray, self.packed, cfg, self.restarts, state)
        stack.callback(self.fleet.close)
        self.evaluations = Evaluations(ray, self.packed, cfg.ray.worker_cpus, self.restarts)
        stack.callback(self.evaluations.close)
        self.spec = self.fleet.start()
        self.agent: Agent = recipe.build_agent(self.spec, device)
        self.replay = recipe.off_policy_replay().build(
            self.spec,
            gamma=recipe.gamma,
            seed=recipe.seeds().replay,
            device=device,
            writers=cfg.actors,
        )
        self.pace = recipe.pace.build()
        self.lead = Lead(
            cfg.max_reuse,
            rows=recipe.num_envs * cfg.block_vec_steps * cfg.blocks_ahead,
            most_at_once=BURST * recipe.batch_size,
        )
        width = self.spec.num_envs // cfg.actors
        self.episodes = [EpisodeStats(width, device) for _ in range(cfg.actors)]
        self.journal = Journal(recipe=recipe, folder=self.folder, device=device)
        if state is not None:
            with fitting():
                self._load_state_dict(state)
                self.journal.load_state_dict(state)
        self.updates = make_learner(
            self.agent,
            self.replay,
            recipe.batch_size,
            precision=recipe.precision,
            mode=recipe.execution,
            device=device,
            timer=self.journal.timer,
        )
        self.owed = 0  # updates under way
        self.rows_received = self.rows_learned = 0
        self.published_at = -cfg.publish_every_vec_steps
        continued = state is not None or restarted  # there may be a log already
        self.journal.open(self.spec, resumed=continued, console=False, sinks=(self.outbox,))
        stack.callback(self.journal.close)
        self.rates_since = (self.journal.clock.seconds(), 0, 0)

    def done(self) -> bool:
        return self.journal.finished or self.stop_requested

    def warm(self) -> bool:
        """Is the replay full enough to learn from? One that was not saved has to fill again first."""
        warmup = self.recipe.pace.warmup_vec_steps
        return self.journal.vec_steps >= warmup and self.pace.held_vec_steps == 0

    def publish_when_due(self) -> None:
        every = 0 if self.cfg.lockstep else self.cfg.publish_every_vec_steps
        if self.journal.vec_steps - self.published_at < every:
            return
        weights = {"behaviour": self.agent.behaviour.state_dict()}
        if self.cfg.computes_priorities(self.recipe):
            weights["initial_priority"] = cast(Any, self.agent).initial_priority.state_dict()
        self.fleet.publish(weights)
        self.published_at = self.journal.vec_steps

    def unpack(self, block: Block) -> tuple[list[Transition], Tensor | None]:
        """Its lines, and their absolute errors [L, V] if the actor has computed them."""
        device = self.journal.device
        steps = list(transport.unpack_lines(block.lines, self.spec, device))
        return steps, transport.to_tensors(block.td_error, device)

    def note(self, block: Block) -> None:
        """Call this before the rows of a block are appended."""
        # The first block of a process does not continue the episodes of the process before it.
        if block.sequence == 0:
            self.replay.mark_break(block.actor)
            self.episodes[block.actor].restart()
        lag = self.fleet.weights.version - block.version
        self.journal.log.add({"fleet/lag_versions": lag, "fleet/block_seconds": block.seconds})

    def count(self, steps: Sequence[Transition], actor: int) -> int:
        """Count lines of one actor. Returns how many vec steps, of as many rows as there are environments, are complete
        now and not counted yet."""
        self.fleet.received[actor] += len(steps)
        rows = sum(len(step.reward) for step in steps)
        self.rows_received += rows
        self.lead.earn(rows)
        for step in steps:
            self.episodes[actor].update(step.reward, step.terminated | step.truncated)
        rewards = torch.stack([step.reward for step in steps])
        self.journal.log.add(step_metrics(steps[-1]) | {"env/reward": rewards})
        return sum(self.fleet.received) // self.cfg.actors - self.journal.vec_steps

    def start_updates(self, count: int) -> None:
        """On a GPU they continue while the caller does something else; until `finish_updates` it must not touch the
        agent or the replay."""
        with self.journal.compiling(not self.updates.ready(count)):
            self.updates.start(count)
        self.owed = count

    def finish_updates(self) -> None:
        if self.owed > 0:
            self.rows_learned += self.owed * self.recipe.batch_size
            self.journal.record_updates(self.owed, self.updates.join())
            self.owed = 0

    def flush_counters(self, log: Log) -> None:
        for episodes in self.episodes:
            log.add(episodes.metrics())
        now = (self.journal.clock.seconds(), self.rows_received, self.rows_learned)
        seconds, rows, learned = (a - b for a, b in zip(now, self.rates_since, strict=True))
        self.rates_since = now
        if seconds > 0 and rows > 0:
            log.add({"fleet/rows_in_per_second": rows / seconds})
            log.add({"fleet/rows_learned_per_second": learned / seconds})
            log.add({"fleet/rows_learned_per_row_in": learned / rows})
        log.add({"fleet/queue_blocks": float(self.fleet.num_finished())})
        log.add({"fleet/restarts": float(self.restarts.count)})

    def evaluate(self, vec_steps: int) -> dict[str, float]:
        """In lockstep and at the end, wait for the metrics. Otherwise request an evaluation, unless one is pending."""
        journal = self.journal
        if self.cfg.lockstep or journal.finished:
            self.take_evaluation(wait=True)
            try:
                return self.evaluations.now(self.agent.policy)
            except UserError:
                if journal.finished:  # training is complete, only its evaluation fails
                    journal.save(self)
                raise
        if self.evaluations.pending is None:
            # A copy: the run continues before it is saved.
            state = copy.deepcopy(journal.state(self, with_replay=False))
            self.evaluations.request(self.agent.policy, journal.counters(), state)
        return {}

    def take_evaluation(self, *, wait: bool = False) -> None:
        """Log the pending evaluation if it has finished."""
        if evaluation := self.evaluations.take(wait=wait):
            with self.journal.clock.paused():
                self.journal.log.write(*evaluation[:2])
                self.journal.record_evaluation(self, *evaluation)

    def state_dict(self, *, with_replay: bool) -> State:
        state: State = {
            "agent": self.agent.state_dict(),
            "pace": self.pace.state_dict(),
            "owed": self.owed,
            **self.fleet.state_dict(),
        }
        return state | {"replay": self.replay.state_dict()} if with_replay else state

    def _load_state_dict(self, state: State) -> None:
        own = {"agent": self.agent.state_dict(), "pace": self.pace.state_dict()}
        if "replay" in state:
            own["replay"] = self.replay.state_dict()
        checkpoint.check_fits({name: state[name] for name in own}, own, "state")
        self.agent.load_state_dict(state["agent"])
        self.pace.load_state_dict(state["pace"])
        if "replay" in state:
            self.replay.load_state_dict(state.pop("replay"))  # do not keep it in memory twice
        else:  # it has to fill again first
            wait = self.recipe.pace.warmup_vec_steps
            self.pace.hold(wait)
            self.outbox.items.append(
                f"the checkpoint holds no replay: it fills again, and learning goes on after {wait:,} vec steps."
            )
