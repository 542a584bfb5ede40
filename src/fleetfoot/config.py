"""Parts: the frozen dataclasses a recipe is made of, and their way to JSON and back.

A part's class is found by its name in a table that only `@part` fills. Reading a recipe from disk therefore never
imports anything the file names: a class must have been imported by the program that reads it.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import math
import types
import typing
from collections.abc import Iterator
from typing import Any, Literal, TypeVar, dataclass_transform

from fleetfoot.errors import UserError, nearest

T = TypeVar("T")

PARTS: dict[str, type] = {}
MOST_FLOAT, MOST_INT = 3.4e38, 2**63  # what tensors of float32 and int64 can hold


@dataclass_transform(frozen_default=True, kw_only_default=True)
def part(cls: type[T]) -> type[T]:
    """Make `cls` a frozen, keyword-only dataclass that recipes can hold and JSON can carry."""
    own_check = cls.__dict__.get("__post_init__")

    def check(self: Any) -> None:
        check_types(self)
        if own_check is not None:
            own_check(self)

    cls.__post_init__ = check  # type: ignore[attr-defined]
    made = dataclasses.dataclass(frozen=True, kw_only=True)(cls)
    known = PARTS.setdefault(cls.__name__, made)
    if (known.__module__, known.__qualname__) != (made.__module__, made.__qualname__):
        raise TypeError(
            f"two parts are named {cls.__name__}: {known.__module__} and {made.__module__}"
        )
    PARTS[cls.__name__] = made
    return made


def check_types(value: Any) -> None:
    """Refuse NaN, and numbers, texts and choices of the wrong kind, which Python itself would take silently."""
    hints = _hints(typing.cast(typing.Hashable, type(value)))
    for field in dataclasses.fields(value):
        given, wanted = getattr(value, field.name), hints[field.name]
        if not _fits(given, wanted):
            options = typing.get_args(wanted)
            known = ", ".join(map(str, options)) if typing.get_origin(wanted) is Literal else wanted
            kind = getattr(known, "__name__", known)
            if isinstance(given, float) and math.isnan(given):
                kind = "a number"
            raise UserError(
                f"{type(value).__name__}.{field.name} cannot be {given!r:.200}; it must be {kind}."
            )


def at_least(part: Any, path: str, **least: float) -> None:
    """UserError where a number of `part` is below its least value, or infinite. None: it is not given."""
    for name, bound in least.items():
        value = getattr(part, name)
        if value is not None and not bound <= value < math.inf:
            raise UserError(f"{path}.{name} must be at least {bound}, not {value}.")


@functools.cache
def _hints(cls: Any) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _fits(given: Any, wanted: Any) -> bool:
    origin = typing.get_origin(wanted)
    if origin is Literal:
        return given in typing.get_args(wanted)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(given, one) for one in typing.get_args(wanted))
    if wanted is type(None):
        return given is None
    if wanted is float:
        number = isinstance(given, (int, float)) and not isinstance(given, bool)
        return number and (abs(given) < MOST_FLOAT or abs(given) == math.inf)
    if wanted is int:
        whole = isinstance(given, int) and not isinstance(given, bool)
        return whole and -MOST_INT <= given < MOST_INT
    if origin is tuple:
        return _fits_tuple(given, typing.get_args(wanted))
    if origin is dict:
        return isinstance(given, dict) and all(isinstance(key, str) for key in given)
    if isinstance(wanted, type):
        if getattr(wanted, "_is_protocol", False):
            return implements(typing.cast(typing.Hashable, type(given)), wanted)
        return isinstance(given, wanted)
    return True


def _fits_tuple(given: Any, wanted: tuple[Any, ...]) -> bool:
    if not isinstance(given, (tuple, list)):
        return False
    if len(wanted) == 2 and wanted[1] is Ellipsis:
        return all(_fits(one, wanted[0]) for one in given)
    return len(given) == len(wanted) and all(map(_fits, given, wanted))


@functools.cache
def implements(cls: Any, protocol: Any) -> bool:
    """Has a class all methods of a protocol, and can they be called with the same arguments?"""
    for name, method in vars(protocol).items():
        if name.startswith("_") or not inspect.isfunction(method):
            continue
        own = getattr(cls, name, None)
        if not callable(own):
            return False
        given = inspect.signature(method).parameters.values()
        plain = [p for p in given if p.kind is not p.KEYWORD_ONLY]
        named = {p.name: p for p in given if p.kind is p.KEYWORD_ONLY}
        try:
            inspect.signature(own).bind(*plain, **named)
        except TypeError:
            return False
    return True


def to_json(value: Any) -> Any:
    """A tree of dictionaries, lists, strings and numbers that `from_json` turns back into the same value."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"part": type(value).__name__, **fields}
    if isinstance(value, dict):
        return {str(k): to_json(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(v) for v in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(
        f"{value!r} cannot be written to JSON; parts hold numbers, strings, tuples, dicts and parts"
    )


def from_json(tree: Any) -> Any:
    """The inverse of `to_json`. Lists become tuples, since parts are frozen."""
    if isinstance(tree, dict) and "part" in tree:
        name = str(tree["part"])
        if name not in PARTS:
            raise UserError(
                f"this recipe has a part named {name!r} that is not loaded. If it is your own, import the module "
                f"that defines it first (command line: --import MODULE).{nearest(name, PARTS)}"
            )
        cls = PARTS[name]
        known = {f.name for f in dataclasses.fields(cls)}
        given = {k: from_json(v) for k, v in tree.items() if k != "part"}
        if unknown := sorted(set(given) - known):
            raise UserError(f"{name} has no field {unknown[0]!r}.{nearest(unknown[0], known)}")
        return cls(**given)
    if isinstance(tree, dict):
        return {k: from_json(v) for k, v in tree.items()}
    if isinstance(tree, list):
        return tuple(from_json(v) for v in tree)
    return tree


def flat_fields(tree: dict[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Every field of a part in JSON, by its dotted name. The value of a part is its class; its fields follow."""
    for key, value in tree.items():
        if key == "part":
            continue
        if isinstance(value, dict) and "part" in value:
            yield f"{path}{key}", value["part"]
            yield from flat_fields(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value


def shown(value: Any) -> str:
    """A value of a field on one line. 1 and 1.0, which are the same to a part, look the same."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        value = int(value)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(shown, value))}]"
    return value if isinstance(value, str) else "none" if value is None else json.dumps(value)


def dumps(value: Any) -> str:
    return json.dumps(to_json(value), indent=2) + "\n"
