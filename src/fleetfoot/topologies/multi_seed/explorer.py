"""The explorers of several seeds: each draws and chooses for its own environments, the network runs once for all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fleetfoot.data import Continuous, EnvSpec, Obs
from fleetfoot.explore import ClipsLate, Explorer
from fleetfoot.topologies.multi_seed.rows import by_seed, map_obs


class MultiSeedExplorer:
    """The explorers of all seeds, with one call of the network."""

    def __init__(self, explorers: Sequence[Explorer], behaviour: Callable[..., Tensor]):
        """`behaviour`: the network of all seeds, from observations (and noise) [S, N, ...] to what each explorer
        reads."""
        self.explorers: Sequence[Any] = explorers  # they act in two halves: see `check_parts`
        self.behaviour = behaviour
        self.takes_noise = explorers[0].takes_noise

    @torch.no_grad()
    def act(self, behaviour: nn.Module, obs: Obs) -> Tensor:
        """`behaviour` is the network with the weights of all seeds, which only `self.behaviour` can run."""
        seeds = len(self.explorers)
        inputs = [explorer.ask() for explorer in self.explorers]  # each of them: they count
        outputs: Sequence[Tensor | None] = [None] * seeds
        if (first := inputs[0]) is not None:
            noise = [
                torch.stack([asked[at] for asked in inputs if asked]) for at in range(len(first))
            ]
            outputs = self.behaviour(map_obs(obs, lambda x: by_seed(x, seeds)), *noise).unbind()
        choices = zip(self.explorers, outputs, strict=True)
        return torch.cat([explorer.choose(output) for explorer, output in choices])

    def executed(self, action: Tensor) -> Tensor:
        """The explorers are alike, and clip without random numbers."""
        first = self.explorers[0]
        return first.executed(action) if isinstance(first, ClipsLate) else action

    @torch.no_grad()
    def warm_up(self, obs: Obs, spec: EnvSpec) -> None:
        """Run the network once, so that it is compiled when it counts."""
        seeds = len(self.explorers)
        apart = map_obs(obs, lambda x: by_seed(x, seeds))
        noise = []
        if self.takes_noise:
            action = spec.action
            size = action.size if isinstance(action, Continuous) else action.count
            shape = seeds, spec.num_envs // seeds, size
            noise = [torch.zeros(shape, device=obs.actor.device)]
        self.behaviour(apart, *noise)

    def restart(self, ended: Tensor) -> None:
        for explorer, rows in zip(self.explorers, by_seed(ended, len(self.explorers)), strict=True):
            explorer.restart(rows)
