"""Where the time of recorded updates goes, kernel by kernel."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch

from fleetfoot.execution import EagerLearner


def slowest_kernels(learn: EagerLearner, updates: int, most: int) -> list[dict[str, Any]]:
    """The kernels of `updates` updates that take longest in all; `learn` is ready."""
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        learn(updates)
        torch.cuda.synchronize()
    microseconds: dict[str, list[float]] = defaultdict(list)
    for event in profile.events():
        if event.device_type.name == "CUDA":
            microseconds[event.name].append(event.device_time)
    slowest = sorted(microseconds.items(), key=lambda item: -sum(item[1]))[:most]
    return [
        {
            "kernel": name[:90],
            "microseconds_per_update": sum(times) / updates,
            "launches_per_update": len(times) / updates,
        }
        for name, times in slowest
    ]
