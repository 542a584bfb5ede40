"""What travels from an actor to the learner."""

from __future__ import annotations

from typing import Any, NamedTuple


class Block(NamedTuple):
    """L lines of V environments. All but the numbers are numpy arrays."""

    actor: int
    incarnation: int  # how often this actor has been replaced
    sequence: int  # blocks of this incarnation before this one
    version: int  # of the weights that acted
    seconds: float  # it took to collect
    lines: dict[str, Any]
    td_error: Any  # [L, V] absolute, or None where the actor does not know
