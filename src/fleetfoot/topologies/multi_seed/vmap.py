"""Several agents that differ in nothing but their seed, as one: weights [S, ...], every loss computed for all at once.

The agent itself knows nothing of it. Its losses are pure functions of weights, batch and noise, so `torch.vmap` runs
them for S sets of weights; what it does besides (optimiser steps, Polyak steps) acts on each number alone. The agents
that were stacked continue to exist: their weights and the state of their optimisers are views of their share of the
stack, so each can be evaluated, saved and reset as if it had learned alone.

A batch has its rows first and the seeds second, [B, S, ...], and so has the noise; a single number is [S].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from fleetfoot.agents.contract import Agent, compiled_methods
from fleetfoot.data import Transition
from fleetfoot.optim import LocalStepper
from fleetfoot.rng import RandomStream
from fleetfoot.topologies.multi_seed.rows import of_each_seed
from fleetfoot.topologies.multi_seed.stepper import StackedStepper


def stack(whole: Agent, agents: Sequence[Agent]) -> Modules:
    """Make `whole`, built like the `agents`, learn for all of them. From here on it takes batches [B, S, ...], and what
    it observes goes to each agent. The agents must not be updated any more, except through it.

    Returns its modules; `vmapped` of them runs its behaviour network for all seeds.
    """
    modules = Modules(whole)
    _stack_weights(modules, [Modules(agent) for agent in agents])
    for name, value in list(vars(whole).items()):
        parts = [getattr(agent, name) for agent in agents]
        if isinstance(value, RandomStream):
            setattr(whole, name, StackedStream(parts))
        elif isinstance(value, LocalStepper):
            setattr(whole, name, StackedStepper(value, parts, modules.vmapped))
    for name in compiled_methods(whole) or ():
        setattr(whole, name, modules.vmapped(getattr(whole, name)))

    def observe(fresh: Transition) -> None:
        for agent, rows in zip(agents, of_each_seed(fresh, len(agents)), strict=True):
            agent.updates = whole.updates  # some reset themselves by it
            agent.observe(rows)

    whole.observe = observe  # type: ignore[method-assign]
    return modules


def _stack_weights(whole: Modules, parts: Sequence[Modules]) -> None:
    for kind in ("named_parameters", "named_buffers"):
        of_parts = [dict(getattr(part, kind)()) for part in parts]
        for name, tensor in getattr(whole, kind)():
            stacked = torch.stack([weights[name].detach() for weights in of_parts])
            for share, weights in zip(stacked, of_parts, strict=True):
                weights[name].data = share
            if kind == "named_parameters":
                tensor.data = stacked  # the same object: optimisers hold it
            else:  # another object: the agent may hold the tensor itself as well, as a constant of its losses
                module, _, leaf = name.rpartition(".")
                whole.get_submodule(module)._buffers[leaf] = stacked


class StackedStream(RandomStream):
    """The noise of each agent, from its own generator: [B, S, ...] where each alone would draw [B, ...]."""

    def __init__(self, parts: Sequence[RandomStream]):
        self.parts, self.device = list(parts), parts[0].device

    @property
    def generators(self) -> list[torch.Generator]:
        return [generator for part in self.parts for generator in part.generators]

    def normal(self, *shape: int) -> Tensor:
        return torch.stack([part.normal(*shape) for part in self.parts], dim=1)

    def uniform(self, *shape: int) -> Tensor:
        return torch.stack([part.uniform(*shape) for part in self.parts], dim=1)


class Modules(nn.Module):
    """All modules of an agent, as one."""

    def __init__(self, agent: Agent):
        super().__init__()
        for name, value in vars(agent).items():
            if isinstance(value, nn.Module):
                self.add_module(name, value)

    def forward(self, function: Callable[..., Any], *args: Any) -> Any:
        return function(*args)

    def vmapped(self, function: Callable[..., Any], seeds_at: int = 1) -> Callable[..., Any]:
        """`function` of weights that these modules hold, for all seeds at once. The dimension `seeds_at` of its tensors
        and results counts the seeds; where they have only one, that one does."""

        def dim_of_seeds(x: Tensor) -> int:
            return min(seeds_at, x.dim() - 1)

        def of_all_seeds(*args: Any) -> Any:
            weights = dict(self.named_parameters()) | dict(self.named_buffers())
            leaves, tree = tree_flatten(args)
            dims = (dim_of_seeds(leaf) if isinstance(leaf, Tensor) else None for leaf in leaves)

            def of_one_seed(weights: dict[str, Tensor], *leaves: Any) -> Any:
                # A module that others hold too has one set of weights: they are put in once, under its first name.
                args = (function, *tree_unflatten(leaves, tree))
                result = functional_call(self, weights, args, tie_weights=False)
                return () if result is None else result  # `torch.vmap` takes no None

            results = torch.vmap(of_one_seed, in_dims=(0, *dims))(weights, *leaves)
            return tree_map(lambda x: x.movedim(0, dim_of_seeds(x)), results)

        return of_all_seeds
