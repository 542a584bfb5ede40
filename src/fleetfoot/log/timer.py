"""Where the time of a vec step goes."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import torch

EVERY = 7  # on a GPU, measure one vec step in so many (odd: updates often come in twos)


class StepTimer:
    """Milliseconds per vec step of each part of the loop, by name.

    On a GPU they are read off the stream on which the part is asked for, when `metrics` is called and the device is
    idle; nothing waits before. Parts on different streams may run at the same time, so they need not add up.
    """

    def __init__(self, device: torch.device):
        self.on_gpu = device.type == "cuda"
        self.vec_steps = 0
        self.forget()

    def forget(self) -> None:
        """Begin anew."""
        self.measured = 0
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.events: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []

    def next_vec_step(self) -> None:
        """Call once per vec step, at its end."""
        if self._measures():
            self.measured += 1
        self.vec_steps += 1

    def _measures(self) -> bool:
        return not self.on_gpu or self.vec_steps % EVERY == 0

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        if not self._measures():
            yield
        elif self.on_gpu:
            stream = torch.cuda.current_stream()
            begin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            begin.record(stream)
            yield
            end.record(stream)
            self.events.append((name, begin, end))
        else:
            begun = time.perf_counter()
            yield
            self.seconds[name] += time.perf_counter() - begun

    def metrics(self) -> dict[str, float]:
        """The means since the last call. The device must be idle."""
        for name, begin, end in self.events:
            self.seconds[name] += begin.elapsed_time(end) / 1e3
        means = {
            f"time/{name}_ms": 1e3 * seconds / max(1, self.measured)
            for name, seconds in self.seconds.items()
        }
        self.forget()
        return means
