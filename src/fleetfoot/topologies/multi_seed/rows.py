"""Rows of several seeds: [S N, ...] where environments and replay see them, one seed after the other; [S, N, ...] where
networks do."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from fleetfoot.data import Obs, Transition

PER_ROW = ("action", "reward", "terminated", "truncated")


def map_obs(obs: Obs, change: Callable[[Tensor], Tensor]) -> Obs:
    """`change` of every tensor. What actor and critic share stays shared."""
    actor = change(obs.actor)
    critic = actor if obs.critic is obs.actor else change(obs.critic)
    return Obs(actor, critic, None if obs.task is None else change(obs.task))


def by_seed(x: Tensor, seeds: int) -> Tensor:
    """[S N, ...] -> [S, N, ...]."""
    return x.view(seeds, -1, *x.shape[1:])


def of_each_seed(fresh: Transition, seeds: int) -> list[Transition]:
    """A vec step of all seeds, taken apart. What is for the log alone is left out."""

    def rows_of(seed: int) -> Transition:
        def rows(x: Tensor) -> Tensor:
            return by_seed(x, seeds)[seed]

        obs, next_obs = map_obs(fresh.obs, rows), map_obs(fresh.next_obs, rows)
        others = {name: rows(getattr(fresh, name)) for name in PER_ROW}
        return Transition(obs=obs, next_obs=next_obs, info={}, **others)

    return [rows_of(seed) for seed in range(seeds)]
