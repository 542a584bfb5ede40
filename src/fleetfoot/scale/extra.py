"""The packages of the extra `scale`, imported where they are needed."""

from __future__ import annotations

import importlib
from typing import Any

from fleetfoot.errors import UserError
from fleetfoot.extras import install_line


def scipy_optimize() -> Any:
    return _load("scipy.optimize")


def sklearn_isotonic() -> Any:
    return _load("sklearn.isotonic")


def sklearn_linear() -> Any:
    return _load("sklearn.linear_model")


def pyplot() -> Any:
    _load("matplotlib").use("Agg")
    return _load("matplotlib.pyplot")


def ticker() -> Any:
    return _load("matplotlib.ticker")


def check() -> None:
    """UserError, before anything is read, where one is missing."""
    for load in (scipy_optimize, sklearn_isotonic, pyplot):
        load()


def _load(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = {"sklearn": "scikit-learn"}.get(name.split(".")[0], name.split(".")[0])
        raise UserError(f"fitting laws needs {package}: {install_line('scale')}") from error
