"""What travels from an actor to the learner."""

from __future__ import annotations

from typing import Any, NamedTuple


class Block(NamedTuple):
    """L lines (vec steps of the V environments of one actor), in the order in which they were collected."""

    actor: int
    sequence: int  # blocks of this process before this one
    version: int  # of the weights that acted
    seconds: float  # that the actor worked on it
    lines: dict[str, Any]  # from `pack_lines`
    td_error: Any  # array [L, V] of absolute errors, or None if the actor computes no priorities
