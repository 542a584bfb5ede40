"""One replay for several seeds: each has columns of its own, and draws from them with random numbers of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fleetfoot.data import Batch, EnvSpec
from fleetfoot.recipe import Recipe
from fleetfoot.replay.mirror import Mirror
from fleetfoot.replay.replay import Replay, ReplayConfig
from fleetfoot.replay.ring import Ring, final_entries
from fleetfoot.replay.samplers import Drawn, Uniform
from fleetfoot.topologies.multi_seed.columns import Finals, put_columns, put_finals, take_columns
from fleetfoot.topologies.multi_seed.rows import by_seed, map_obs


class ColumnSampler(Uniform):
    """Draws from some columns of a ring what `Uniform` draws from a ring that has no others."""

    def __init__(self, seed: int, device: torch.device, first: int, width: int):
        super().__init__(seed, device)
        self.first, self.width = first, width

    def draw(self, rows: int, ring: Ring) -> Drawn:  # type: ignore[override]
        return MultiSeedSampler([self]).draw(rows, ring)

    def apart(self, seed: int) -> ColumnSampler:
        return ColumnSampler(seed, self.device, self.first, self.width)

    def readable(self, ring: Ring) -> int:
        return ring.size * self.width


class MultiSeedSampler(Uniform):
    """The draws of one sampler for each seed, in a few operations for all of them."""

    def __init__(self, samplers: Sequence[ColumnSampler]):
        self.samplers, self.width, self.device = samplers, samplers[0].width, samplers[0].device
        self.first = torch.tensor([sampler.first for sampler in samplers], device=self.device)

    @property
    def generators(self) -> list[torch.Generator]:
        return [sampler.generator for sampler in self.samplers]

    def draw(self, rows: int, ring: Ring) -> Drawn:  # type: ignore[override]
        """The rows of all seeds, one seed after the other."""
        u = torch.stack([sampler.shares(rows) for sampler in self.samplers], dim=1)  # [2, S, B]
        age = (u[0] * ring.num_stored).long()
        column = (u[1] * self.width).long() + self.first.unsqueeze(1)
        return Drawn(age.flatten(), column.flatten(), torch.ones(age.numel(), device=age.device))


class MultiSeedReplay(Replay):
    """What all seeds write to and learn from. Batches are [B, S, ...]: B rows for each seed."""

    sampler: MultiSeedSampler

    def __init__(
        self,
        cfg: ReplayConfig,
        ring: Ring,
        sampler: MultiSeedSampler,
        gamma: float,
        finals: int,
        mirror: Mirror | None,
    ):
        super().__init__(cfg, ring, sampler, gamma, mirror)
        self.finals = finals  # room for last observations that the ring of one seed has
        self.loaded: list[Finals] = []

    def gather(
        self, age: Tensor, column: Tensor, weight: Tensor, held_out: Drawn | None = None
    ) -> Batch:
        seeds = len(self.sampler.samplers)

        def seeds_second(x: Tensor) -> Tensor:
            return by_seed(x, seeds).transpose(0, 1)

        flat = self._folded(age, column, weight)
        # Field by field: `_replace` is more than the compiler of torch 2.11 takes.
        batch = Batch(
            obs=map_obs(flat.obs, seeds_second),
            action=seeds_second(flat.action),
            reward=seeds_second(flat.reward),
            discount=seeds_second(flat.discount),
            next_obs=map_obs(flat.next_obs, seeds_second),
            weight=seeds_second(flat.weight),
            row_id=seeds_second(flat.row_id),
        )
        if self.mirror is None:
            return batch
        return self._mirrored(batch, seeds_second(age), seeds_second(column % self.sampler.width))


class SeedReplay(Replay):
    """The share of one seed. It saves and loads what the replay of a run alone does."""

    sampler: ColumnSampler

    def __init__(self, whole: MultiSeedReplay, number: int):
        super().__init__(
            whole.cfg, whole.ring, whole.sampler.samplers[number], whole.gamma, whole.mirror
        )
        self.whole = whole

    def state_dict(self) -> dict[str, Any]:
        first, width = self.sampler.first, self.sampler.width
        ring = take_columns(self.ring, first, width, self.whole.finals)
        return {"ring": ring, "sampler": self.sampler.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """To be called for every seed; all can be read after the last."""
        self.sampler.load_state_dict(state["sampler"])
        loaded = self.whole.loaded
        first, width = self.sampler.first, self.sampler.width
        loaded.append(put_columns(self.ring, first, width, state["ring"]))
        if len(loaded) == len(self.whole.sampler.samplers):
            put_finals(self.ring, loaded)
            loaded.clear()


def build_replay(recipe: Recipe, seeds: Sequence[int], spec: EnvSpec) -> MultiSeedReplay:
    """A ring with the columns of all seeds, each as long as it would be alone; `spec`: of the environments of one."""
    count, width, device = len(seeds), spec.num_envs, recipe.torch_device()
    wide = replace(spec, num_envs=count * width, task_ids=spec.task_ids * count, device=device)
    replay = recipe.off_policy_replay()
    rows = replay.rows(spec)
    cfg = replace(replay, capacity=rows * wide.num_envs, capacity_gib=None)
    # While a seed is saved there is a copy of its share.
    beside = cfg.bytes(wide) // count if recipe.checkpoint.replay else 0
    built = cfg.build(wide, gamma=recipe.gamma, seed=0, device=device, beside=beside)
    ring = built.ring
    samplers = [
        ColumnSampler(replace(recipe, seed=seed).seeds().replay, device, number * width, width)
        for number, seed in enumerate(seeds)
    ]
    finals = final_entries(spec, ring.rows, cfg.final_share)
    return MultiSeedReplay(
        cfg, ring, MultiSeedSampler(samplers), recipe.gamma, finals, built.mirror
    )
