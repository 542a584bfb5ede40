"""Observations in time: history and delay of what the policy sees, from a buffer of its last frames."""

from __future__ import annotations

import torch
from torch import Tensor


class Frames:
    """A frame [N, D] is one observation with its noise. Buffers are [N, L, D], the newest frame last."""

    def __init__(self, size: int, sensed: Tensor, history: int, delay: int) -> None:
        """`sensed` [D] bool: what comes late where there is a delay. Commands and last actions do not."""
        self.size, self.history, self.delay = size, history, delay
        self.length = history + delay
        self.sensed = sensed
        self.newest = torch.arange(self.length - history, self.length, device=sensed.device)

    def first(self, frame: Tensor) -> Tensor:
        """The buffer where an episode begins: as if this had been seen for a while."""
        return frame[:, None].expand(-1, self.length, -1)

    def push(self, buffer: Tensor, frame: Tensor) -> Tensor:
        if self.length == 1:
            return frame[:, None]
        return torch.cat([buffer[:, 1:], frame[:, None]], 1)

    def seen(self, buffer: Tensor, delay: Tensor | None) -> Tensor:
        """[N, history * D]. `delay` [N, 1]: by how many control steps senses are late."""
        recent = buffer[:, self.length - self.history :]
        if delay is not None:
            place = (self.newest - delay.long())[:, :, None].expand(-1, -1, self.size)
            recent = torch.where(self.sensed, buffer.gather(1, place), recent)
        return recent.flatten(1)
