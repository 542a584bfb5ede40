"""Around the loading of what is stored: whatever does not fit becomes one line."""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from fleetfoot.checkpoint import pack
from fleetfoot.data import EnvSpec
from fleetfoot.errors import Notice, UserError, one_line


@contextmanager
def fitting() -> Iterator[None]:
    """Around the loading of a checkpoint: UserError where it does not fit the recipe."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # whoever made it may have written anything
        raise UserError(f"the checkpoint does not fit this recipe: {one_line(error)}") from error


@contextmanager
def buildable() -> Iterator[None]:
    """Around the building of what a stored recipe names: UserError where that is impossible, for whatever reason."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"the stored recipe cannot be built: {one_line(error)}") from error


def check_finite(state: Any) -> None:
    """UserError where a tensor of this tree is NaN or infinite."""
    for name, tensor in pack(state)[0].items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise UserError(f"{name} is NaN or infinite")


def check_fits(spec: EnvSpec, trained: EnvSpec | None) -> None:
    """UserError where an environment is not one for a policy that was trained in another, as far as both tell."""
    if trained is None:
        raise UserError(
            "this run has no spec.json, so nothing says whether its policy fits another environment."
        )
    for what, one, other in (
        ("observations", spec.obs_shape, trained.obs_shape),
        ("the type of observations", spec.obs_dtype, trained.obs_dtype),
        ("actions", spec.action, trained.action),
        ("tasks", spec.tasks, trained.tasks),
        ("the order of observations", *_told(spec, trained, "observation")),
        ("joints", *_told(spec, trained, "joints")),
    ):
        if one != other:
            here, there = (textwrap.shorten(str(value), 80) for value in (one, other))
            raise UserError(
                f"this policy was trained for {trained.name}, and {spec.name} differs in {what}: {here}, not {there}."
            )
    known = all("observation" in one.description for one in (spec, trained))
    if not known and spec.name != trained.name:
        warnings.warn(
            f"{spec.name} has observations and actions of the same sizes as {trained.name}, for which this policy was "
            "trained; nothing says whether they also mean the same.",
            Notice,
            stacklevel=3,
        )


def _told(one: EnvSpec, other: EnvSpec, key: str) -> tuple[list[Any], list[Any]]:
    """The names and sizes in both descriptions; nothing where one of them has none."""
    specs = (one, other)
    if not all(key in spec.description for spec in specs):
        return [], []
    here, there = (
        [(part["name"], part.get("size", 1)) for part in spec.description[key]] for spec in specs
    )
    return here, there
