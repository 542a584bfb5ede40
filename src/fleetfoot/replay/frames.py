"""Stacks of frames in a ring.

Where an observation is a stack of S frames, a row keeps the newest frame alone. The others are the newest frames of the
S - 1 rows before, or blank. Which of the two, `append` finds out by comparing, frame by frame, so stacks come back as
they were whatever the environment shows at the start of an episode or after the loss of a life. A frame that is neither
(no environment that keeps to `EnvSpec.frame_stack` shows one) is noticed: its row is not *whole* and must not teach.
S - 1 further lines keep the frames of rows that are too old to be read themselves, so that every row that can be read
has all of its own.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fleetfoot.data import EnvSpec
from fleetfoot.errors import UserError

LOST_FRAME = 128  # in `Ring.links`: a frame that is neither blank nor that of an earlier row
MOST_FRAMES = 8  # one bit for each older frame, and LOST_FRAME


def check_stack(spec: EnvSpec) -> None:
    stack = spec.frame_stack
    if stack == 1:
        return
    if not 1 < stack <= MOST_FRAMES or len(spec.obs_shape) < 2 or spec.obs_shape[0] != stack:
        raise UserError(
            f"{spec.name} has a frame_stack of {stack} and observations of shape {spec.obs_shape}; "
            f"it must be between 1 and {MOST_FRAMES}, and above 1 it must equal the first size of the shape."
        )
    if spec.critic_prefix:
        raise UserError(f"{spec.name} has stacks of frames, so critic_prefix must be 0.")


def link(back: int, frame: Tensor, earlier: Tensor) -> Tensor:
    """The bit of `Ring.links` [N] for the frame `back` rows back: is it that of the `earlier` row, blank, or lost?"""
    frame = frame.to(earlier.dtype)
    same, blank = _everywhere(frame == earlier), _everywhere(frame == 0)
    return torch.where(same, 1 << (back - 1), LOST_FRAME * ~blank).to(torch.uint8)


def _everywhere(flag: Tensor) -> Tensor:
    """[N] bool: is it true in all of [N, ...]? `all` over bytes takes twenty times as long on a CPU."""
    return flag.view(torch.uint8).flatten(1).amin(1) > 0
