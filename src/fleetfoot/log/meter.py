"""Accumulating metrics on their device, and reading them once per interval."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor

from fleetfoot.errors import UserError

Totals: TypeAlias = dict[str, tuple[float, float]]  # name -> sum and count of its measurements

EVAL_RETURN = "eval/return"  # the metric the console, the curve and the best checkpoint go by


@dataclass(frozen=True)
class Counters:
    """How far a run has come. `train_seconds` leaves out evaluation and the writing of files."""

    vec_steps: int = 0
    env_steps: int = 0
    updates: int = 0
    train_seconds: float = 0.0


@dataclass(frozen=True)
class Mean:
    """A metric that may have had nothing to measure: reported as total / count, or not at all."""

    total: Tensor
    count: Tensor


class NonFinite(UserError):  # noqa: N818
    """A metric became NaN or infinite. `names` are the metrics concerned."""

    def __init__(self, names: Sequence[str], counters: Counters) -> None:
        self.names = tuple(names)
        super().__init__(
            f"{', '.join(names)} became NaN or infinite by vec step {counters.vec_steps:,} (update "
            f"{counters.updates:,}); resume from the last checkpoint with a lower learning rate, "
            "or look at what the environment returns"
        )


class Sink(Protocol):
    """Where numbers go."""

    def write(self, counters: Counters, metrics: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class _Column(NamedTuple):
    name: str
    counts: bool  # this column holds the count of a `Mean`, not a total


class Log:
    """Means of metrics over an interval of vec steps, written to all sinks.

    Metrics with the same names are summed as one vector, so adding costs two kernels and no wait,
    however many there are. The sum of a NaN stays NaN: nothing between two flushes goes unseen.
    """

    def __init__(self, sinks: Sequence[Sink], *, every_vec_steps: int = 1) -> None:
        self.sinks = tuple(sinks)
        self.every_vec_steps = every_vec_steps
        # Set from outside where several processes measure: from what this one read to what all of them did.
        self.merge: Callable[[Totals], Totals] = lambda totals: totals
        self._sums: dict[tuple[torch.device, tuple[_Column, ...]], Tensor] = {}
        self._totals: defaultdict[str, float] = defaultdict(float)  # of plain numbers
        self._counts: defaultdict[str, float] = defaultdict(float)  # of plain numbers and tensors

    def due(self, vec_steps: int) -> bool:
        return vec_steps % self.every_vec_steps == 0

    def add(self, metrics: Mapping[str, Tensor | float | Mean]) -> None:
        """Take in one measurement of each metric. A tensor with many entries counts as its mean."""
        columns: defaultdict[torch.device, list[tuple[_Column, Tensor]]] = defaultdict(list)
        for name, value in metrics.items():
            if isinstance(value, Mean):
                columns[value.total.device].append((_Column(name, False), value.total.detach()))
                columns[value.count.device].append((_Column(name, True), value.count.detach()))
                continue
            self._counts[name] += 1
            if isinstance(value, Tensor):
                scalar = value.detach() if value.ndim == 0 else value.detach().float().mean()
                columns[value.device].append((_Column(name, False), scalar))
            else:
                self._totals[name] += value
        for device, pairs in columns.items():
            key = device, tuple(column for column, _ in pairs)
            values = torch.stack([value for _, value in pairs])
            if key not in self._sums:
                # float64, so that long intervals lose nothing.
                self._sums[key] = torch.zeros(len(pairs), dtype=torch.float64, device=device)
            self._sums[key] += values

    def add_total(self, name: str, total: float, count: float) -> None:
        """Take in `count` measurements at once, by their sum."""
        self._totals[name] += total
        self._counts[name] += count

    def flush(
        self, counters: Counters, extra: Mapping[str, float] | None = None
    ) -> dict[str, float]:
        """`read` and `write` in one, with `extra` added."""
        metrics = {**self.read(counters), **(extra or {})}
        self.write(counters, metrics)
        return metrics

    def read(self, counters: Counters) -> dict[str, float]:
        """The means since the last reading. Waits for the device, once per device.

        Raises NonFinite where a value is NaN or infinite.
        """
        metrics = self._read()
        _all_finite(metrics, counters)
        return metrics

    def write(self, counters: Counters, metrics: Mapping[str, float]) -> None:
        """Hand numbers to all sinks; raises NonFinite, and writes nothing, where one is not finite."""
        _all_finite(metrics, counters)
        for sink in self.sinks:
            sink.write(counters, metrics)

    def close(self) -> None:
        for sink in self.sinks:
            sink.close()

    def totals(self) -> Totals:
        """The sum and the count of each metric since the last reading. Waits for the device, once per device."""
        totals, counts = self._totals, self._counts
        for device in {device for device, _ in self._sums}:
            keys = [key for key in self._sums if key[0] == device]
            values = torch.cat([self._sums[key] for key in keys]).tolist()
            columns = [column for _, group in keys for column in group]
            for column, value in zip(columns, values, strict=True):
                (counts if column.counts else totals)[column.name] += value
        self._sums, self._totals, self._counts = {}, defaultdict(float), defaultdict(float)
        return {name: (totals[name], counts[name]) for name in sorted(totals)}

    def _read(self) -> dict[str, float]:
        merged = self.merge(self.totals())
        # A count that is itself NaN must not hide its metric, so only a true zero is left out.
        return {name: total / count for name, (total, count) in merged.items() if count != 0}


def _all_finite(metrics: Mapping[str, float], counters: Counters) -> None:
    if bad := [name for name, value in metrics.items() if not math.isfinite(value)]:
        raise NonFinite(bad, counters)


def added(everyone: list[Totals]) -> Totals:
    """The sums and counts of several logs together."""
    names = sorted({name for totals in everyone for name in totals})
    shares = {name: [totals[name] for totals in everyone if name in totals] for name in names}
    return {name: (sum(t for t, _ in of), sum(n for _, n in of)) for name, of in shares.items()}
