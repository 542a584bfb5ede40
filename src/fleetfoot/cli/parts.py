"""Whole parts replaced by the names of their classes: `--explorer AsSampledConfig`."""

from __future__ import annotations

import dataclasses
import inspect
import re
import types
import typing
from collections.abc import Iterable, Iterator
from typing import Any

import tyro

from fleetfoot.config import PARTS
from fleetfoot.errors import UserError


def swap_parts(value: Any, args: list[str]) -> tuple[Any, list[str]]:
    """Apply the arguments that replace a whole part; returns the remaining ones.

    They are applied first, wherever they stand: the other flags may be fields of the new part.
    """
    left: list[str] = []
    words = iter(args)
    for word in words:
        flag, equals, given = word.partition("=")
        path = flag[2:].replace("-", "_") if flag.startswith("--") else ""
        hint = dict(_holders(value)).get(path)
        if hint is None:
            left.append(word)
        else:
            name = given if equals else next(words, "")
            value = _put(value, path.split("."), _new_part(flag, name, hint))
    return value, left


def is_part(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def may_be_part(hint: Any) -> bool:
    """Could a field with this annotation hold a part?"""
    return any(dataclasses.is_dataclass(one) or _is_protocol(one) for one in _choices(hint))


def fitting(hint: Any) -> dict[str, type]:
    """The parts, by name, that can stand in a field with this annotation."""
    return {
        name: cls
        for name, cls in PARTS.items()
        if any(_fits(cls, one) for one in _choices(hint) if one is not type(None))
    }


def _new_part(flag: str, name: str, hint: Any) -> Any:
    if name.lower() == "none" and type(None) in _choices(hint):
        return None
    known = fitting(hint)
    if name not in known:
        choices = ", ".join(sorted(known)) or "nothing else"
        why = "" if name not in PARTS else f" ({_shortcoming(PARTS[name], hint)})"
        own = "" if name in PARTS else " Your own parts need --import MODULE."
        raise UserError(
            f"{flag} needs the name of a part, not {name!r}{why}; "
            f"{_meant(flag, name, known)}it can be {choices}.{own}"
        )
    # Made without its checks: they come once the other flags are read. Fields without a default are required there.
    part: Any = object.__new__(known[name])
    for field in dataclasses.fields(part):
        value: Any = tyro.MISSING
        if field.default is not dataclasses.MISSING:
            value = field.default
        elif field.default_factory is not dataclasses.MISSING:
            value = field.default_factory()
        object.__setattr__(part, field.name, value)
    return part


def _meant(flag: str, name: str, known: Iterable[str]) -> str:
    """The part whose name was shortened, or that builds the Gymnasium task of this name."""
    if f"{name}Config" in known:
        return f"did you mean {name}Config? Otherwise "
    if "GymConfig" in known and re.fullmatch(r"[\w:/.-]+-v\d+", name):
        return f"for that task of Gymnasium write {flag} GymConfig {flag}.id {name}; otherwise "
    return ""


def _shortcoming(cls: type, hint: Any) -> str:
    """The first thing that keeps a part out of a field with this annotation."""
    for kind in filter(_is_protocol, _choices(hint)):
        for name, value in _asked(kind).items():
            wanted = f"{name}({', '.join(_parameters(value)[1:])})" if callable(value) else name
            if not hasattr(cls, name):
                return f"it has no {wanted}"
            if callable(value) and _parameters(value) != _parameters(getattr(cls, name)):
                return f"its {name} has other parameters than {wanted}"
    return "it is of another kind"


def _fits(cls: type, kind: Any) -> bool:
    if not _is_protocol(kind):
        return isinstance(kind, type) and issubclass(cls, kind)
    # Parts of different kinds all have a `build`; its parameters tell an explorer from a replay.
    return all(
        hasattr(cls, name)
        and (not callable(value) or _parameters(value) == _parameters(getattr(cls, name)))
        for name, value in _asked(kind).items()
    )


def _asked(kind: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(kind).items() if not name.startswith("_")}


def _parameters(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)


def _is_protocol(kind: Any) -> bool:
    return bool(getattr(kind, "_is_protocol", False))


def _choices(hint: Any) -> tuple[Any, ...]:
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return typing.get_args(hint) if union else (hint,)


def _holders(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The fields (dotted path, annotation) that hold a part, or could."""
    hints = typing.get_type_hints(type(value))
    for field in dataclasses.fields(value):
        held, name = getattr(value, field.name), f"{path}{field.name}"
        if is_part(held) or (held is None and may_be_part(hints[field.name])):
            yield name, hints[field.name]
        if is_part(held):
            yield from _holders(held, f"{name}.")


def _put(value: Any, path: list[str], new: Any) -> Any:
    if len(path) > 1:
        new = _put(getattr(value, path[0]), path[1:], new)
    return dataclasses.replace(value, **{path[0]: new})
