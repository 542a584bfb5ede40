"""Networks that take part in a loss without being trained by it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def frozen(module: nn.Module) -> Iterator[None]:
    """Gradients flow through `module` but not into its weights: they are not even computed."""
    parameters = list(module.parameters())
    for parameter in parameters:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in parameters:
            parameter.requires_grad_(True)
