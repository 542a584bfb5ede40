"""Several agents that differ in nothing but their seed, as one: weights [S, ...], every loss computed for all at once.

The agent itself knows nothing of it. Its losses are pure functions of weights, batch and noise, so `torch.vmap` runs
them for S sets of weights; what it does besides (optimiser steps, Polyak steps) acts on each number alone. The agents
that were put together go on to exist: their weights and the state of their optimisers are views of their share of the
stack, so each can be evaluated, saved and reset as if it had learned alone.

A batch has its rows first and the seeds second, [B, S, ...], and so has the noise; a single number is [S].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from fleetfoot.agents.contract import Agent, compiled_methods
from fleetfoot.data import Obs
from fleetfoot.errors import UserError
from fleetfoot.optim import LocalStepper
from fleetfoot.rng import RandomStream


def stack(whole: Agent, agents: Sequence[Agent]) -> Agent:
    """Make `whole`, built like the `agents`, learn for all of them: from here on it takes batches [B, S, ...], and its
    `behaviour` observations [S, N, ...]. The agents must not be updated any more, except through it."""
    held = _Held(whole)
    for weights in ("named_parameters", "named_buffers"):
        theirs = [dict(getattr(_Held(agent), weights)()) for agent in agents]
        for name, tensor in getattr(held, weights)():
            tensor.data = torch.stack([each[name].detach() for each in theirs])
            for mine, each in zip(tensor.data, theirs, strict=True):
                each[name].data = mine
    for name, value in list(vars(whole).items()):
        others = [getattr(agent, name) for agent in agents]
        if isinstance(value, RandomStream):
            setattr(whole, name, StackedStream(others))
        elif isinstance(value, LocalStepper):
            _share(value, others)
            value.constrain_ = held.of_all(partial(_nothing_back, value.constrain_))
        elif isinstance(value, torch.Generator):
            raise UserError(
                f"{type(whole).__name__} cannot train several seeds as one, because it draws its noise by itself; "
                "leave out --seeds and train them one after the other."
            )
    for name in compiled_methods(whole) or ():
        setattr(whole, name, held.of_all(getattr(whole, name)))
    whole.behaviour = _Together(held, whole.behaviour)  # type: ignore[misc]
    return whole


def _nothing_back(function: Callable[[], None]) -> tuple[()]:
    function()
    return ()  # what `torch.vmap` takes for nothing


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


class _Held(nn.Module):
    """All modules of an agent, as one."""

    def __init__(self, agent: Agent):
        super().__init__()
        for name, value in vars(agent).items():
            if isinstance(value, nn.Parameter):
                raise UserError(
                    f"{type(agent).__name__} cannot train several seeds as one, because its {name} is in no module."
                )
            if isinstance(value, nn.Module):
                self.add_module(name, value)

    def forward(self, function: Callable[..., Any], *args: Any) -> Any:
        return function(*args)

    def of_all(self, function: Callable[..., Any], seeds_at: int = 1) -> Callable[..., Any]:
        """`function` of weights that these modules hold, for all seeds at once. Of its tensors and results, which
        dimension is the seeds'? `seeds_at`, or the only one."""

        def together(*args: Any) -> Any:
            weights = dict(self.named_parameters()) | dict(self.named_buffers())
            leaves, tree = tree_flatten(args)
            dims = tuple(
                min(seeds_at, leaf.dim() - 1) if isinstance(leaf, Tensor) else None
                for leaf in leaves
            )

            def alone(own: dict[str, Tensor], *rest: Any) -> Any:
                # A module that others hold too has one set of weights: they are put in once, under its first name.
                args = (function, *tree_unflatten(rest, tree))
                return functional_call(self, own, args, tie_weights=False)

            found = torch.vmap(alone, in_dims=(0, *dims))(weights, *leaves)
            return tree_map(lambda x: x.movedim(0, min(seeds_at, x.dim() - 1)), found)

        return together


class _Together(nn.Module):
    """A network for all seeds: every tensor in and out is [S, N, ...]."""

    def __init__(self, held: _Held, network: nn.Module):
        super().__init__()
        self.run = held.of_all(network.forward, seeds_at=0)

    def forward(self, obs: Obs, noise: Tensor) -> Tensor:
        out: Tensor = self.run(obs, noise)
        return out


def _share(whole: LocalStepper, parts: Sequence[LocalStepper]) -> None:
    """Each part's optimiser state becomes its share of the whole's. All have made, and make, their steps together."""
    whole.seeds = len(parts)
    whole.begin_()
    whole.steps.copy_(parts[0].steps)
    whole.lr.copy_(parts[0].lr)
    for part in parts:
        part.steps, part.lr = whole.steps, whole.lr
        part.begin_()
    for at, mine in enumerate(whole.parameters):
        state = whole.optimizer.state[mine]
        owns = [part.optimizer.state[part.parameters[at]] for part in parts]
        for name in state:
            if name == "step":  # the same for all
                state[name].copy_(owns[0][name])
                shares = [state[name]] * len(parts)
            else:
                state[name] = torch.stack([own[name] for own in owns])
                shares = list(state[name])
            for own, share in zip(owns, shares, strict=True):
                own[name] = share
