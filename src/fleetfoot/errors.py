"""Mistakes that a user can put right."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterable, Iterator
from pathlib import Path


class UserError(Exception):
    """Something the user can put right. The command line prints it as one line and exits with code 2."""


def nearest(name: str, known: Iterable[str]) -> str:
    """' Did you mean ...?' for a misspelt name, or the empty string when nothing is close."""
    close = difflib.get_close_matches(name, list(known), n=3, cutoff=0.5)
    return f" Did you mean {' or '.join(close)}?" if close else ""


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """What the operating system refuses while `path` is made or written becomes one line: no permission, a full disk, a
    name that is too long, a file in the way.
    """
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}.") from error
