"""A replay in the slowest and most obvious way: Python lists, every transition whole, windows followed step by step."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from fleetfoot.data import Transition


@dataclass
class Row:
    obs: Tensor
    action: Tensor
    reward: float
    terminated: bool
    truncated: bool
    next_obs: Tensor


@dataclass
class OracleReplay:
    rows: int
    n: int
    gamma: float
    columns: list[list[Row]] = field(default_factory=list)

    def append(self, step: Transition) -> None:
        count = step.reward.shape[0]
        if not self.columns:
            self.columns = [[] for _ in range(count)]
        for c in range(count):
            self.columns[c].append(
                Row(
                    step.obs.critic[c].clone(),
                    step.action[c].clone(),
                    float(step.reward[c]),
                    bool(step.terminated[c]),
                    bool(step.truncated[c]),
                    step.next_obs.critic[c].clone(),
                )
            )
            del self.columns[c][: -self.rows]

    def mark_break(self) -> None:
        for column in self.columns:
            if not column[-1].terminated:
                column[-1].truncated = True

    def window(self, age: int, column: int) -> tuple[Row, float, float, Tensor]:
        """The first row, the folded reward, the discount, and the observation after the window."""
        rows = self.columns[column]
        reward, discount = 0.0, 1.0
        for row in rows[age : age + self.n]:
            reward += discount * row.reward
            discount *= self.gamma
            last = row
            if row.terminated:
                return rows[age], reward, 0.0, row.next_obs
            if row.truncated:
                break
        return rows[age], reward, discount, last.next_obs
