"""The C51 projection atom by atom."""

from __future__ import annotations

import math


def project(probs: list[float], places: list[float], z: list[float]) -> list[float]:
    """Share each mass between the two atoms around its place; mass beyond the ends goes to the ends."""
    out = [0.0] * len(z)
    width = z[1] - z[0]
    for mass, place in zip(probs, places, strict=True):
        b = min(max((place - z[0]) / width, 0.0), len(z) - 1.0)
        low, high = math.floor(b), math.ceil(b)
        if low == high:
            out[low] += mass
        else:
            out[low] += mass * (high - b)
            out[high] += mass * (b - low)
    return out
