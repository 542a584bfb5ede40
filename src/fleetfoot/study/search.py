"""A search by Optuna: which configuration comes next, and which is not worth going on with.

Optuna chooses (TPE) and prunes (its median rule). All that it needs to know is in study.json, and its own study is made
anew from that, in memory, whenever the search goes on. So nothing but JSON is read from disk. The sampler of trial k
has the seed k: with one process at a time, a search that was killed ends like one that was not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fleetfoot import extras
from fleetfoot.errors import UserError
from fleetfoot.recipe import Recipe
from fleetfoot.study.folder import Study
from fleetfoot.study.jobs import Job, Outcome
from fleetfoot.study.space import Axis
from fleetfoot.study.table import check_metric, curve, stored_trials
from fleetfoot.topologies.multi_seed.loop import why_not_batched

Make = Callable[[dict[str, str]], Recipe]  # from the values of a trial to its recipe


@dataclass(frozen=True)
class Goal:
    """What a search is for."""

    metric: str = "eval/return"
    minimize: bool = False
    trials: int = 50
    prune: bool = True


def load_optuna() -> Any:
    optuna = extras.load("optuna", "sweep", "--search optuna needs Optuna")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


@dataclass
class Search:
    """A plan whose jobs are chosen one after the other. A trial is one job: all seeds of a configuration."""

    study: Study
    axes: Sequence[Axis]
    goal: Goal
    make: Make
    whole: frozenset[str] = frozenset()  # the fields that are whole numbers
    jobs: list[Job] = field(default_factory=list)
    waiting: list[Job] = field(default_factory=list)
    trials: dict[str, Any] = field(default_factory=dict)  # Optuna's, of those that are not over
    reported: dict[str, set[int]] = field(default_factory=dict)  # steps
    pruned: dict[str, int] = field(default_factory=dict)  # those that were, and the step
    sizes: dict[Path, int] = field(default_factory=dict)  # of logs, when they were read

    def __post_init__(self) -> None:
        self.optuna = load_optuna()
        pruners, goal = self.optuna.pruners, self.goal
        self.search = self.optuna.create_study(
            direction="minimize" if goal.minimize else "maximize",
            pruner=pruners.MedianPruner() if goal.prune else pruners.NopPruner(),
        )
        self.space = {axis.path: self._distribution(axis) for axis in self.axes}
        for name in self.study.points:
            self._remember(name)

    @property
    def expected(self) -> int:
        return max(len(self.jobs), self.goal.trials)

    def next(self) -> Job | None:
        if self.waiting:
            return self.waiting.pop(0)
        number = len(self.jobs)
        if number >= self.goal.trials:
            return None
        self.search.sampler = self.optuna.samplers.TPESampler(seed=number)
        trial = self.search.ask(self.space)
        name = f"trial-{number:03}"
        settings = {path: _text(value) for path, value in trial.params.items()}
        study = self.study
        self.study = replace(
            study,
            points={**study.points, name: self.make(settings)},
            settings={**study.settings, name: settings},
        )
        self.study.write()
        self._begin(name, trial)
        return self.waiting.pop(0)

    def unwanted(self, running: Sequence[Job]) -> Iterator[Job]:
        for job in running:
            if self._grew(job):
                self._report(job)
                if job.name in self.pruned:
                    yield job

    def ended(self, job: Job, outcome: Outcome) -> None:
        states = self.optuna.trial.TrialState
        self._report(job)  # it may have gone on since
        trial = self.trials.pop(job.name)
        if outcome == "failed":
            self.search.tell(trial, state=states.FAIL)
            self._store(job.name, "failed")
        elif job.name in self.pruned:
            self.search.tell(trial, state=states.PRUNED)
            self._store(job.name, "pruned", self.pruned[job.name])
        else:
            for run in job.runs:
                check_metric(run, self.goal.metric)
            self.search.tell(trial, self._value(job))
            self._store(job.name, "complete")

    def best(self) -> str | None:
        """The name of the best trial that was not pruned."""
        complete = [t for t in self.search.trials if t.value is not None]
        complete = [t for t in complete if t.state == self.optuna.trial.TrialState.COMPLETE]
        if not complete:
            return None
        sign = 1 if self.goal.minimize else -1
        return f"trial-{min(complete, key=lambda t: sign * t.value).number:03}"

    def _remember(self, name: str) -> None:
        """A trial from before: told to Optuna as it ended, or gone on with."""
        settings = self.study.settings.get(name, {})
        try:
            params = {axis.path: self._value_of(axis, settings[axis.path]) for axis in self.axes}
        except (KeyError, ValueError) as error:
            raise UserError(
                f"{self.study.folder} cannot continue: {name} is not a trial of this search."
            ) from error
        state, step = stored_trials(self.study).get(name, ("running", 0))
        job = self.study.job(name)
        if state == "running":
            self.search.enqueue_trial(params)
            self._begin(name, self.search.ask(self.space))
            return
        self.jobs.append(job)
        values = {
            at: one for at, one in self._curve(job).items() if at < job.recipe.total_vec_steps
        }
        value = self._value(job) if state == "complete" else None
        if value is not None and math.isnan(value):  # its log is gone
            state, value = "failed", None
        states = self.optuna.trial.TrialState
        kinds = {"complete": states.COMPLETE, "pruned": states.PRUNED, "failed": states.FAIL}
        if state == "pruned":
            values = {at: one for at, one in values.items() if at <= step}
        trial = self.optuna.trial.create_trial(
            state=kinds[state],
            params=params,
            distributions=self.space,
            value=value,
            intermediate_values=values,
        )
        self.search.add_trial(trial)

    def _begin(self, name: str, trial: Any) -> None:
        self.study.make_folders(name)
        job = self.study.job(name)
        self.jobs.append(job)
        self.waiting.append(job)
        self.trials[name], self.reported[name] = trial, set()

    def _store(self, name: str, state: str, step: int = 0) -> None:
        trials = {**self.study.sweep.get("trials", {}), name: [state, step]}
        self.study = replace(self.study, sweep={**self.study.sweep, "trials": trials})
        self.study.write()

    def _report(self, job: Job) -> None:
        """Tell Optuna what is new, step by step, until it prunes. The last step is too late for that."""
        trial, reported = self.trials[job.name], self.reported[job.name]
        for step, value in self._curve(job).items():
            if job.name in self.pruned or step >= job.recipe.total_vec_steps:
                return
            if step not in reported:
                reported.add(step)
                trial.report(value, step)
                if trial.should_prune():
                    self.pruned[job.name] = step

    def _grew(self, job: Job) -> bool:
        """Is there more in the logs than when they were read last?"""
        log = job.runs[0] / "metrics.jsonl"
        size = log.stat().st_size if log.exists() else 0
        before, self.sizes[log] = self.sizes.get(log, 0), size
        return size != before

    def _curve(self, job: Job) -> dict[int, float]:
        """The metric over vec steps: the mean of seeds that learn together, the first seed of those that take turns."""
        together = why_not_batched(job.recipe) is None
        curves = [curve(run, self.goal.metric) for run in (job.runs if together else job.runs[:1])]
        shared = set.intersection(*map(set, curves))
        return {step: sum(of[step] for of in curves) / len(curves) for step in sorted(shared)}

    def _value(self, job: Job) -> float:
        """The mean over all seeds of their last evaluation."""
        curves = [curve(run, self.goal.metric) for run in job.runs]
        if not all(curves):
            return math.nan
        return sum(of[max(of)] for of in curves) / len(curves)

    def _distribution(self, axis: Axis) -> Any:
        made = self.optuna.distributions
        if not axis.is_range:
            return made.CategoricalDistribution(axis.values)
        if axis.path not in self.whole:
            return made.FloatDistribution(axis.low, axis.high, log=axis.log)
        if axis.low % 1 or axis.high % 1:
            raise UserError(f"--over {axis.path}: a range of whole numbers must have whole ends.")
        return made.IntDistribution(int(axis.low), int(axis.high), log=axis.log)

    def _value_of(self, axis: Axis, text: str) -> Any:
        if not axis.is_range:
            if text not in axis.values:
                raise ValueError(text)
            return text
        value = int(text) if axis.path in self.whole else float(text)
        if not axis.low <= value <= axis.high:
            raise ValueError(text)
        return value


def _text(value: Any) -> str:
    return value if isinstance(value, str) else repr(value)
