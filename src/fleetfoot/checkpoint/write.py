"""Writing checkpoints so that a kill, a power cut or a full disk at any moment loses nothing.

A folder is written under a hidden name, synced and renamed; only then does the pointer move to it,
and only then are the folders it replaces deleted.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from fleetfoot.checkpoint.read import (
    DIGEST_BYTES,
    FOLDER_NAME,
    FORMAT,
    Which,
    read_pointer,
    seal,
    step_of,
)
from fleetfoot.checkpoint.tree import DTYPES, Json, pack
from fleetfoot.checkpoint.version import VERSION, library
from fleetfoot.errors import UserError
from fleetfoot.files import plain_folder

STALE = ".tmp-"
CHUNK = 64 << 20  # bytes copied to the CPU, hashed and written at a time
SLACK = 1 << 20  # bytes, for headers, state.json and the folder itself
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class NoSpaceError(UserError):
    """There is no room for a checkpoint."""


class Checkpoint:
    """Writes the checkpoints of one run. One writer at a time; `load` may read at any moment.

    `back_to` is the name of the one that the run goes on from: it becomes the last, and newer ones are forgotten.
    """

    def __init__(
        self, folder: Path, *, replay: bool = True, keep: int = 1, back_to: str = ""
    ) -> None:
        self.folder, self.replay, self.keep = Path(folder), replay, keep
        if back_to:  # first: it may be one that no pointer names, as a copy that somebody put back
            self._go_back(back_to)
        self._clean()

    def save(
        self,
        state: dict[str, Any],
        *,
        recipe_json: Json,
        step: int,
        parts: Iterable[dict[str, Any]] = (),
    ) -> Path:
        """Save as the newest, and return its folder. `step` counts vec steps.

        The subtree `state["replay"]` goes to a separate file. `parts` are the states that the other
        ranks hold for themselves, from rank 1 on, one file each. If the disk is full or cannot be
        written to: UserError, and earlier checkpoints stay. Where only the replay does not fit,
        the rest is saved before that error.
        """
        saved_state = state if self.replay else _lean(state)
        about = {"step": step, "score": None}
        with self._saving():
            last = read_pointer(self.folder, "last")
            earlier = [last["folder"], *last["older"]] if last else []

            def write(what: dict[str, Any], older: list[str]) -> Path:
                newest = self._write(f"{step:09d}", what, recipe_json, about, parts)
                pointer = {"folder": newest.name, "older": older, "step": step, "score": None}
                self._point("last", pointer)
                return newest

            try:
                return write(saved_state, earlier[: self.keep - 1])
            except NoSpaceError as error:
                if "replay" not in saved_state or state.get("world", 1) > 1:
                    raise
                try:
                    write(_lean(saved_state), earlier)  # the earlier ones have their replays
                except NoSpaceError:
                    raise error from None
                raise NoSpaceError(
                    f"{error}. What was learned is saved without the replay."
                ) from error

    def save_best(
        self,
        state: dict[str, Any],
        *,
        recipe_json: Json,
        step: int,
        score: float,
        parts: Iterable[dict[str, Any]] = (),
    ) -> Path:
        """Save as the best, without the replay. Whether it is, the caller knows."""
        about = {"step": step, "score": score}
        with self._saving():
            folder = self._write(f"best-{step:09d}", _lean(state), recipe_json, about, parts)
            self._point("best", {"folder": folder.name, "older": [], **about})
        return folder

    def keep_only(self, newest: int) -> None:
        """Delete all but the `newest` newest ones, and the best."""
        last = read_pointer(self.folder, "last")
        if last and len(last["older"]) >= newest:
            with self._saving():
                self._point("last", {**last, "older": last["older"][: newest - 1]})

    def _go_back(self, name: str) -> None:
        last = read_pointer(self.folder, "last")
        names = [last["folder"], *last["older"]] if last else []
        if names[:1] != [name] and (self.folder / name).is_dir():
            step = step_of(name)
            older = [other for other in names if other != name and step_of(other) <= step]
            with self._refused():
                pointer = {"folder": name, "older": older, "step": step, "score": None}
                self._point("last", pointer)

    @contextlib.contextmanager
    def _saving(self) -> Iterator[None]:
        with self._refused():
            plain_folder(self.folder)
            self._clean()
            yield
            self._clean()

    @contextlib.contextmanager
    def _refused(self) -> Iterator[None]:
        """What the operating system refuses becomes one line."""
        try:
            yield
        except OSError as error:
            raise UserError(
                f"cannot save a checkpoint in {self.folder}: {error.strerror or error}{self._kept()}"
            ) from error

    def _write(
        self,
        name: str,
        state: dict[str, Any],
        recipe_json: Json,
        about: Json,
        parts: Iterable[dict[str, Any]],
    ) -> Path:
        own_trees = {"state": _lean(state)} | (
            {"replay": state["replay"]} if "replay" in state else {}
        )
        needed = SLACK + sum(
            _bytes(tensor) * (state.get("world", 1) if key == "replay" else 1)  # each rank has one
            for key, tree in own_trees.items()
            for tensor in pack(tree)[0].values()
        )
        if needed > shutil.disk_usage(self.folder).free:
            raise self._full(needed)
        hidden = self.folder / f"{STALE}{name}-{secrets.token_hex(6)}"
        files: dict[str, Json] = {}
        trees: dict[str, Json] = {}
        try:
            hidden.mkdir()
            others = ((f"rank-{rank}", part) for rank, part in enumerate(parts, start=1))
            for key, tree in chain(own_trees.items(), others):
                tensors, trees[key] = pack(tree)
                files[f"{key}.safetensors"] = write_tensors(hidden / f"{key}.safetensors", tensors)
            body = {
                "format": FORMAT,
                "version": VERSION,
                "fleetfoot": library(),
                **about,
                "files": files,
                "recipe": recipe_json,
                "trees": trees,
            }
            _write_bytes(hidden / "state.json", seal(body))
            _sync_folder(hidden)
            # A step saved twice gets another name: two folders cannot change places in one move.
            names = (name, *(f"{name}-{i}" for i in range(2, 1000)))
            final = next(self.folder / n for n in names if not (self.folder / n).exists())
            hidden.rename(final)
        except BaseException as error:
            shutil.rmtree(hidden, ignore_errors=True)
            if isinstance(error, OSError) and error.errno in NO_SPACE:
                raise self._full(needed) from error
            raise
        _sync_folder(self.folder)
        return final

    def _point(self, which: Which, pointer: Json) -> None:
        hidden = self.folder / f"{STALE}{which}.json-{secrets.token_hex(6)}"
        _write_bytes(hidden, json.dumps(pointer).encode())
        os.replace(hidden, self.folder / f"{which}.json")
        _sync_folder(self.folder)

    def _clean(self) -> None:
        """Remove what no pointer names and what an interrupted save left behind.

        Where a pointer cannot be read, the folders it may have named stay.
        """
        if not self.folder.is_dir() or self.folder.is_symlink():
            return
        last, best = read_pointer(self.folder, "last"), read_pointer(self.folder, "best")
        named = {name for p in (last, best) if p for name in (p["folder"], *p["older"])}
        for path in list(self.folder.iterdir()):
            pointer = best if path.name.startswith("best-") else last
            if FOLDER_NAME.fullmatch(path.name) and path.name not in named and pointer:
                with contextlib.suppress(OSError):  # a save must not fail because of tidying up
                    # Renamed first, so that half a checkpoint never has a real name.
                    path.rename(self.folder / f"{STALE}{path.name}-{secrets.token_hex(6)}")
        for path in self.folder.glob(f"{STALE}*"):
            with contextlib.suppress(OSError):
                is_folder = path.is_dir() and not path.is_symlink()
                shutil.rmtree(path) if is_folder else path.unlink()

    def _full(self, needed: int) -> NoSpaceError:
        free = shutil.disk_usage(self.folder).free
        return NoSpaceError(
            f"the disk is full: a checkpoint in {self.folder} needs {needed:,} bytes and {free:,} "
            f"are free{self._kept()}; make room, or leave the replay out (--checkpoint.no-replay)"
        )

    def _kept(self) -> str:
        if read_pointer(self.folder, "last"):
            return "; the earlier checkpoint is kept"
        return "; the best policy is kept" if read_pointer(self.folder, "best") else ""


def _lean(state: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in state.items() if key != "replay"}


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> Json:
    """Write one safetensors file, streaming, and return its size and digest.

    The format is a length, a JSON header and the raw bytes. `safetensors.torch.save_file` would
    want all tensors on the CPU at once, refuse those that share memory, hide a full disk behind an
    error of its own and leave the digest to a second pass over the file.
    """
    # Widest elements first keeps every tensor aligned to its element size, as readers demand.
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))
    header: dict[str, Json] = {}
    end = 0
    for name, tensor in ordered:
        start, end = end, end + _bytes(tensor)
        offsets, shape = [start, end], list(tensor.shape)
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": shape, "data_offsets": offsets}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    with path.open("xb") as file:
        for data in (len(text).to_bytes(8, "little"), text):
            file.write(data)
            digest.update(data)
        for _, tensor in ordered:
            raw = tensor.contiguous().reshape(-1).view(torch.uint8)
            for start in range(0, raw.numel(), CHUNK):
                piece = raw[start : start + CHUNK].cpu().numpy().data
                file.write(piece)
                digest.update(piece)
        _sync_file(file)
    return {"bytes": 8 + len(text) + end, "blake2b": digest.hexdigest()}


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _write_bytes(path: Path, data: bytes) -> None:
    with path.open("xb") as file:  # never through a link
        file.write(data)
        _sync_file(file)


def _sync_file(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """Make the names in a folder durable (Windows has no way to, and no need)."""
    if os.name != "nt":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
