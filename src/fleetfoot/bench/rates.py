"""How often something can be done in a stretch of time. Contestants take turns, so that whatever else the machine does
meets all of them alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch


def take_turns(
    contestants: Mapping[str, Callable[[float], float]],
    seconds: float,
    rounds: int,
    *,
    times: float,
    warm_up: float | None = None,
) -> dict[str, list[float]]:
    """What each tells of its rate in each round, `times` as much. `seconds` is the measured time in all, shared
    equally; who begins alternates from round to round. `warm_up`: seconds before the first round, None: a tenth of a
    turn."""
    seen: dict[str, list[float]] = {name: [] for name in contestants}
    share = seconds / (rounds * len(contestants))
    for play in contestants.values():
        play(share / 10 if warm_up is None else warm_up)
    for turn in range(rounds):
        for name in sorted(contestants, reverse=turn % 2 == 0):
            seen[name].append(times * contestants[name](share))
    return seen


def player(
    step: Callable[[Any], object], script: Any, clock: Callable[[], float] = time.perf_counter
) -> Callable[[float], float]:
    """A function that plays for some seconds and tells the vec steps per second; it goes on where it stopped."""
    at = 0

    def play(seconds: float) -> float:
        nonlocal at
        calls, start = 0, clock()
        while (spent := clock() - start) < seconds or calls == 0:
            step(script[at % len(script)])
            at += 1
            calls += 1
        return calls / spent

    return play


def rate(work: Callable[[], object], seconds: float, device: torch.device) -> float:
    """Calls per second, best of three stretches."""
    for _ in range(10):
        work()
    wait(device)
    best = 0.0
    for _ in range(3):
        count, start = 0, time.perf_counter()
        while time.perf_counter() - start < seconds / 3:
            for _ in range(10):
                work()
            wait(device)
            count += 10
        best = max(best, count / (time.perf_counter() - start))
    return best


def stretch(
    work: Callable[[], object], seconds: float, device: torch.device, clock: Callable[[], float]
) -> float:
    """Calls per second."""
    count, start = 0, clock()
    while count == 0 or clock() - start < seconds:
        for _ in range(10):
            work()
        wait(device)
        count += 10
    return count / (clock() - start)


def wait(device: torch.device) -> None:
    """For all work asked of the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
