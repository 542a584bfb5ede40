"""Metrics of several seeds, added as vectors and handed out to the log of each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fleetfoot.log import EpisodeStats, Log

Key = tuple[torch.device, tuple[str, ...]]


class MultiSeedMeter:
    """Sums of metrics [S], held on their device until they are handed out."""

    def __init__(self) -> None:
        self.sums: dict[Key, Tensor] = {}
        self.counts: defaultdict[Key, int] = defaultdict(int)

    def add(self, metrics: Mapping[str, Tensor]) -> None:
        """Take in one measurement [S] of each metric."""
        for device in {value.device for value in metrics.values()}:
            names = tuple(name for name, value in metrics.items() if value.device == device)
            values = torch.stack([metrics[name].detach().double() for name in names])  # [K, S]
            key = device, names
            self.sums[key] = self.sums[key] + values if key in self.sums else values
            self.counts[key] += 1

    def hand_out(self, logs: Sequence[Log]) -> None:
        for key, sums in self.sums.items():
            for name, of_seeds in zip(key[1], sums.tolist(), strict=True):
                for log, total in zip(logs, of_seeds, strict=True):
                    log.add_total(name, total, self.counts[key])
        self.sums, self.counts = {}, defaultdict(int)


class MultiSeedEpisodes(EpisodeStats):
    """The statistics of all seeds, [S, N]. Those of each seed become views of its share."""

    def __init__(self, seeds: Sequence[EpisodeStats]):
        self.returns = torch.stack([stats.returns for stats in seeds])
        self.lengths = torch.stack([stats.lengths for stats in seeds])
        self.ended = torch.stack([stats.ended for stats in seeds], dim=1)  # [3, S]
        for number, stats in enumerate(seeds):
            stats.returns, stats.lengths = self.returns[number], self.lengths[number]
            stats.ended = self.ended[:, number]

    def update(self, reward: Tensor, ended: Tensor) -> None:
        """Of all seeds, [S N]."""
        super().update(reward.view_as(self.returns), ended.view_as(self.returns))
