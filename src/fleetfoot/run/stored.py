"""recipe.json, spec.json and fit.json: JSON tables with a header that says who wrote them, and a digest.

They are meant to be read by people, and to be changed through the command line only: a byte that was flipped would
otherwise change what is trained, in silence.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

from fleetfoot.checkpoint.version import VERSION, check_version, library
from fleetfoot.errors import UserError
from fleetfoot.files import read_json, write_text

HEADER = ("format", "version", "fleetfoot", "digest")


def write_stored(path: Path, kind: str, body: dict[str, Any]) -> None:
    head = {"format": f"fleetfoot {kind}", "version": VERSION, "fleetfoot": library()}
    digest = _digest(head | body)
    write_text(path, json.dumps(head | {"digest": digest} | body, indent=2) + "\n")


def read_stored(path: Path, kind: str) -> dict[str, Any]:
    """The table without its header. UserError where it is damaged, or of a format that is not understood."""
    table = read_json(path)
    if not isinstance(table, dict):
        raise UserError(f"{path} is not a {kind}")
    head = {name: table.get(name) for name in HEADER}
    body = {name: value for name, value in table.items() if name not in HEADER}
    digest = head.pop("digest")
    if head["format"] != f"fleetfoot {kind}":
        raise UserError(f"{path} is not a {kind}")
    check_version(head["version"], path)
    if digest != _digest(head | body):
        raise UserError(
            f"{path} was damaged or edited: its content does not match its digest. Changes belong on the command line"
        )
    return body


def _digest(table: dict[str, Any]) -> str:
    text = json.dumps(table, sort_keys=True).encode()
    return hashlib.blake2b(text, digest_size=16).hexdigest()


def from_stranger(value: Any) -> Any:
    """A recipe that was read from disk, without what only the command line may say.

    A part that names something to execute or to connect to has a method `when_stored`, which returns the part that may
    be used instead, or raises a UserError.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        checked = {name: from_stranger(field) for name, field in fields.items()}
        if any(checked[name] is not field for name, field in fields.items()):
            value = dataclasses.replace(value, **checked)
        return value.when_stored() if hasattr(value, "when_stored") else value
    if isinstance(value, tuple):
        found = tuple(from_stranger(one) for one in value)
        return value if all(a is b for a, b in zip(found, value, strict=True)) else found
    return value
