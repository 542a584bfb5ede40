"""Tables of runs whose laws are known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fleetfoot.scale.table import Key, RunRow, RunTable


@dataclass(frozen=True)
class Planted:
    """Scores approach 1,000 with a time constant of (c + (sigma / b)^-a + (N / n)^-d) units, longer off the best batch
    size and learning rate. So D_J is -log(1 - J / 1,000) time constants."""

    a: float = 0.9
    b: float = 0.6
    c: float = 1.0
    n: float = 0.0
    d: float = 0.7
    unit: float = 20_000.0
    batch_slope: float = -0.5
    lr_slope: float = -0.3
    noise: float = 0.0  # relative, of the time constant of each seed

    def constant(self, key: Key, factor: float) -> float:
        data: float = self.c + (key.utd / self.b) ** -self.a
        if self.n:
            data += (key.params / self.n) ** -self.d
        best_batch, best_lr = 256 * key.utd**self.batch_slope, 1e-3 * key.utd**self.lr_slope
        away = math.log(key.batch / best_batch) ** 2 + math.log(key.lr / best_lr) ** 2
        return self.unit * factor * data * (1 + 0.3 * away)

    def table(
        self,
        keys: Sequence[Key],
        *,
        seeds: int = 8,
        factors: dict[str, float] | None = None,
        length: float = 400_000.0,
        evaluations: int = 400,
        seed: int = 0,
    ) -> RunTable:
        source = np.random.default_rng(seed)
        steps = np.linspace(length / evaluations, length, evaluations)
        runs = []
        for key in keys:
            constant = self.constant(key, (factors or {}).get(key.task, 1.0))
            for number in range(seeds):
                mine = constant * math.exp(self.noise * source.standard_normal())
                columns = {
                    "env_steps": steps,
                    "updates": steps * key.utd,
                    "train_seconds": steps * (1e-3 + 2e-4 * key.utd),
                    "return": 1000 * (1 - np.exp(-steps / mine)),
                    "overfitting": np.full(evaluations, 0.1 * key.utd),
                    "parameter_norm": 20 + steps * key.utd / length,
                }
                runs.append(RunRow(key, number, "sac/pendulum", 10, columns))
        return RunTable(runs)


def on_law(planted: Planted, ratios: Sequence[float], task: str = "pendulum") -> list[Key]:
    """One configuration at each ratio, with the best batch size and learning rate."""
    return [
        Key(
            task,
            ratio,
            round(256 * ratio**planted.batch_slope),
            1e-3 * ratio**planted.lr_slope,
            9_000,
        )
        for ratio in ratios
    ]
