"""Recipes and options as command-line flags.

tyro makes the flags, their types and the help (`tyro.cli(default=recipe)`). Two things are added. `Recipe` annotates
its parts with protocols, so that any class that fits can stand there; a rule tells tyro the class that does stand
there. And a mistake is a `UserError` of one line. `parts.py` has replaced whole parts before.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import io
import itertools
import json
import re
import typing
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any

import tyro
from tyro.constructors import (
    ConstructorRegistry,
    PrimitiveConstructorSpec,
    StructConstructorSpec,
    StructFieldSpec,
    StructTypeInfo,
)

from fleetfoot.cli.parts import fitting, is_part, may_be_part, swap_parts
from fleetfoot.errors import UserError, nearest

# For dictionaries of anything, whose values have no types to go by: --env.kwargs '{"gravity": 3.7}'.
JSON: PrimitiveConstructorSpec[Any] = PrimitiveConstructorSpec(
    nargs=1,
    metavar="JSON",
    instance_from_str=lambda words: json.loads(words[0]),
    is_instance=lambda value: isinstance(value, dict),
    str_from_instance=lambda value: [json.dumps(value)],
)
OTHER_NAMES = {"learning-rate": "lr"}  # what others call a field
NARROWED = "narrowed"  # marks a dataclass whose fields are about to be narrowed, so that tyro's own rule comes next


def parse_recipe(
    default: Any, options: type, args: Sequence[str], prog: str, fixed: Sequence[str] = ()
) -> tuple[Any, Any]:
    """`default` and an `options` dataclass, both changed by `args`. Fields in `fixed` get no flags."""
    default, args = swap_parts(default, list(args))
    without_prefix = tyro.conf.arg(name="")
    command = dataclasses.make_dataclass(
        "Command",
        [
            (
                "recipe",
                Annotated[type(default), without_prefix],
                dataclasses.field(default=default),
            ),
            (
                "options",
                Annotated[options, without_prefix],
                dataclasses.field(default_factory=options),
            ),
        ],
        frozen=True,
    )
    command.__doc__ = f"Recipe {default.name}. The values shown are this recipe's own."
    known = dict([*flags_of(default, fixed), *flags_of(options)])
    filled = _parse(command, args, prog, known, registry(default, fixed))
    return filled.recipe, filled.options


def parse(form: type, args: Sequence[str], prog: str) -> Any:
    """Make a `form`, a dataclass, from `args`."""
    return _parse(form, args, prog, dict(flags_of(form)), registry())


def _parse(
    form: type, args: Sequence[str], prog: str, known: dict[str, Any], rules: ConstructorRegistry
) -> Any:
    """What cannot be understood is a `UserError` of one line."""
    args = _checked(args, known)
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            parsed: tuple[Any, list[str]] = tyro.cli(
                form,
                args=list(args),
                prog=prog,
                config=(tyro.conf.AvoidSubcommands, tyro.conf.SuppressFixed),
                registry=rules,
                return_unknown_args=True,
            )
    except SystemExit as stop:
        if not stop.code:  # --help
            raise
        raise UserError(_first_sentence(complaint.getvalue(), prog)) from None
    filled, unknown = parsed
    if unknown:
        before = itertools.takewhile(lambda word: word != unknown[0], args)
        order = "names come before options, and " if any(w.startswith("-") for w in before) else ""
        raise UserError(
            f"unexpected argument {unknown[0]!r}: {order}options start with -- (see {prog} --help)."
        )
    return filled


def _checked(args: Sequence[str], known: dict[str, Any]) -> list[str]:
    """What tyro does not notice or reports poorly: unknown flags, and lists without values."""
    checked: list[str] = []
    for word, following in itertools.pairwise([*args, "--"]):
        name = word.split("=")[0].replace("_", "-")
        if name.startswith("--") and name not in (*known, "--help"):
            raise UserError(f"there is no option {name}.{_nearest_flag(name, list(known))}")
        if word == name and _is_list(known.get(name)) and following.startswith("--"):
            raise UserError(
                f"{name} needs at least one value; for an empty list write {name} none."
            )
        if not (word == "none" and checked and _is_list(known.get(checked[-1].replace("_", "-")))):
            checked.append(word)
    return checked


def _is_list(hint: Any) -> bool:
    return typing.get_origin(hint) is tuple and Ellipsis in typing.get_args(hint)


def registry(recipe: Any = None, fixed: Sequence[str] = ()) -> ConstructorRegistry:
    """What tyro is told about parts. `fixed`: fields of the recipe that get no flags."""
    rules = ConstructorRegistry()

    @rules.primitive_rule
    def dictionary_rule(info: Any) -> PrimitiveConstructorSpec[Any] | None:
        return JSON if info.type == dict[str, Any] else None

    @rules.struct_rule
    def part_rule(info: StructTypeInfo) -> StructConstructorSpec | None:
        """Each field that holds a part is of the class of that part, whatever its annotation."""
        if NARROWED in info.markers or not is_part(info.default):
            return None
        whole = dataclasses.replace(info, markers=(*info.markers, NARROWED))
        spec = ConstructorRegistry.get_struct_spec(whole)
        assert isinstance(spec, StructConstructorSpec)
        no_flags = fixed if info.default is recipe else ()
        fields = tuple(_narrowed(field, field.name in no_flags) for field in spec.fields)
        return dataclasses.replace(spec, fields=fields)

    return rules


def _narrowed(field: StructFieldSpec, fixed: bool) -> StructFieldSpec:
    held, kind = field.default, typing.cast(Any, Annotated)
    if fixed:
        return dataclasses.replace(field, type=kind[type(held), tyro.conf.Fixed])
    if is_part(held):
        return dataclasses.replace(
            field, type=type(held), helptext=lambda: _about_part(held, field.type)
        )
    if held is None and may_be_part(field.type):
        return dataclasses.replace(field, type=kind[None, _no_part(field.type)])
    return dataclasses.replace(field, helptext=lambda: _joined(field.helptext))


def _about_part(held: Any, hint: Any) -> str:
    """Which class it is, what that is, and which others could stand there."""
    name = type(held).__name__
    text = " ".join(inspect.cleandoc(held.__doc__ or "").split("\n\n")[0].split())
    about = name if text.startswith(f"{name}(") else f"{name}: {text}"
    others = sorted(other for other in fitting(hint) if other != name)
    return f"{about.rstrip('.')}. Can be replaced by: {', '.join(others)}." if others else about


def _joined(text: str | Callable[[], str | None] | None) -> str | None:
    return " ".join(((text() if callable(text) else text) or "").split()) or None


def _no_part(hint: Any) -> PrimitiveConstructorSpec[None]:
    """A field that may hold a part and holds none. Names given for it were handled by `swap_parts` before."""
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="{" + "|".join(["None", *fitting(hint)]) + "}",
        instance_from_str=lambda words: None,
        is_instance=lambda value: value is None,
        str_from_instance=lambda value: ["None"],
    )


def flags_of(form: Any, fixed: Sequence[str] = (), path: str = "--") -> Iterator[tuple[str, Any]]:
    """Every flag of a dataclass, or of a value of one, and its annotation."""
    hints = typing.get_type_hints(form if isinstance(form, type) else type(form))
    for field in dataclasses.fields(form):
        held, name = getattr(form, field.name, None), field.name.replace("_", "-")
        if field.name in fixed:
            continue
        if is_part(held):
            yield from flags_of(held, (), f"{path}{name}.")
        elif isinstance(held, tuple) and any(map(is_part, held)):
            for number, item in enumerate(held):
                yield from flags_of(item, (), f"{path}{name}.{number}.")
        else:
            yield f"{path}{name}", hints[field.name]
            if hints[field.name] is bool:
                yield f"{path}no-{name}", bool


def _nearest_flag(name: str, known: list[str]) -> str:
    """Flags with the same last word; failing that, the nearest one."""
    for flag in known:
        if name.startswith(f"{flag}."):
            return f" {flag} holds no part yet; name one first: {flag} NAME (see --help)."
    last = name.removeprefix("--").split(".")[-1]
    last = OTHER_NAMES.get(last, last)
    same_end = [flag for flag in known if flag.removeprefix("--").split(".")[-1] == last]
    if same_end:
        return f" Did you mean {' or '.join(same_end[:3])}?"
    return nearest(name, known)


def _first_sentence(box: str, prog: str) -> str:
    """The message of tyro's error box, on one line."""
    lines = [line.strip("│ ") for line in box.splitlines() if line.strip("│ ")]
    # The title stands in the frame or, where the terminal has no box characters, above a rule.
    body = lines[1 if box.lstrip().startswith("╭") else 2 :]
    words = itertools.takewhile(lambda line: line.strip("─-╰╯"), body)
    message = " ".join(" ".join(words).split())
    # Of a value that may be absent, tyro gives the reasons of both types.
    message = re.sub(
        r"no type matching .*Got errors: .*<class '(?:int|float)'>: (.*)", r"\1", message
    )
    message = re.sub(
        r"invalid literal for int\(\) with base 10: (.*)", r"\1 is not a whole number", message
    )
    message = re.sub(r"could not convert string to float: (.*)", r"\1 is not a number", message)
    message = message.replace("Expected 1 values", "Expected 1 value")
    message = re.sub("^Error parsing ", "", message) or "the arguments could not be understood"
    return f"{message.rstrip('.')} (see {prog} --help)."
