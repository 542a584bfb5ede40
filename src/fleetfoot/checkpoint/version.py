"""The version of what is written to disk, for checkpoints and recipes alike: 2, that of 0.2.0."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from fleetfoot.errors import UserError

VERSION = 2


def check_version(version: Any, path: Path) -> None:
    """UserError where `path` cannot be understood."""
    if type(version) is not int or version != VERSION:
        newer = type(version) is int and version > VERSION
        why = ": it was written by a newer version, which can read it" if newer else ""
        raise UserError(f"{path} has format {version!r:.20}, this fleetfoot reads {VERSION}{why}")


def library() -> str:
    return str(sys.modules["fleetfoot"].__version__)
