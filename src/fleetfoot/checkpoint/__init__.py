"""Checkpoints: the whole state of a run as safetensors and JSON.

    checkpoints/
      000012345/            the newest state, named by its vec step
        state.safetensors   every tensor of the state except the replay's
        replay.safetensors  the replay's tensors (absent with `checkpoint.replay=False`)
        rank-1.safetensors  where several processes trained: what belongs to rank 1 alone, its
                            replay included; the files above hold the rest
        state.json          the structure of the state, the recipe, sizes and digests
      best-000010000/       the state with the best evaluation; never holds the replay and
                            shares no file with the newest
      last.json, best.json  the name of the folder, replaced atomically

`tree` turns a state into named tensors and JSON, `write` puts it on disk so that a kill at any
moment loses nothing, `read` verifies it before use. Reading a checkpoint never executes code.
"""

from __future__ import annotations

from pathlib import Path

from fleetfoot.checkpoint.fit import check_collector_fits, check_counts, check_fits
from fleetfoot.checkpoint.read import (
    Loaded,
    load,
    plain_values,
    sealed_recipe,
    steps,
    whole_beside,
)
from fleetfoot.checkpoint.tree import pack, unpack
from fleetfoot.checkpoint.write import Checkpoint, NoSpaceError
from fleetfoot.config import at_least, part

__all__ = [
    "Checkpoint",
    "CheckpointConfig",
    "Loaded",
    "NoSpaceError",
    "check_collector_fits",
    "check_counts",
    "check_fits",
    "load",
    "pack",
    "plain_values",
    "sealed_recipe",
    "steps",
    "unpack",
    "whole_beside",
]


@part
class CheckpointConfig:
    """When checkpoints are written and what they hold."""

    every_vec_steps: int = 5_000
    """Vec steps between checkpoints; 0: only at the end and on Ctrl-C."""
    replay: bool = True
    """Save the replay too. Without it checkpoints are small, and a resumed run starts with an empty replay."""
    keep: int = 1
    """Newest checkpoints to keep on disk; the best one is always kept."""

    def __post_init__(self) -> None:
        at_least(self, "checkpoint", every_vec_steps=0, keep=1)

    def due(self, vec_steps: int) -> bool:
        return self.every_vec_steps > 0 and vec_steps % self.every_vec_steps == 0

    def build(self, folder: Path, *, back_to: str = "") -> Checkpoint:
        """`folder` is the run's checkpoints folder; it need not exist yet."""
        return Checkpoint(folder, replay=self.replay, keep=self.keep, back_to=back_to)
