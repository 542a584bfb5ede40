"""What a sweep varies: `--over agent.tau=0.005,0.05`, or for a search a range, `--over agent.tau=1e-3..0.1:log`."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from fleetfoot.errors import UserError

MOST_POINTS = 10_000
MOST_NAME = 120


@dataclass(frozen=True)
class Axis:
    """One field of the recipe and its values, as they stand on the command line; or a range of them."""

    path: str
    values: tuple[str, ...] = ()
    low: float = 0.0
    high: float = 0.0
    log: bool = False

    @property
    def is_range(self) -> bool:
        return not self.values


def axes_of(over: Sequence[str]) -> list[Axis]:
    axes = [axis_of(text) for text in over]
    if not axes:
        raise UserError("over what? Give --over agent.tau=0.005,0.05, for instance.")
    paths = [axis.path for axis in axes]
    if twice := next((path for path in paths if paths.count(path) > 1), None):
        raise UserError(f"--over {twice} is given twice; give all its values at once.")
    return axes


def axis_of(text: str) -> Axis:
    path, equals, stated = text.partition("=")
    path = path.removeprefix("--").replace("-", "_")
    if not (path and equals and stated):
        raise UserError(f"--over needs FIELD=VALUE,VALUE,..., not {text!r:.80}.")
    if path in ("seed", "name"):
        raise UserError(f"--over {path}: {'--seeds' if path == 'seed' else '--name'} is for that.")
    if span := re.fullmatch(r"(.+?)\.\.(.+?)(:log)?", stated):
        return _range_of(path, span[1], span[2], log=span[3] is not None)
    values = tuple(value.strip() for value in stated.split(","))
    if "" in values:
        raise UserError(f"--over {path} has an empty value.")
    if len(set(values)) < len(values):
        raise UserError(f"--over {path} has a value twice.")
    return Axis(path, values)


def _range_of(path: str, first: str, last: str, *, log: bool) -> Axis:
    try:
        low, high = float(first), float(last)
    except ValueError:
        raise UserError(f"--over {path}: {first}..{last} is not a range of numbers.") from None
    if not low < high or (log and low <= 0):
        above = " above 0" if log else ""
        raise UserError(f"--over {path}: a range must go from a number{above} to a larger one.")
    return Axis(path, (), low, high, log)


def grid(axes: Sequence[Axis]) -> list[dict[str, str]]:
    """Every combination of the values."""
    if ranged := next((axis for axis in axes if axis.is_range), None):
        raise UserError(
            f"--over {ranged.path} is a range: give its values, or search it with --search optuna."
        )
    count = 1
    for axis in axes:
        count *= len(axis.values)
    if count > MOST_POINTS:
        raise UserError(f"a grid of {count:,} configurations is too large; search it instead.")
    paths = [axis.path for axis in axes]
    return [
        dict(zip(paths, values, strict=True))
        for values in itertools.product(*(axis.values for axis in axes))
    ]


def name_of(settings: dict[str, str]) -> str:
    """The name of a configuration, which is also that of its folder."""
    stated = ",".join(f"{path}={value}" for path, value in settings.items())
    name = re.sub(r"[^\w.,=+-]+", "-", stated)
    if name == stated and len(name) <= MOST_NAME:
        return name
    digest = hashlib.blake2b(stated.encode(), digest_size=4).hexdigest()
    return f"{name[:MOST_NAME]}-{digest}"
