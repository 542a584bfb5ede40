"""How often something can be done in a stretch of time.

Contestants take turns, so that whatever else the machine does affects all of them alike.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

# Does its work for so many seconds and returns the calls per second.
Contestant = Callable[[float], float]


def take_turns(
    contestants: Mapping[str, Contestant],
    seconds: float,
    rounds: int,
    *,
    times: float,
    warm_up: float | None = None,
) -> dict[str, list[float]]:
    """The rate of each contestant in each round, multiplied by `times`.

    `seconds` is the measured time in all, shared equally; who begins alternates from round to round. `warm_up`: seconds
    before the first round, None: a tenth of a turn.
    """
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    share = seconds / (rounds * len(contestants))
    for play in contestants.values():
        play(share / 10 if warm_up is None else warm_up)
    for turn in range(rounds):
        for name in sorted(contestants, reverse=turn % 2 == 0):
            rates[name].append(times * contestants[name](share))
    return rates


def medians(rates: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """The median round of each contestant."""
    return {name: statistics.median(values) for name, values in rates.items()}


def player(
    step: Callable[[Any], object], script: Any, clock: Callable[[], float] = time.perf_counter
) -> Contestant:
    """A contestant that calls `step` with the entries of `script` in turn; it goes on where it stopped."""
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


def stretch(
    work: Callable[[], object],
    seconds: float,
    device: torch.device,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Calls per second. The device is waited for after every ten."""
    count, start = 0, clock()
    while count == 0 or clock() - start < seconds:
        for _ in range(10):
            work()
        wait(device)
        count += 10
    return count / (clock() - start)


def rate(work: Callable[[], object], seconds: float, device: torch.device) -> float:
    """Calls per second after a warm-up, best of three stretches."""
    for _ in range(10):
        work()
    wait(device)
    return max(stretch(work, seconds / 3, device) for _ in range(3))


def wait(device: torch.device) -> None:
    """Until the device has done all work it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
