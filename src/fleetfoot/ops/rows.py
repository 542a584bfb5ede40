"""Rows of a rollout: [T, N, ...] as [T N, ...], and some of them."""

from __future__ import annotations

from torch import Tensor

from fleetfoot.data import Obs


def flat(obs: Obs) -> Obs:
    """[T, N, ...] -> [T N, ...]. What actor and critic share stays shared."""
    actor = obs.actor.flatten(0, 1)
    critic = actor if obs.critic is obs.actor else obs.critic.flatten(0, 1)
    return Obs(actor, critic, None if obs.task is None else obs.task.flatten())


def rows_of(obs: Obs, index: Tensor) -> Obs:
    """The rows `index` [B] of observations [T, N, ...]."""
    rows = flat(obs)
    actor = rows.actor[index]
    critic = actor if rows.critic is rows.actor else rows.critic[index]
    return Obs(actor, critic, None if rows.task is None else rows.task[index])
