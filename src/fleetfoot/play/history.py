"""The last seconds of a robot, for plots."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

KEPT = 400  # control steps: 8 s at 50 Hz


class Record(NamedTuple):
    """Rows of time, oldest first."""

    seconds: NDArray[np.float64]  # [K]
    command: NDArray[np.float64]  # [K, commands]
    measured: NDArray[np.float64]  # [K, 3]
    power: NDArray[np.float64]  # [K]
    terms: NDArray[np.float64]  # [K, terms] reward per second
    target: NDArray[np.float64]  # [K, joints]
    position: NDArray[np.float64]  # [K, joints]

    @property
    def error(self) -> NDArray[np.float64]:
        """[K] the speed in the plane by which the command is missed (m/s)."""
        missed: NDArray[np.float64] = np.linalg.norm(
            self.command[:, :2] - self.measured[:, : self.command[:, :2].shape[1]], axis=1
        )
        return missed


class History:
    """A ring of the newest rows. The time on it runs on over restarts."""

    def __init__(self, terms: Sequence[str], joints: Sequence[str]) -> None:
        self.terms, self.joints = tuple(terms), tuple(joints)
        self._rows: list[tuple[object, ...]] = []
        self._lock = threading.Lock()
        self._last = self._shown = 0.0

    def add(self, seconds: float, *row: object) -> None:
        step = seconds - self._last if seconds > self._last else 0.0
        self._last = seconds
        copies = tuple(np.array(value, np.float64) for value in row)
        with self._lock:
            self._shown += step
            self._rows.append((self._shown, *copies))
            del self._rows[:-KEPT]

    def record(self, every: int = 1, last: int = KEPT) -> Record | None:
        """The last rows, or every so many of them; None before the first two."""
        with self._lock:
            rows = self._rows[: -last - 1 : -every][::-1]
        if len(rows) < 2:
            return None
        return Record(*(np.array(column, np.float64) for column in zip(*rows, strict=True)))
