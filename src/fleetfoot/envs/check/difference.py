"""Where observations and steps of two environments part, and copies of them to compare with later."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from fleetfoot.data import Obs, Step


def fields(value: Obs | Step) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a bundle by name; not `info`, which may hold wall-clock times."""
    for name, field in zip(value._fields, value, strict=True):
        if isinstance(field, Obs):
            yield from ((f"{name}.{inner}", tensor) for inner, tensor in fields(field))
        elif isinstance(field, Tensor):
            yield name, field


def difference(actual: Obs | Step, wanted: Obs | Step, rows: int) -> str | None:
    """Where the first `rows` environments of both part, or None where they are equal."""
    for (name, one), (_, other) in zip(fields(actual), fields(wanted), strict=True):
        unequal = (one[:rows] != other[:rows]).flatten(1 if one.dim() > 1 else 0)
        unequal = unequal.any(1) if unequal.dim() > 1 else unequal
        if bool(unequal.any()):
            return f"{name} differs in environments {which(unequal)}"
    return None


def changed(one: Obs, other: Obs) -> Tensor:
    """[N] bool: where anything the actor or the critic sees is different."""
    actor = (one.actor != other.actor).flatten(1).any(1)
    return actor | (one.critic != other.critic).flatten(1).any(1)


def which(flags: Tensor) -> list[int]:
    """The environments whose flag is set."""
    return [i for i, flag in enumerate(flags.tolist()) if flag]


def clone(value: Any, copies: dict[int, Tensor]) -> Any:
    """A deep copy in which one tensor under two names (obs.actor, obs.critic) is copied once."""
    if isinstance(value, Tensor):
        if id(value) not in copies:
            copies[id(value)] = value.clone()
        return copies[id(value)]
    if isinstance(value, Obs | Step):
        return type(value)(*(clone(field, copies) for field in value))
    return value


def equal(one: Any, other: Any) -> bool:
    """Are two saved states the same, tensor by tensor?"""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(equal, one, other))
    return torch.equal(one, other) if isinstance(one, Tensor) else bool(one == other)
