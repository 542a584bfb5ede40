"""How far a free learner may run ahead of the actors."""

from __future__ import annotations


class Lead:
    """Allows learning from `reuse` rows for every row received.

    Unused allowance is kept only up to that of `rows` received rows: a learner that was slow for hours must not
    keep learning for hours when no rows arrive any more.
    """

    def __init__(self, reuse: float, *, rows: int, most_at_once: int):
        """`most_at_once`: rows that are spent together."""
        self.reuse, self.most = reuse, max(reuse * rows, float(most_at_once))
        self.left = 0.0

    def earn(self, rows: int) -> None:
        self.left = min(self.most, self.left + self.reuse * rows)

    def allows(self, rows: int) -> bool:
        return self.left >= rows

    def spend(self, rows: int) -> None:
        self.left -= rows
