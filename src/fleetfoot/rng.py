"""Random states that can be saved, also for a machine with another kind of device."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


@contextmanager
def seeded_init(seed: int) -> Iterator[None]:
    """Inside, the initial weights of networks depend on `seed` alone, and nothing outside depends on them."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def generator_state(generator: torch.Generator) -> dict[str, Any]:
    return {"device": generator.device.type, "state": generator.get_state()}


def restore_generator(generator: torch.Generator, saved: dict[str, Any]) -> None:
    """Continue exactly on the same kind of device; on another kind, continue from a seed made of the saved state.

    The kinds have different generators, so no state of one means anything to the other.
    """
    if saved["device"] == generator.device.type:
        own, state = generator.get_state(), saved["state"].cpu()
        if state.dtype != own.dtype or state.shape != own.shape:
            raise ValueError(f"a random state has {len(own)} bytes, not {list(state.shape)}")
        generator.set_state(state)
        return
    digest = hashlib.blake2b(saved["state"].cpu().numpy().tobytes(), digest_size=7).digest()
    generator.manual_seed(int.from_bytes(digest, "little"))


class RandomStream:
    """Random numbers that nobody else draws from."""

    def __init__(self, seed: int, device: torch.device):
        self.device = device
        self.generator = torch.Generator(device).manual_seed(seed)

    @property
    def generators(self) -> list[torch.Generator]:
        return [self.generator]

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator, device=self.device)

    def uniform(self, *shape: int) -> Tensor:
        """On [0, 1)."""
        return torch.rand(shape, generator=self.generator, device=self.device)

    def state_dict(self) -> dict[str, Any]:
        return generator_state(self.generator)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        restore_generator(self.generator, state)


def random_streams(seed: int, count: int, device: torch.device) -> list[RandomStream]:
    """Independent streams, one for each kind of update: either can then run alone and draw the same."""
    return [RandomStream(seed + i, device) for i in range(count)]
