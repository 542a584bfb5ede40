"""Random states that can be saved, also for a machine with another kind of device."""

from __future__ import annotations

import hashlib
from typing import Any

import torch


def generator_state(generator: torch.Generator) -> dict[str, Any]:
    return {"device": generator.device.type, "state": generator.get_state()}


def restore_generator(generator: torch.Generator, saved: dict[str, Any]) -> None:
    """Go on exactly on the same kind of device; on another kind, go on from a seed made of the saved state.

    The kinds have different generators, so no state of one means anything to the other.
    """
    if saved["device"] == generator.device.type:
        generator.set_state(saved["state"].cpu())
        return
    digest = hashlib.blake2b(saved["state"].cpu().numpy().tobytes(), digest_size=7).digest()
    generator.manual_seed(int.from_bytes(digest, "little"))
