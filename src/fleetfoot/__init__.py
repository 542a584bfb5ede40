"""fleetfoot: train robots with massively parallel off-policy reinforcement learning.

from dataclasses import replace
from fleetfoot import recipes, train

result = train(replace(recipes.get("fast_td3/halfcheetah"), seed=3))

`fleetfoot.api` has all that a program may call.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

# `part` the decorator; the module of the same name stays reachable as `from fleetfoot.config import ...`.
from fleetfoot.config import part
from fleetfoot.errors import UserError

# OpenMP threads that wait for each other spin for a while before they sleep. With the default of libgomp (far longer
# than any of our products) a second busy process on the same cores makes training many times slower. This must be
# set before torch is loaded; whoever has set it already is left alone.
os.environ.setdefault("GOMP_SPINCOUNT", "2000")

if TYPE_CHECKING:
    from fleetfoot import recipes
    from fleetfoot.api import evaluate_run, load_policy, record_run, resume, train
    from fleetfoot.export import export_run
    from fleetfoot.recipe import Recipe, Result

__version__ = "0.2.0"

__all__ = [
    "Recipe",
    "Result",
    "UserError",
    "__version__",
    "evaluate_run",
    "export_run",
    "load_policy",
    "part",
    "recipes",
    "record_run",
    "resume",
    "train",
]

_HOME = {
    "Recipe": "fleetfoot.recipe",
    "Result": "fleetfoot.recipe",
    "evaluate_run": "fleetfoot.api",
    "export_run": "fleetfoot.export",
    "load_policy": "fleetfoot.api",
    "record_run": "fleetfoot.api",
    "resume": "fleetfoot.api",
    "train": "fleetfoot.api",
}


def __getattr__(name: str) -> Any:
    """Import on first use: `fleetfoot --help` must not wait for torch."""
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    if name == "recipes":
        return importlib.import_module("fleetfoot.recipes")
    raise AttributeError(f"module 'fleetfoot' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
