"""Around the loading of what is stored: whatever does not fit becomes one line."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from fleetfoot.checkpoint import pack
from fleetfoot.data import EnvSpec
from fleetfoot.errors import Notice, UserError, one_line


@contextmanager
def _in_one_line(what: str) -> Iterator[None]:
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # whoever made what is stored may have written anything
        raise UserError(f"{what}: {one_line(error)}") from error


def fitting() -> AbstractContextManager[None]:
    """Around the loading of a checkpoint: UserError where it does not fit the recipe."""
    return _in_one_line("the checkpoint does not fit this recipe")


def buildable() -> AbstractContextManager[None]:
    """Around the building of what a stored recipe names: UserError where that is impossible, for whatever reason."""
    return _in_one_line("the stored recipe cannot be built")


def check_finite(state: Any) -> None:
    """UserError where a tensor of this tree is NaN or infinite."""
    for name, tensor in pack(state)[0].items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise UserError(f"{name} is NaN or infinite")


def check_same_task(spec: EnvSpec, trained: EnvSpec) -> None:
    """UserError where an environment is not one for a policy that was trained in another, as far as both tell."""
    for what, one, other in (
        ("observations", spec.obs_shape, trained.obs_shape),
        ("the type of observations", spec.obs_dtype, trained.obs_dtype),
        ("actions", spec.action, trained.action),
        ("tasks", spec.tasks, trained.tasks),
        ("the order of observations", *_told(spec, trained, "observation")),
        ("joints", *_told(spec, trained, "joints")),
        ("the order of actions", *_told(spec, trained, "action")),
    ):
        if one != other:
            raise UserError(
                f"this policy was trained for {trained.name}, and {spec.name} differs in {what}: "
                f"{_difference(one, other)}."
            )
    known = all("observation" in one.description for one in (spec, trained))
    if not known and spec.name != trained.name:
        warnings.warn(
            f"{spec.name} has observations and actions of the same sizes as {trained.name}, for which this policy was "
            "trained; nothing says whether they also mean the same.",
            Notice,
            stacklevel=3,
        )


def _told(one: EnvSpec, other: EnvSpec, key: str) -> tuple[list[str], list[str]]:
    """The names in both descriptions; nothing where one of them has none, or something else."""
    here, there = (_names(spec.description.get(key)) for spec in (one, other))
    return (here, there) if here and there else ([], [])


def _names(told: Any) -> list[str]:
    """Descriptions are of whoever wrote the environment, or the file: anything may be there."""
    if isinstance(told, dict):
        told = told.get("names")
    if not isinstance(told, list):
        return []
    names = [part.get("name") if isinstance(part, dict) else part for part in told]
    return [str(name) for name in names] if all(isinstance(name, str) for name in names) else []


def _difference(one: Any, other: Any) -> str:
    """Of long lists, the first entries that differ."""
    if isinstance(one, (list, tuple)) and len(one) == len(other) and len(one) > 1:
        at = next(i for i, pair in enumerate(zip(one, other, strict=True)) if pair[0] != pair[1])
        return f"number {at + 1} is {one[at]!s:.60}, not {other[at]!s:.60}"
    if isinstance(one, (list, tuple)) and max(len(one), len(other)) > 3:
        return f"{len(one)} of them, not {len(other)}"
    return f"{one}, not {other}"
