"""Around the loading of what is stored: whatever does not fit becomes one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from fleetfoot.checkpoint import pack
from fleetfoot.errors import UserError, one_line


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
