"""Skips a file of tests whose packages are not installed, without importing them.

`pytest.importorskip` imports what it asks for, in every process that collects the tests. Packages such as JAX take
seconds, and most processes run no test that needs them.
"""

from __future__ import annotations

from importlib.util import find_spec

import pytest


def needs(*packages: str) -> None:
    """At the top of a file."""
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}", allow_module_level=True)
