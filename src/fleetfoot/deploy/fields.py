"""Fields of a JSON file that may come from a stranger: each of the right kind, or one line; and arrays in it."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fleetfoot.errors import UserError

DTYPES = {"float32": np.float32, "uint8": np.uint8, "int64": np.int64}

Array: TypeAlias = NDArray[Any]


class Reader:
    """Takes fields out of a JSON object; whatever is missing or of another kind is one line."""

    def __init__(self, tree: dict[str, Any], name: str, inside: str = "") -> None:
        self.tree, self.name, self.inside = tree, name, inside

    def value(self, key: str, kind: Any) -> Any:
        if key not in self.tree:
            raise UserError(f"{self.name} has no field {self.inside + key!r}.")
        found = self.tree[key]
        if not isinstance(found, kind) or (isinstance(found, bool) and kind not in (bool, object)):
            raise UserError(f"{self.name} has a field {self.inside + key!r} of the wrong kind.")
        return found

    def text(self, key: str) -> str:
        return str(self.value(key, str))

    def number(self, key: str, kind: Any, *, optional: bool = False) -> Any:
        if optional and key in self.tree and self.tree[key] is None:
            return None
        found = self.value(key, (int, float) if kind is float else int)
        if abs(found) > 1e15:
            raise UserError(f"{self.name} has a field {self.inside + key!r} of the wrong kind.")
        return kind(found)

    def numbers(self, key: str, kind: Any) -> list[Any]:
        return self.list_of(key, (int, float) if kind is float else int)

    def list_of(self, key: str, kind: Any) -> list[Any]:
        found = self.value(key, list)
        if not all(isinstance(one, kind) and not isinstance(one, bool) for one in found):
            raise UserError(f"{self.name} has a field {self.inside + key!r} of the wrong kind.")
        return list(found)

    def choice(self, key: str, options: Sequence[str]) -> str:
        found = self.text(key)
        if found not in options:
            raise UserError(f"{self.name} has {self.inside + key!r} = {found!r}, which is unknown.")
        return found

    def table(self, key: str) -> Reader:
        return Reader(self.value(key, dict), self.name, f"{self.inside}{key}.")

    def tables(self, key: str) -> list[Reader]:
        rows = self.list_of(key, dict)
        return [Reader(row, self.name, f"{self.inside}{key}.{i}.") for i, row in enumerate(rows)]


def encode(array: Array) -> dict[str, Any]:
    """An array as JSON: numbers where a person may read them, base64 for images."""
    head = {"dtype": str(array.dtype), "shape": list(array.shape)}
    if array.dtype == np.uint8:
        return head | {"base64": base64.b64encode(array.tobytes()).decode()}
    return head | {"numbers": array.reshape(-1).tolist()}


def decode(tree: dict[str, Any], name: str) -> Array:
    match tree:
        case {"dtype": str(kind), "shape": list(shape), **rest} if kind in DTYPES:
            dtype = DTYPES[kind]
        case _:
            raise UserError(f"{name} has recorded arrays without a kind and a shape.")
    try:
        if "base64" in rest:
            flat = np.frombuffer(base64.b64decode(rest["base64"], validate=True), dtype)
        else:
            flat = np.array(rest["numbers"], dtype)
        array: Array = flat.reshape(shape)
    except (KeyError, ValueError, TypeError, OverflowError, binascii.Error):
        raise UserError(f"{name} has recorded arrays that cannot be read.") from None
    if not np.isfinite(array).all():
        raise UserError(f"{name} has recorded arrays with numbers that are not finite.")
    return array
