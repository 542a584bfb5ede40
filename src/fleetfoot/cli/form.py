"""A recipe as command-line flags, typed by tyro.

`Recipe` annotates its parts with protocols, so that any class that fits can stand there. A command
line needs to know the class that does stand there. A *form* is a dataclass made for one recipe: the
same fields, each annotated with the class of the value it holds, that value as its default, and the
help text of the original. What was filled in is turned back into the recipe's own classes.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import inspect
import io
import itertools
import json
import re
import textwrap
import tokenize
import types
import typing
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import tyro

from fleetfoot.config import PARTS
from fleetfoot.errors import UserError, nearest

# For dictionaries of anything, whose values have no types to go by: --env.kwargs '{"gravity": 3.7}'.
JSON = tyro.constructors.PrimitiveConstructorSpec(
    nargs=1,
    metavar="JSON",
    instance_from_str=lambda words: json.loads(words[0]),
    is_instance=lambda value: isinstance(value, dict),
    str_from_instance=lambda value: [json.dumps(value)],
)

CONFIG = (tyro.conf.AvoidSubcommands, tyro.conf.HelptextFromCommentsOff)


class NoPart(str):
    """Stands for None where a part could be. `swap_parts` has taken a name given there before tyro reads it."""


def parse_recipe(
    default: Any, options: type, args: Sequence[str], prog: str, fixed: Sequence[str] = ()
) -> tuple[Any, Any]:
    """`default` and an `options` dataclass, both changed by `args`. Fields in `fixed` are no flags."""
    default, args = swap_parts(default, list(args))
    form = form_of(default, fixed)
    extra = [
        (f.name, Annotated[hint, tyro.conf.arg(help=help_texts(options).get(f.name))], f)
        for f, hint in _hinted(options)
    ]
    both = dataclasses.make_dataclass(
        "Command", [*_field_triples(form), *extra], kw_only=True, frozen=True
    )
    both.__doc__ = f"Recipe {default.name}. The values shown are this recipe's own."
    filled = parse(both, args, prog)
    given = {f.name: getattr(filled, f.name) for f in dataclasses.fields(options)}
    return rebuild(default, filled, fixed), options(**given)


def parse(form: type, args: Sequence[str], prog: str) -> Any:
    """Fill in `form` from `args`; what cannot be understood is a `UserError` of one line."""
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            found: tuple[Any, list[str]] = tyro.cli(
                form, args=list(args), prog=prog, config=CONFIG, return_unknown_args=True
            )
    except SystemExit as stop:
        if not stop.code:
            raise
        raise UserError(_first_sentence(complaint.getvalue(), prog)) from None
    filled, unknown = found
    for word in unknown:
        if word.startswith("--"):
            known = list(flags_of(form))
            name = word.split("=")[0].replace("_", "-")
            raise UserError(f"there is no option {name}.{_nearest_flag(name, known)}")
    if unknown:
        raise UserError(
            f"did not expect {unknown[0]!r}; options start with -- (see {prog} --help)."
        )
    return filled


def form_of(value: Any, fixed: Sequence[str] = ()) -> type:
    """The dataclass that stands for `value` on the command line."""
    cls: type = type(value)
    helps = help_texts(cls)
    fields = []
    for field, hint in _hinted(cls):
        if field.name in fixed or not field.init:
            continue
        now = getattr(value, field.name)
        # A part is described by its class, so that the help says which one stands there.
        help_text = None if dataclasses.is_dataclass(now) else helps.get(field.name)
        kind, now = _kind_of(hint, now)
        if help_text:
            kind = Annotated[kind, tyro.conf.arg(help=help_text)]
        fields.append((field.name, kind, _default_field(now)))
    form = dataclasses.make_dataclass(cls.__name__, fields, kw_only=True, frozen=True)
    told = " ".join(inspect.cleandoc(cls.__doc__ or "").split("\n\n")[0].split())
    form.__doc__ = (
        cls.__name__ if told.startswith(f"{cls.__name__}(") else f"{cls.__name__}: {told}"
    )
    return form


def rebuild(value: Any, filled: Any, fixed: Sequence[str] = ()) -> Any:
    """The inverse of `form_of`: the classes of `value`, the values of `num_stored`."""
    if isinstance(value, tuple) and any(dataclasses.is_dataclass(item) for item in value):
        return tuple(rebuild(old, new) for old, new in zip(value, filled, strict=True))
    if isinstance(filled, NoPart):
        return None
    if not dataclasses.is_dataclass(value):
        return filled
    changes = {
        f.name: rebuild(getattr(value, f.name), getattr(filled, f.name))
        for f in dataclasses.fields(value)
        if f.init and f.name not in fixed
    }
    return dataclasses.replace(typing.cast(Any, value), **changes)


def swap_parts(value: Any, args: list[str]) -> tuple[Any, list[str]]:
    """Carry out the arguments that exchange a whole part (`--explorer Greedy`); returns the arguments that are left.

    They come first, whatever their place on the line: the other flags may be fields of the new part.
    """
    left: list[str] = []
    words = iter(args)
    for word in words:
        flag, equals, given = word.partition("=")
        path = flag[2:].replace("-", "_") if flag.startswith("--") else ""
        holder = dict(_part_holders(value)).get(path) if path else None
        if holder is None:
            left.append(word)
            continue
        name = given if equals else next(words, "")
        value = _put(value, path.split("."), _new_part(flag, name, holder))
    return value, left


def _new_part(flag: str, name: str, hint: Any) -> Any:
    if name.lower() == "none" and type(None) in typing.get_args(hint):
        return None
    fitting = {key: cls for key, cls in PARTS.items() if _fits(cls, hint)}
    if name not in fitting:
        choices = ", ".join(sorted(fitting)) or "nothing else"
        raise UserError(f"{flag} needs the name of a part, not {name!r}; it can be {choices}.")
    return _blank(fitting[name])


def _blank(cls: type) -> Any:
    """A part with its defaults; fields without one are required on the command line. Checks wait for `rebuild`."""
    made: Any = object.__new__(cls)
    for field in dataclasses.fields(cls):
        value: Any = tyro.MISSING
        if field.default is not dataclasses.MISSING:
            value = field.default
        elif field.default_factory is not dataclasses.MISSING:
            value = field.default_factory()
        object.__setattr__(made, field.name, value)
    return made


def _fits(cls: type, hint: Any) -> bool:
    """Could an instance of `cls` stand in a field annotated with `hint`?"""
    choices = typing.get_args(hint) if _is_union(hint) else (hint,)
    for choice in choices:
        if not isinstance(choice, type) or choice is type(None):
            continue
        if getattr(choice, "_is_protocol", False):
            # A protocol's own methods are all it asks for; `build` and the like are told apart by their other names.
            asked = [name for name in vars(choice) if not name.startswith("_")]
            if all(hasattr(cls, name) for name in asked) and _same_call(cls, choice, asked):
                return True
        elif issubclass(cls, choice):
            return True
    return False


def _same_call(cls: type, protocol: type, names: Sequence[str]) -> bool:
    """Parts of different kinds all have a `build`; its parameters tell an explorer from a replay."""
    for name in names:
        asked, has = getattr(protocol, name), getattr(cls, name)
        if callable(asked) and (
            list(inspect.signature(asked).parameters) != list(inspect.signature(has).parameters)
        ):
            return False
    return True


def _part_holders(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The fields (dotted path, annotation) that hold a part, or could."""
    for field, hint in _hinted(type(value)):
        now, name = getattr(value, field.name), f"{path}{field.name}"
        if dataclasses.is_dataclass(now) or (now is None and _may_be_part(hint)):
            yield name, hint
        if dataclasses.is_dataclass(now):
            yield from _part_holders(now, f"{name}.")


