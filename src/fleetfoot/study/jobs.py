"""Jobs: what one process of a study trains, and which comes next."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from fleetfoot.recipe import Recipe
from fleetfoot.topologies.multi_seed.seeds import is_finished, saved_steps

Outcome = Literal["finished", "failed", "stopped"]
TAIL_BYTES = 65_536  # of a log; one line of it is far shorter


@dataclass(frozen=True)
class Job:
    """Runs that one process trains: one, or several seeds of a recipe in one folder."""

    name: str
    recipe: Recipe
    runs: tuple[Path, ...]

    @property
    def folder(self) -> Path:
        """What the process is told to go on with."""
        return self.runs[0] if len(self.runs) == 1 else self.runs[0].parent

    def finished(self) -> bool:
        return all(is_finished(run, self.recipe) for run in self.runs)

    def done(self) -> float:
        """The share of its vec steps that were made, 0 to 1."""
        total = self.recipe.total_vec_steps
        return sum(min(total, _vec_steps(run)) for run in self.runs) / (total * len(self.runs))

    def work(self) -> float:
        """How much there is to do, in units that are comparable within a study."""
        return float(self.recipe.total_vec_steps + self.recipe.total_updates()) * len(self.runs)


class Plan(Protocol):
    """Which jobs there are, and what becomes of them."""

    @property
    def jobs(self) -> Sequence[Job]:
        """All that are known so far, those included that are finished."""
        ...

    @property
    def expected(self) -> int:
        """How many there will be."""
        ...

    def next(self) -> Job | None:
        """The one to start now; its run folders exist. None: there is none, or none yet."""
        ...

    def unwanted(self, running: Sequence[Job]) -> Iterable[Job]:
        """Those of the running ones that are not worth going on with."""
        ...

    def ended(self, job: Job, outcome: Outcome) -> None: ...


@dataclass
class Listed:
    """Jobs that are known from the start. The longest go first: they must not be alone at the end."""

    jobs: Sequence[Job]
    waiting: list[Job] = field(init=False)

    def __post_init__(self) -> None:
        self.waiting = [job for job in self.jobs if not job.finished()]
        self.waiting.sort(key=Job.work)

    @property
    def expected(self) -> int:
        return len(self.jobs)

    def next(self) -> Job | None:
        return self.waiting.pop() if self.waiting else None

    def unwanted(self, running: Sequence[Job]) -> Iterable[Job]:
        return ()

    def ended(self, job: Job, outcome: Outcome) -> None:
        """Nothing follows from it."""


def _vec_steps(run: Path) -> int:
    """The vec steps in the last whole line of a run's log, or of its last checkpoint if there is more."""
    saved = max(saved_steps(run), default=0)
    try:
        with (run / "metrics.jsonl").open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            lines = file.read().splitlines()
    except OSError:
        return saved
    for line in reversed(lines):
        try:
            return max(saved, int(json.loads(line)["vec_steps"]))
        except (ValueError, KeyError, TypeError):  # the last line may be half written
            continue
    return saved
