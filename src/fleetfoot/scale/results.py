"""What the analysis of a study gives."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from fleetfoot.compare.ranges import Range
from fleetfoot.scale.bests import Best
from fleetfoot.scale.frontier import BudgetLaw, CostModel, Optimum
from fleetfoot.scale.laws import DataLaw, PowerLaw
from fleetfoot.scale.table import Key


@dataclass(frozen=True)
class Crossings:
    """When one configuration reached the thresholds."""

    key: Key
    seeds: int
    data: list[float]  # D_J, NaN where it was never reached
    spread: list[float]  # standard deviation over bootstrap samples
    seconds_per_env_step: float
    overfitting: float
    parameter_norm: float
    on_law: bool  # it stands for its ratio in the data laws


@dataclass(frozen=True)
class HeldOut:
    """The largest ratio, predicted from the others."""

    sigma: float
    threshold: float
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        return abs(self.predicted / self.measured - 1.0)


@dataclass(frozen=True)
class Fitted:
    """The data law of one threshold."""

    threshold: float
    law: DataLaw
    data: list[
        float
    ]  # at each of the ratios (and sizes), in env steps; mean over tasks, each brought to the same unit
    spread: dict[str, list[float]]  # 5 % and 95 % of a, b and c over bootstrap samples


@dataclass(frozen=True)
class Analysis:
    """What a study tells."""

    tasks: dict[str, Range]  # the returns that are a score of 0 and of 1,000
    recipes: dict[str, str]  # of each task
    num_envs: dict[str, int]
    units: dict[str, float]  # env steps of a task for each env step of the laws
    seeds: int
    ratios: list[tuple[float, int]]  # ratio and critic parameters of each column of the data laws
    crossings: list[Crossings]
    thresholds: list[float]  # of `crossings`
    laws: list[Fitted]  # for the thresholds that every ratio reached
    held_out: list[HeldOut]
    batch_law: PowerLaw | None  # None: the study has one batch size
    lr_law: PowerLaw | None
    bests: dict[str, list[Best]]
    own_slopes: dict[str, dict[str, float]]
    batch: (
        PowerLaw  # of what stands for each ratio: the law of the best, or one through what was used
    )
    lr: PowerLaw | None  # None: the agent names none
    params: float  # N of the cost model
    delta: float
    optima: list[Optimum]
    budget_law: BudgetLaw | None
    seconds: tuple[float, float]  # per env step: at ratio 0, and per unit of the ratio
    fastest: list[
        Optimum
    ]  # the ratios that reach each threshold in the shortest time; `budget` is in seconds
    notes: list[str]

    def costs(self) -> CostModel:
        return CostModel(self.batch, self.params, self.delta)

    @property
    def r2(self) -> float:
        """The lowest of all thresholds."""
        return min(fitted.law.r2 for fitted in self.laws)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "r2": self.r2}
