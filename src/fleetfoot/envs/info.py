"""What Gymnasium environments tell in `info`, as rows for the log.

Numbers are taken as `env/NAME`; texts, arrays and dictionaries are left out. A row holds the last value that each
environment told, so that names never disappear again and a value that is told now and then (at the end of an episode,
by some environments only) still has a mean. `success` and `is_success` become `success`, which evaluation counts: 1 in
the step in which it was told to be true, and otherwise 0.

Nothing here imports torch: the processes of `envs.subprocess` use it too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

SUCCESS = ("success", "is_success")
OURS = ("reward", "obs_magnitude")  # names that the log has already under env/
LARGEST = float(np.finfo(np.float32).max)
MOST_NAMES = 64  # for environments that make up names as they go


def numbers(info: Mapping[str, Any]) -> dict[str, float]:
    """The numbers and truth values of one environment's `info`, without those that float32 cannot hold."""
    told: dict[str, float] = {}
    for name, value in info.items():
        # Comparisons are fast with Python's floats, which numpy's float64 are too, and safe with its long ints.
        if isinstance(value, (np.generic, np.ndarray)):
            if value.ndim or value.dtype.kind not in "biuf":
                continue
            value = float(value)
        elif not isinstance(value, (float, int)):
            continue
        if -LARGEST <= value <= LARGEST:  # not NaN either
            told[name] = float(value)
    return told


class InfoRows:
    """Rows [N] by name, of N environments."""

    def __init__(self, num_envs: int) -> None:
        self.last: dict[str, NDArray[np.float32]] = {}  # NaN: never told
        self.partial: set[str] = set()  # those that not all environments have told yet
        self.success: NDArray[np.float32] | None = None
        self.num_envs = num_envs

    def forget(self) -> None:
        """Before episodes that have nothing to do with those so far. What it takes to know a success stays."""
        self.last, self.partial = {}, set()

    def begin_step(self) -> None:
        if self.success is not None:
            self.success = np.zeros(self.num_envs, np.float32)

    def tell(self, name: str, values: NDArray[Any], told: NDArray[np.bool_]) -> None:
        """What the environments where `told` say in this step."""
        if name in SUCCESS:
            if self.success is None:
                self.success = np.zeros(self.num_envs, np.float32)
            self.success[told] = np.maximum(self.success[told], values[told] > 0)
            return
        if name not in self.last and (len(self.last) == MOST_NAMES or not told.any()):
            return
        if told.all():
            self.last[name] = values.astype(np.float32)
            self.partial.discard(name)
            return
        if name not in self.last:
            self.last[name] = np.full(self.num_envs, np.nan, np.float32)
            self.partial.add(name)
        self.last[name][told] = values[told]

    def rows(self) -> dict[str, NDArray[np.float32]]:
        """For the log; an environment that has never told a value gets the mean of the others."""
        shown = {
            f"env/{name}_in_info" if name in OURS else f"env/{name}": (
                np.where(np.isnan(last), np.nanmean(last), last) if name in self.partial else last
            )
            for name, last in self.last.items()
        }
        return shown if self.success is None else shown | {"success": self.success}
