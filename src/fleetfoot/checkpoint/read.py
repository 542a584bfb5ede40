"""Reading checkpoints. Sizes and digests are verified before any content is used."""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import psutil
from safetensors import SafetensorError
from safetensors.torch import load_file

from fleetfoot.checkpoint.tree import Json, unpack
from fleetfoot.checkpoint.version import check_version
from fleetfoot.errors import UserError, one_line
from fleetfoot.files import open_plain, read_bytes, read_json

Which: TypeAlias = Literal["last", "best"]

FORMAT = "fleetfoot checkpoint"
MOST_POINTER = 1 << 20  # bytes of last.json
DIGEST_BYTES = 32
HEAD = b'{"digest": "'
FOLDER_NAME = re.compile(r"(best-)?[0-9]{9,18}(-[0-9]{1,9})?")  # no separators, no dots: no escape


@dataclass(frozen=True)
class Loaded:
    """A checkpoint that was read and is intact. All tensors are on the CPU."""

    state: dict[str, Any]  # "replay" is absent where it was not saved or not asked for
    recipe_json: Json
    step: int  # vec steps
    score: float | None
    folder: Path

    def to_resume(self) -> dict[str, Any]:
        """The state, and what a run that goes on from here must know of its folder: the checkpoint's own name, and the
        return of the best policy there, which may be of later than this state."""
        folder = Path(os.path.abspath(self.folder))
        # Inside of a run names are the run's, even those of links.
        if folder.parent.name != "checkpoints" or not FOLDER_NAME.fullmatch(folder.name):
            folder = folder.resolve()
        if not FOLDER_NAME.fullmatch(folder.name):
            raise UserError(
                f"a run goes on only from a folder with the name that it had; rename {folder} to {self.step:09d}."
            )
        best = read_pointer(folder.parent, "best")
        found = {"best_return": best["score"]} if best and best["score"] is not None else {}
        return self.state | found | {"resumed_from": folder.name}


def sealed_recipe(path: Path | str, *, which: Which = "last") -> Json:
    """The recipe that a checkpoint was made with, as JSON; reads nothing else of it."""
    return _about(_find(Path(path), which))["recipe"]


def load(
    path: Path | str, *, which: Which = "last", with_replay: bool = True, rank: int = 0
) -> Loaded:
    """Read a checkpoint; `path` is a run folder, its checkpoints folder or one checkpoint folder.

    `which` chooses in the first two cases. `rank`: whose state to read, where several processes
    made the run. Whatever is missing, corrupt, foreign or written
    by a newer version is a UserError. Safe to call while a training writes to the same folder.
    """
    folder = _find(Path(path), which)
    try:
        return _read(folder, with_replay, rank)
    except UserError as error:
        if _find(Path(path), which) != folder:  # the training moved on while we were reading
            return load(path, which=which, with_replay=with_replay, rank=rank)
        raise UserError(f"{error}; {_advice(folder.parent, folder)}") from error


def steps(run: Path) -> dict[int, Path]:
    """The checkpoints that a run keeps, by their vec steps, without the best."""
    folder = run / "checkpoints"
    pointer = read_pointer(folder, "last")
    if pointer is None:
        raise UserError(f"{folder / 'last.json'} is corrupt; {_advice(folder)}")
    names = [*reversed(pointer["older"]), pointer["folder"]]  # of two of one step, the newer
    return {step_of(name): folder / name for name in names}


def step_of(name: str) -> int:
    """The vec step that a checkpoint is called after."""
    return int(name.removeprefix("best-").split("-")[0])


def plain_values(folder: Path, tree: str = "state") -> dict[str, Any]:
    """What one part of a checkpoint holds beside tensors, which are not read; empty where it has no such part."""
    found = _plain(_about(folder)["trees"].get(tree))
    return found if isinstance(found, dict) else {}


def _plain(node: Json) -> Any:
    match node:
        case {"dict": list(pairs)}:
            values = {
                pair[0]: _plain(pair[1])
                for pair in pairs
                if isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str)
            }
            return {key: value for key, value in values.items() if value is not None}
        case bool() | int() | float() | str():
            return node
    return None


def read_pointer(folder: Path, which: Which) -> Json:
    """What last.json or best.json says, or None where it is absent or damaged."""
    try:
        pointer = read_json(folder / f"{which}.json", most=MOST_POINTER)
    except UserError:
        return None
    match pointer:
        case {"folder": str(name), "older": list(older), "score": None | int() | float()} if all(
            isinstance(n, str) and FOLDER_NAME.fullmatch(n) for n in (name, *older)
        ):
            return pointer
    return None


def seal(body: dict[str, Json]) -> bytes:
    """JSON whose first line is the digest of all that follows. The whole file is plain JSON too.

    Later versions must keep this outer form, so that older programs can tell newer from corrupt.
    """
    rest = json.dumps(body)[1:].encode()
    return _seal_line(rest) + b"\n" + rest


