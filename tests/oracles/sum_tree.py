"""Draws in proportion to values in the most obvious way: a dictionary, walked leaf by leaf."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class OracleSumTree:
    values: dict[int, float] = field(default_factory=dict)

    def set(self, leaves: list[int], values: list[float]) -> None:
        for leaf, value in zip(leaves, values, strict=True):
            self.values[leaf] = value

    def total(self) -> float:
        return sum(self.values.values())

    def find(self, mass: float) -> int:
        """The leaf that lies at `mass` when all are laid side by side."""
        found = -1
        for leaf in sorted(self.values):
            if self.values[leaf] == 0:
                continue
            found = leaf
            if mass < self.values[leaf]:
                break
            mass -= self.values[leaf]
        return found
