"""Policies that need no network, to compare a trained one with."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from fleetfoot import deploy
from fleetfoot.deploy.fields import Array, Reader


class ZeroPolicy(deploy.Policy):
    """Always the action 0: a robot holds its standing pose."""

    def __init__(self, about: deploy.About) -> None:
        self.about = about
        joints = Reader(about.raw, about.name).tables("joints")
        self.offset, self.scale = (
            np.array([joint.number(key, float) for joint in joints], np.float32)
            for key in ("action_offset", "action_scale")
        )

    def __call__(self, obs: ArrayLike, task: int | str | None = None) -> deploy.Output:
        action = self.action()
        return deploy.Output(action, self.offset + self.scale * action)

    def action(self) -> Array:
        return np.zeros(self.about.action_size, np.float32)


class RandomPolicy(ZeroPolicy):
    """Uniform in [-1, 1], anew at each step."""

    def __init__(self, about: deploy.About, seed: int) -> None:
        super().__init__(about)
        self.random = np.random.default_rng(seed)

    def action(self) -> Array:
        return self.random.uniform(-1.0, 1.0, self.about.action_size).astype(np.float32)