def _seal_line(rest: bytes) -> bytes:
    digest = hashlib.blake2b(rest, digest_size=DIGEST_BYTES).hexdigest()
    return HEAD + digest.encode() + b'",'


def _find(path: Path, which: Which) -> Path:
    if os.path.lexists(path / "state.json"):
        return path
    folder = path / "checkpoints" if (path / "checkpoints").is_dir() else path
    pointer = read_pointer(folder, which)
    if pointer is not None:
        return folder / str(pointer["folder"])
    if (folder / f"{which}.json").exists():
        raise UserError(f"{folder / which}.json is corrupt; {_advice(folder)}")
    if whole_beside(folder):
        raise UserError(f"{folder} has no {which} checkpoint; {_advice(folder)}")
    if (path / "recipe.json").is_file():
        raise UserError(f"{path} holds no checkpoint yet.")
    raise UserError(
        f"{path} holds no checkpoint; give a run folder or one folder inside its checkpoints/"
    )


def _advice(folder: Path, broken: Path | None = None) -> str:
    other = whole_beside(folder, broken)
    return (
        f"use {other} instead, which is intact" if other else "no other checkpoint there is intact"
    )


def whole_beside(folder: Path, broken: Path | None = None) -> Path | None:
    """The newest intact checkpoint in `folder`, other than `broken`."""
    paths = [path for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else []
    for path in sorted(paths, key=lambda p: p.name.removeprefix("best-"), reverse=True):
        if FOLDER_NAME.fullmatch(path.name) and path != broken:
            try:
                return _read(path, with_replay=True).folder
            except UserError:
                continue
    return None


def _about(folder: Path) -> Json:
    """What state.json says, verified."""
    about = folder / "state.json"
    if not os.path.lexists(about):
        raise UserError(f"{folder} is incomplete: state.json is missing")
    raw = read_bytes(about)
    line, _, rest = raw.partition(b"\n")
    if not line.startswith(HEAD):
        raise UserError(f"{about} was not written by fleetfoot, or its first bytes are damaged")
    if line != _seal_line(rest):
        raise UserError(f"{about} is corrupt: its content does not match its digest")
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{about} cannot be read ({type(error).__name__})") from error
    match body:
        case {"format": str(name), "version": int(version)} if name == FORMAT:
            check_version(version, about)
    match body:
        case {
            "format": str(name),
            "step": int(),
            "score": None | int() | float(),
            "files": {"state.safetensors": _} as files,
            "recipe": dict(),
            "trees": {"state": {"dict": _}} as trees,
        } if name == FORMAT and files.keys() == {f"{key}.safetensors" for key in trees}:
            return body
    raise UserError(f"{about} does not describe a fleetfoot checkpoint")


def _read(folder: Path, with_replay: bool, rank: int = 0) -> Loaded:
    body = _about(folder)
    files, trees = body["files"], body["trees"]
    state = _read_tree(folder / "state.safetensors", files, trees["state"])
    rank_tree = f"rank-{rank}"
    if rank_tree in trees:
        of_rank = _read_tree(folder / f"{rank_tree}.safetensors", files, trees[rank_tree])
        if not isinstance(of_rank, dict):
            raise UserError(f"{folder / 'state.json'} does not describe a fleetfoot checkpoint")
        state |= of_rank
        if not with_replay:
            state.pop("replay", None)
    elif with_replay and "replay" in trees:
        state["replay"] = _read_tree(folder / "replay.safetensors", files, trees["replay"])
    if not all(isinstance(key, str) for key in state):
        raise UserError(f"{folder / 'state.json'} does not describe a fleetfoot checkpoint")
    return Loaded(state, body["recipe"], body["step"], body["score"], folder)


def _read_tree(path: Path, files: dict[str, Json], tree: Json) -> Any:
    if not os.path.lexists(path):
        raise UserError(f"{path.parent} is incomplete: {path.name} is missing")
    match files[path.name]:
        case {"bytes": int(size), "blake2b": str(expected)}:
            pass
        case _:
            raise UserError(f"{path.parent / 'state.json'} gives no size and digest of {path.name}")
    try:
        digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
        # What is larger than the machine's memory cannot be loaded.
        with open_plain(path, most=psutil.virtual_memory().total) as file:
            actual_size = os.fstat(file.fileno()).st_size
            if actual_size != size:
                raise UserError(
                    f"{path} has {actual_size:,} bytes instead of {size:,}: it is truncated"
                )
            while chunk := file.read(1 << 22):
                digest.update(chunk)
        if digest.hexdigest() != expected:
            raise UserError(f"{path} is corrupt: its content does not match its digest")
        return unpack(load_file(path), tree)
    except (OSError, ValueError, KeyError, TypeError, OverflowError, SafetensorError) as error:
        raise UserError(f"{path} cannot be read: {one_line(error)}") from error
