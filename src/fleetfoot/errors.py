"""Mistakes that a user can put right."""

from __future__ import annotations

import contextlib
import difflib
import os
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path


def printable(text: str) -> str:
    """Without control characters: a message may quote a stranger's file, and a terminal would obey them."""
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in text)


class UserError(Exception):
    """Something the user can put right. The command line prints it as one line and exits with code 2."""

    def __str__(self) -> str:
        return printable(super().__str__())


class Halted(UserError):  # noqa: N818
    """Training cannot go on for a reason outside of the learner, which is healthy: what it has learned is saved."""


class Hung(BaseException):
    """Raised inside a call that takes too long. Not an Exception, so that the code called does not swallow it."""


class Program:
    """Whose program this is. The command line and workers on Ray may end it; a library must not."""

    is_ours = False


class Notice(UserWarning):
    """Something asked for cannot be done, and the run goes on without it. The command line prints it as one line."""


def nearest(name: str, known: Iterable[str]) -> str:
    """' Did you mean ...?' for a misspelt name, or the empty string when nothing is close."""
    close = difflib.get_close_matches(name, list(known), n=3, cutoff=0.5)
    return f" Did you mean {' or '.join(close)}?" if close else ""


def nearest_run(folder: Path, is_one: Callable[[Path], bool]) -> str:
    """The same for a misspelt folder: of those beside it and those below runs/, as they can be typed. Where nothing is
    close, the newest of them."""
    places = {
        path.name: path
        for parent in (Path("runs"), folder.parent)
        for path in parent.glob("*")
        if is_one(path)
    }
    close = difflib.get_close_matches(folder.name, places, n=3, cutoff=0.5)
    if close:
        return f" Did you mean {' or '.join(str(places[name]) for name in close)}?"
    newest = max(places.values(), key=_changed, default=None)
    return f" The newest one is {newest}." if newest else ""


def _changed(path: Path) -> float:
    with contextlib.suppress(OSError):  # it may be gone by now
        return path.stat().st_mtime
    return 0.0


def one_line(error: BaseException) -> str:
    """The type of an error and its message, without line breaks; of a UserError the message alone."""
    lines = [" ".join(line.split()) for line in str(error).splitlines() if line.strip()]
    # Of many lines, such as the traceback of another process, the first and the last say it.
    message = " ".join(lines if len(lines) < 4 else [lines[0], lines[-1]])[:400]
    if isinstance(error, UserError):
        return message
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def place(error: BaseException) -> str:
    """' (file:line)' where an error was raised: the part of a traceback that says whose mistake it is."""
    frames = traceback.extract_tb(error.__traceback__)
    return f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """What the operating system refuses while `path` is made or written becomes one line: no permission, a full disk, a
    name that is too long, a file in the way.
    """
    try:
        yield
    except OSError as error:
        if os.path.islink(path) and not os.path.exists(path):
            why = "it is a link to something that does not exist; remove it, or give another name"
        else:
            why = error.strerror or str(error)
        raise Halted(f"cannot write {path}: {why}.") from error
