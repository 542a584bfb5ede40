"""Reading and writing the files of a run folder, which may come from a stranger.

What is read is a plain file of a sane size. What is written follows no link, appears whole or not at all, and passes
through a name that nobody can know before.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, BinaryIO

from fleetfoot.errors import UserError, writing

MOST_TEXT = 64 << 20  # bytes of a JSON file; a real one has some kB
MOST_LOG = 4 << 30  # bytes of a metrics.jsonl

# Windows has neither; there a link needs an administrator.
NO_LINK: int = getattr(os, "O_NOFOLLOW", 0)
NO_WAIT: int = getattr(os, "O_NONBLOCK", 0)  # a pipe would wait for its other end


def open_plain(path: Path, *, most: int) -> BinaryIO:
    """Open a file to read it. UserError if it is a link, a pipe, a device or a folder, or larger than `most` bytes."""
    try:
        file = os.fdopen(_open(path, os.O_RDONLY), "rb")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    size = os.fstat(file.fileno()).st_size
    if size > most:
        file.close()
        raise UserError(f"{path} has {size:,} bytes, which is more than such a file may have")
    return file


def read_bytes(path: Path, *, most: int = MOST_TEXT) -> bytes:
    with open_plain(path, most=most) as file:
        try:
            return file.read(most)
        except OSError as error:
            raise UserError(f"cannot read {path}: {error.strerror or error}") from error


def read_json(path: Path, *, most: int = MOST_TEXT) -> Any:
    data = read_bytes(path, most=most)
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"{path} cannot be read as JSON: {' '.join(str(error).split())}."
        ) from error


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A name beside `path` to write to. What is there at the end takes the place of `path`; after an error, nothing."""
    hidden = path.with_name(f".{path.stem}.{secrets.token_hex(6)}.partial{path.suffix}")
    with writing(path):
        plain_folder(path.parent)
        try:
            yield hidden
            os.replace(hidden, path)
        finally:
            with suppress(OSError):
                hidden.unlink()


def write_text(path: Path, text: str) -> None:
    with replacing(path) as hidden, hidden.open("x", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(
            file.fileno()
        )  # or a power cut may leave an empty file in the place of the old one


def open_append(path: Path) -> IO[str]:
    """Open a file to add lines to it."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    return os.fdopen(_open(path, flags), "a", encoding="utf-8")


def open_lock(path: Path) -> BinaryIO:
    """Open a file that only serves as a lock; what is in it stays."""
    return os.fdopen(_open(path, os.O_RDWR | os.O_CREAT), "rb+", buffering=0)


def plain_folder(path: Path) -> None:
    """Make a folder if there is none. OSError if there is a link."""
    path.mkdir(parents=True, exist_ok=True)
    if path.is_symlink() and path.name in ("checkpoints", "tensorboard", "videos"):
        raise OSError(errno.ELOOP, "it is a link, which is not followed")


def _open(path: Path, flags: int) -> int:
    """A descriptor of a plain file."""
    try:
        descriptor = os.open(path, flags | NO_LINK | NO_WAIT, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK) or path.is_symlink():
            raise OSError(errno.ELOOP, "it is a link, which is not followed") from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a plain file")
    return descriptor
