"""The extras of the package: what each brings, what of it is missing, and a line that installs it.

All of it is read from the metadata of the installed package, so that a new extra in pyproject.toml is known by itself.
The lines name the packages themselves and not `fleetfoot[extra]`: so they work however fleetfoot was installed, from a
clone, a wheel or a repository.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import shlex
import shutil
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fleetfoot.errors import UserError, one_line

if TYPE_CHECKING:
    from packaging.requirements import Requirement

# What pip cannot know of an extra.
ADVICE = {
    "mjlab": "in a separate Python environment, see docs/environments/mjlab.md",
    "trackio": "in a separate Python environment, without constraints.txt",
}


def names() -> list[str]:
    """Every extra, in alphabetical order. None where fleetfoot is run from its source without having been installed."""
    try:
        found = importlib.metadata.metadata("fleetfoot").get_all("Provides-Extra") or []
    except importlib.metadata.PackageNotFoundError:
        return []
    return sorted(found)


def requirements(extra: str = "", package: str = "fleetfoot") -> list[Requirement]:
    """What an extra brings on this system, with what the extras that it includes bring; without one, what all need."""
    from packaging.requirements import Requirement

    try:
        lines = importlib.metadata.requires(package) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    found: dict[str, Requirement] = {}
    for line in lines:
        one = Requirement(line)
        optional = one.marker is not None and "extra" in str(one.marker)
        if optional != bool(extra) or not (
            one.marker is None or one.marker.evaluate({"extra": extra})
        ):
            continue
        if one.name == package:
            inner = [part for name in sorted(one.extras) for part in requirements(name, package)]
        else:
            one.marker = None
            inner = [one]
        found |= {str(part): part for part in inner}
    return list(found.values())


def installed(one: Requirement) -> str | None:
    """The version that is there, if it is one that the requirement allows, with what its own extras bring."""
    try:
        version = importlib.metadata.version(one.name)
    except importlib.metadata.PackageNotFoundError:
        return None
    inside = [part for name in one.extras for part in requirements(name, one.name)]
    fits = one.specifier.contains(version, prereleases=True)
    return version if fits and all(installed(part) for part in inside) else None


def program(name: str) -> str:
    """How to call an installed command from here: by name, or by path where the name means nothing or another one."""
    beside, meant = Path(sys.executable).parent / name, shutil.which(name)
    if not beside.exists() or (meant and os.path.samefile(meant, beside)):  # perhaps through a link
        return name
    return os.path.relpath(beside) if beside.is_relative_to(Path.cwd()) else str(beside)


def typed(name: str, *words: object) -> str:
    """A call of an installed command, to copy."""
    return shlex.join([program(name), *map(str, words)])


def install_line(*extras: str) -> str:
    """A command that brings what is missing of extras, or all of it where nothing seems to be."""
    by_extra = [requirements(extra) for extra in extras]
    if not all(by_extra):  # not installed, or installed by a version that did not have this extra
        return f"{typed('pip')} install -e '.[{','.join(extras)}]' (in a clone of fleetfoot)"
    wanted = list({str(one): one for found in by_extra for one in found}.values())
    missing = [one for one in wanted if installed(one) is None] or wanted
    advice = [ADVICE[extra] for extra in extras if extra in ADVICE]
    # Where there is advice, the pip is perhaps that of another environment.
    line = (
        shlex.join(["pip", "install", *map(str, missing)])
        if advice
        else typed("pip", "install", *missing)
    )
    return f"{line} ({'; '.join(advice)})" if advice else line


def load(module: str, extra: str, what: str) -> Any:
    """A module that an extra brings; UserError, with the line that installs it, where it is missing, or cannot be
    imported: then with the reason."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        missing = str(error.name).partition(".")[0] == module.partition(".")[0]
        why = "" if missing else f" ({one_line(error)})"
        raise UserError(f"{what}{why}: {install_line(extra)}") from error


def check(what: str, modules: Iterable[str], *extras: str) -> None:
    """UserError, with the line that installs the extras, where a module is missing. None of them is imported: this is
    asked before the work begins, and some take seconds."""
    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        raise UserError(
            f"{what} needs packages that are not installed ({', '.join(missing)}): {install_line(*extras)}"
        )
