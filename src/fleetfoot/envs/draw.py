"""Random numbers that belong to an environment and not to a stream: drawn by (seed, environment, episode)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class Draw:
    """Random numbers for the environments that restart: one row each.

    Row i depends on nothing but the seed, its environment and how often that environment has
    restarted, so it is the same whatever the other environments do and however many there are. (A
    counter-based generator: splitmix64.)
    """

    def __init__(self, seed: int, env: NDArray[np.int64], episode: NDArray[np.int64]) -> None:
        key = _mix(np.array([seed], dtype=np.int64).view(np.uint64) + _GOLDEN)
        key = _mix(key ^ _mix(env.astype(np.uint64) + _GOLDEN))
        self._key = _mix(key ^ _mix(episode.astype(np.uint64) * np.uint64(2) + np.uint64(1)))
        self._used = 0

    def uniform(self, low: float, high: float, size: int) -> Array:
        """[rows, size] uniform in [low, high)."""
        count = np.arange(self._used + 1, self._used + size + 1, dtype=np.uint64)
        self._used += size
        bits = _mix(self._key[:, None] + count * _GOLDEN)
        unit: Array = (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53
        return low + (high - low) * unit

    def normal(self, size: int) -> Array:
        """[rows, size] standard normal (Box and Muller)."""
        radius = np.sqrt(-2.0 * np.log1p(-self.uniform(0.0, 1.0, size)))
        turned: Array = radius * np.cos(self.uniform(0.0, 2.0 * np.pi, size))
        return turned


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of splitmix64; arithmetic modulo 2^64 is meant."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
