"""Random numbers from counters, in torch: what an environment draws depends on its own numbers and on nothing else.

A stream of random numbers has a state that everybody who draws shares. Here a number is a hash (SplitMix64) of what it
is for: seed, environment, episode, and so on. The bits are the same on a CPU and a GPU, they can be drawn inside a CUDA
graph, and there is nothing to save but the counters.
"""

from __future__ import annotations

import torch
from torch import Tensor

GOLDEN = -0x61C8864680B583EB  # the odd number nearest to 2^64 / golden ratio, as int64


def mix(x: Tensor) -> Tensor:
    """SplitMix64's next output for each int64 counter; int64 arithmetic in torch wraps around."""
    x = x + GOLDEN
    x = (x ^ _shift(x, 30)) * -0x40A7B892E31B1A47
    x = (x ^ _shift(x, 27)) * -0x6B2FB644ECCEEE15
    return x ^ _shift(x, 31)


def _shift(x: Tensor, bits: int) -> Tensor:
    """Logical shift to the right: `>>` alone would bring in copies of the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def env_keys(seed: int, num_envs: int, device: torch.device) -> Tensor:
    """One key per environment [N]; the key of environment i does not depend on N."""
    wrapped = (seed + 2**63) % 2**64 - 2**63
    start = mix(torch.full((1,), wrapped, dtype=torch.int64, device=device))
    return mix(start + torch.arange(num_envs, device=device))


def uniforms(key: Tensor, episode: Tensor, count: int) -> Tensor:
    """float32 [N, count] in [0, 1), a function of each environment's key and episode number."""
    stream = mix(key ^ mix(episode))  # [N]
    bits = mix(stream[:, None] + GOLDEN * torch.arange(1, count + 1, device=key.device))
    return _shift(bits, 40).float() * 2.0**-24  # the 24 bits a float32 can hold


class Draw:
    """Uniform numbers of N rows, handed out one after the other; the c-th depends on the row's key and on c alone.

    `block` is how many are made at once, for speed: whoever knows how many a step needs says so.
    """

    def __init__(self, key: Tensor, block: int = 0) -> None:
        self._key = key  # [N] int64
        self._block = _pairs(key, 0, block) if block else None
        self.used = 0

    @classmethod
    def several(cls, keys: Tensor, block: int) -> list[Draw]:
        """One `Draw` for each row of `keys` [k, N], hashed together: fewer kernels."""
        made = [cls(key) for key in keys]
        if block:
            blocks = _pairs(keys.flatten(), 0, block).chunk(len(made))
            for draw, made_at_once in zip(made, blocks, strict=True):
                draw._block = made_at_once
        return made

    def uniform(self, count: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        """[N, count] in [low, high)."""
        begin, end = self.used, self.used + count
        self.used = end
        if self._block is not None and end <= self._block.shape[1]:
            unit = self._block[:, begin:end]
        else:
            unit = _pairs(self._key, begin, count)
        return unit if (low, high) == (0.0, 1.0) else low + (high - low) * unit

    def exponential(self, mean: float) -> Tensor:
        """[N, 1]."""
        return -mean * torch.log1p(-self.uniform(1))

    def chance(self, probability: float) -> Tensor:
        """[N, 1] bool."""
        return self.uniform(1) < probability


def keys_of(key: Tensor, episode: Tensor, step: Tensor | int) -> Tensor:
    """The key [N] of one step (below 2^24) of one episode of each environment."""
    return mix(key ^ (episode * 2**24 + step))


def _pairs(key: Tensor, begin: int, count: int) -> Tensor:
    """Uniform numbers `begin` to `begin + count` of each key: two from each hash, 24 bits each."""
    first, last = begin // 2, (begin + count + 1) // 2
    counter = torch.arange(first + 1, last + 1, device=key.device)
    bits = mix(key[:, None] + GOLDEN * counter)  # [N, pairs]
    halves = torch.stack([_shift(bits, 40), (bits >> 8) & 0xFFFFFF], dim=2).flatten(1)
    return halves[:, begin - 2 * first : begin - 2 * first + count].float() * 2.0**-24
