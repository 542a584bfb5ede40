"""The journals of several seeds, kept as one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

from torch import Tensor

from fleetfoot.data import Transition
from fleetfoot.log import EpisodeStats
from fleetfoot.recipe import Result
from fleetfoot.run.build import Parts
from fleetfoot.run.journal import Journal, Subject, step_metrics
from fleetfoot.topologies.multi_seed.meter import MultiSeedMeter
from fleetfoot.topologies.multi_seed.rows import by_seed


@dataclass(kw_only=True)
class MultiSeedJournal(Journal):
    """Takes in what all seeds do together, [S N, ...], and lets each write its own share into its own folder."""

    seeds: Sequence[tuple[Journal, Parts]]
    meter: MultiSeedMeter = field(default_factory=MultiSeedMeter)

    def __post_init__(self) -> None:
        first, _ = self.seeds[0]
        self.timer, self.clock = first.timer, first.clock
        self.clock.restart(self.clock.before)  # building the other seeds was not training
        self.vec_steps, self.updates = first.vec_steps, first.updates
        for journal, _ in self.seeds:
            journal.clock, journal.batched = self.clock, True
            if journal.checkpoint is not None:
                journal.checkpoint.keep += 1  # until all seeds have saved: see `_drop_older`

    def record_step(self, fresh: Transition, episodes: EpisodeStats) -> None:
        self.vec_steps += 1
        episodes.update(fresh.reward, fresh.terminated | fresh.truncated)
        self.meter.add({name: self._mean(value) for name, value in step_metrics(fresh).items()})

    def record_updates(self, count: int, metrics: dict[str, Tensor]) -> None:
        self.updates += count
        self.meter.add({name: value.expand(len(self.seeds)) for name, value in metrics.items()})

    def _mean(self, values: Tensor) -> Tensor:
        """[S N] -> [S]."""
        return by_seed(values.float(), len(self.seeds)).mean(1)

    def due(self) -> bool:
        self._count()
        return self.seeds[0][0].due()

    def after_vec_step(self, subject: Subject) -> None:
        if not self.due():
            self.timer.next_vec_step()
            return
        self._hand_out(subject)
        for journal, _ in self.seeds:  # if one fails, those after it do not come to their own
            journal.evaluation_owed = journal.evaluation_due()
        for journal, parts in self.seeds:
            journal.after_vec_step(parts)
        self._drop_older()

    def catch_up(self, subject: Subject) -> None:
        for journal, parts in self.seeds:
            journal.catch_up(parts)

    def save_interrupted(self, subject: Subject) -> None:
        self._hand_out(subject)
        for journal, parts in self.seeds:
            journal.save_interrupted(parts)
        self._drop_older()

    def _count(self) -> None:
        for journal, _ in self.seeds:
            journal.vec_steps, journal.updates = self.vec_steps, self.updates
            journal.compile_seconds = self.compile_seconds

    def _hand_out(self, subject: Subject) -> None:
        """To each seed what it would have counted alone."""
        self._count()
        self.meter.hand_out([journal.log for journal, _ in self.seeds])
        whole = cast(Parts, subject)
        for _, parts in self.seeds:
            parts.agent.updates, parts.owed = whole.agent.updates, whole.owed

    def _drop_older(self) -> None:
        """Only when every seed has a newer checkpoint does the one before it go: there is always one of all seeds after
        the same vec step."""
        if all(journal.saved_at == (self.vec_steps, self.updates) for journal, _ in self.seeds):
            for journal, _ in self.seeds:
                if journal.checkpoint is not None:
                    journal.checkpoint.keep_only(self.recipe.checkpoint.keep)

    def results(self) -> list[Result]:
        self._count()
        return [journal.result(parts.agent.policy) for journal, parts in self.seeds]
