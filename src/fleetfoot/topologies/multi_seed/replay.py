"""One replay for several seeds: each draws from its own columns, with its own random numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from fleetfoot.data import Batch, Obs
from fleetfoot.replay.columns import Finals, of_columns, put_columns, put_finals
from fleetfoot.replay.replay import Replay, ReplayConfig
from fleetfoot.replay.ring import Ring
from fleetfoot.replay.samplers import Drawn, Uniform


class MultiSeedUniform:
    """Rows of seed s come from columns s N to (s + 1) N - 1 of the ring, as `Uniform` alone would draw them."""

    prioritised = False

    def __init__(self, samplers: list[Uniform], columns: int):
        self.samplers, self.columns = samplers, columns  # of one seed
        self.first = columns * torch.arange(len(samplers), device=samplers[0].device)

    @property
    def generators(self) -> list[torch.Generator]:
        return [sampler.generator for sampler in self.samplers]

    def draw(self, rows: int, ring: Ring) -> Drawn:
        u = torch.stack([sampler.shares(rows) for sampler in self.samplers], dim=1)  # [2, S, B]
        age = (u[0] * ring.num_stored).long()
        column = (u[1] * self.columns).long() + self.first.unsqueeze(1)
        weight = torch.ones(age.numel(), device=age.device)
        return Drawn(age.flatten(), column.flatten(), weight)

    def apart(self, seed: int) -> MultiSeedUniform:
        own = [sampler.apart(seed) for sampler in self.samplers]  # as each would alone
        return MultiSeedUniform(own, self.columns)

    def appended(self, ring: Ring, td_error: Tensor | None, lines: int = 1) -> None:
        """There are no priorities."""

    def reprioritize(self, ring: Ring, row_id: Tensor, td_error: Tensor | None) -> None:
        """There are no priorities."""

    def trim(self, ring: Ring, updates: int) -> None:
        """The ring forgets by itself."""

    def readable(self, ring: Ring) -> int:
        return ring.stored

    def state_dict(self) -> dict[str, Any]:
        raise NotImplementedError  # each seed has one of its own: `SeedsReplay.state_of`

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise NotImplementedError


class MultiSeedReplay(Replay):
    """Batches are [B, S, ...]: `rows` for each seed. What is saved of a seed is the replay it would have alone."""

    sampler: MultiSeedUniform

    def __init__(
        self, cfg: ReplayConfig, ring: Ring, sampler: MultiSeedUniform, gamma: float, finals: int
    ):
        super().__init__(cfg, ring, sampler, gamma)
        self.own_finals = finals  # room for last observations that a seed alone has
        self.taken: list[Finals] = []

    def state_dict(self) -> dict[str, Any]:
        return {}  # each seed has its own

    def state_of(self, seed: int) -> dict[str, Any]:
        columns = self.sampler.columns
        ring = of_columns(self.ring, seed * columns, columns, self.own_finals)
        return {"ring": ring, "sampler": self.sampler.samplers[seed].state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_of` told of one seed. To be called once for each, in their order; all can be read after
        the last."""
        columns, seed = self.sampler.columns, len(self.taken)
        self.sampler.samplers[seed].load_state_dict(state["sampler"])
        self.taken.append(put_columns(self.ring, seed * columns, columns, state["ring"]))
        if len(self.taken) == len(self.sampler.samplers):
            put_finals(self.ring, self.taken)
            self.taken = []

    def gather(
        self, age: Tensor, column: Tensor, weight: Tensor, held_out: Drawn | None = None
    ) -> Batch:
        assert held_out is None
        seeds = len(self.sampler.samplers)

        def split(x: Tensor) -> Tensor:
            return x.view(seeds, -1, *x.shape[1:]).transpose(0, 1)

        def seen(obs: Obs) -> Obs:
            actor = split(obs.actor)
            critic = actor if obs.critic is obs.actor else split(obs.critic)
            return Obs(actor, critic, None if obs.task is None else split(obs.task))

        flat = super().gather(age, column, weight)
        return Batch(
            obs=seen(flat.obs),
            action=split(flat.action),
            reward=split(flat.reward),
            discount=split(flat.discount),
            next_obs=seen(flat.next_obs),
            weight=split(flat.weight),
            row_id=split(flat.row_id),
        )


def of_seed(batch: Batch, number: int) -> Batch:
    """[B, S, ...] -> [B, ...]: the rows of one seed."""
    own: Batch = tree_map(lambda x: x[:, number] if isinstance(x, Tensor) else x, batch)
    return own