def _may_be_part(hint: Any) -> bool:
    choices = typing.get_args(hint) if _is_union(hint) else (hint,)
    return any(dataclasses.is_dataclass(c) or getattr(c, "_is_protocol", False) for c in choices)


def _put(value: Any, path: list[str], new: Any) -> Any:
    if len(path) > 1:
        new = _put(getattr(value, path[0]), path[1:], new)
    return dataclasses.replace(value, **{path[0]: new})


def _kind_of(hint: Any, now: Any) -> tuple[Any, Any]:
    """The annotation and the default that the form gives to a field that holds `now`."""
    if dataclasses.is_dataclass(now):
        form = form_of(now)
        return form, form()
    if isinstance(now, tuple) and any(dataclasses.is_dataclass(item) for item in now):
        forms = [form_of(item) for item in now]
        return tuple[tuple(forms)], tuple(form() for form in forms)  # type: ignore[misc]
    if now is None and _may_be_part(hint):
        names = [key for key, cls in PARTS.items() if _fits(cls, hint)]
        metavar = "{" + "|".join(["None", *names]) + "}"
        shown = tyro.conf.arg(metavar=metavar, help_behavior_hint="(default: None)")
        return Annotated[NoPart, shown], NoPart("None")
    if hint == dict[str, Any]:
        return Annotated[hint, JSON], now
    return hint, now


