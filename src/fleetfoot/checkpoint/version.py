"""The version of what is written to disk, for checkpoints and recipes alike.

| format | written by | change |
| --- | --- | --- |
| 1 | 0.1.0 before its release | |
| 2 | 0.1.0 | recipe.json and spec.json have a header with a digest; the version of the library is stored |

A format that changes what a recipe means gets a function in `MIGRATIONS`. One that can no longer be migrated leaves
`MIGRATIONS`, and `LAST_READER` names the last version of the library that reads it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from fleetfoot.errors import UserError

Json: TypeAlias = Any

VERSION = 2
# From each older format to the next: what becomes of a recipe.
MIGRATIONS: dict[int, Callable[[Json], Json]] = {1: lambda recipe: recipe}
LAST_READER: dict[int, str] = {}


def migrated(recipe: Json, version: Any, path: Path) -> Json:
    """The recipe as this version would have written it. UserError where `path` cannot be understood."""
    if type(version) is not int or version < 1:
        raise UserError(f"{path} has no valid format version")
    if version > VERSION:
        raise UserError(
            f"{path} has format {version}, this fleetfoot reads up to {VERSION}: "
            "it was written by a newer version, which can read it"
        )
    for old in range(version, VERSION):
        if old not in MIGRATIONS:
            reader = LAST_READER[old]
            raise UserError(
                f"{path} has format {version}, which this fleetfoot no longer reads: "
                f"fleetfoot {reader} is the last that does"
            )
        recipe = MIGRATIONS[old](recipe)
    return recipe


def library() -> str:
    return str(sys.modules["fleetfoot"].__version__)
