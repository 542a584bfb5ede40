"""Metrics of several seeds, added as vectors and handed out to the log of each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fleetfoot.log.meter import Log, Mean


class MultiSeedMeter:
    """Sums of metrics [S], kept on their device until they are handed out."""

    def __init__(self) -> None:
        self.sums: dict[tuple[torch.device, tuple[str, ...]], Tensor] = {}
        self.counts: defaultdict[tuple[torch.device, tuple[str, ...]], int] = defaultdict(int)
        self.means: dict[str, Mean] = {}

    def add(self, metrics: Mapping[str, Tensor | Mean]) -> None:
        """Take in one measurement [S] of each metric; of a `Mean`, everything since it was last handed out."""
        plain = {name: value for name, value in metrics.items() if isinstance(value, Tensor)}
        self.means |= {name: value for name, value in metrics.items() if isinstance(value, Mean)}
        for device in {value.device for value in plain.values()}:
            names = tuple(name for name, value in plain.items() if value.device == device)
            values = torch.stack([plain[name].detach().double() for name in names])  # [K, S]
            key = device, names
            self.sums[key] = self.sums[key] + values if key in self.sums else values
            self.counts[key] += 1

    def hand_out(self, logs: Sequence[Log]) -> None:
        for key, sums in self.sums.items():
            for name, row in zip(key[1], sums.tolist(), strict=True):
                for log, total in zip(logs, row, strict=True):
                    log.add_total(name, total, self.counts[key])
        for name, mean in self.means.items():
            rows = zip(logs, mean.total.tolist(), mean.count.tolist(), strict=True)
            for log, total, count in rows:
                log.add_total(name, total, count)
        self.sums, self.counts, self.means = {}, defaultdict(int), {}