def _default_field(now: Any) -> Any:
    if isinstance(now, (dict, list)):
        return dataclasses.field(default_factory=lambda: type(now)(now))
    return dataclasses.field(default=now)


def flags_of(form: type, path: str = "") -> Iterator[str]:
    """Every flag that `form` understands."""
    for field, hint in _hinted(form):
        name = f"--{path}{field.name}".replace("_", "-")
        inner = hint
        while typing.get_origin(inner) is Annotated:
            inner = typing.get_args(inner)[0]
        if dataclasses.is_dataclass(inner):
            yield from flags_of(typing.cast(type, inner), f"{path}{field.name}.")
        else:
            yield name
            if inner is bool:
                yield f"--{path}no-{field.name}".replace("_", "-")


def _nearest_flag(name: str, known: list[str]) -> str:
    """Nearest by the whole path; failing that, flags whose last word is the one that was meant."""
    for flag in known:
        if name.startswith(f"{flag}."):
            return f" {flag} is no part yet; name one first: {flag} NAME (see --help)."
    last = name.removeprefix("--").split(".")[-1]
    same_end = [flag for flag in known if flag.removeprefix("--").split(".")[-1] == last]
    if same_end:
        return f" Did you mean {' or '.join(same_end[:3])}?"
    return nearest(name, known)


def _hinted(cls: type) -> list[tuple[Any, Any]]:
    hints = _hints(cls)
    return [(field, hints[field.name]) for field in dataclasses.fields(cls)]


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls, include_extras=True)


def _field_triples(form: type) -> list[tuple[str, Any, Any]]:
    return [(f.name, hint, f) for f, hint in _hinted(form)]


def _is_union(hint: Any) -> bool:
    return typing.get_origin(hint) in (typing.Union, types.UnionType)


@functools.cache
def help_texts(cls: type) -> dict[str, str]:
    """What the source says about each field: the string below it, or the comment beside it."""
    texts: dict[str, str] = {}
    for base in reversed(cls.__mro__[:-1]):
        try:
            source = textwrap.dedent(inspect.getsource(base))
        except (OSError, TypeError):
            continue
        comments = {
            token.start[0]: token.string.lstrip("#: ")
            for token in tokenize.generate_tokens(io.StringIO(source).readline)
            if token.type == tokenize.COMMENT
        }
        body = typing.cast(ast.ClassDef, ast.parse(source).body[0]).body
        for here, below in zip(body, [*body[1:], None], strict=True):
            if not (isinstance(here, ast.AnnAssign) and isinstance(here.target, ast.Name)):
                continue
            match below:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    texts[here.target.id] = " ".join(text.split())
                case _ if (here.end_lineno or here.lineno) in comments:
                    texts[here.target.id] = comments[here.end_lineno or here.lineno]
    return texts


def _first_sentence(box: str, prog: str) -> str:
    """The message of tyro's error box, on one line."""
    lines = [line.strip("│ ") for line in box.splitlines() if line.strip("│ ")]
    # The title stands in the frame or, where the terminal has no box characters, above a rule.
    body = lines[1 if box.lstrip().startswith("╭") else 2 :]
    words = itertools.takewhile(lambda line: line.strip("─-╰╯"), body)
    message = " ".join(" ".join(words).split())
    message = re.sub(
        r"invalid literal for int\(\) with base 10: (.*)", r"\1 is no whole number", message
    )
    message = re.sub(r"could not convert string to float: (.*)", r"\1 is no number", message)
    message = re.sub("^Error parsing ", "", message) or "the arguments could not be understood"
    return f"{message.rstrip('.')} (see {prog} --help)."
