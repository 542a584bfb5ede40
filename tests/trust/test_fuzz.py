"""Damaged files, crafted recipes, crafted checkpoints, kills: no traceback, no crash, no hang, no wrong weight.

Every trial is a process of its own and is made from its number. The suite makes a few of each kind; all of them are
`pytest -m slow tests/trust`, in pieces.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import resource
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetfoot import UserError, api, checkpoint, train
from fleetfoot.checkpoint import Checkpoint
from fleetfoot.checkpoint.read import read_pointer
from fleetfoot.checkpoint.tree import unpack
from fleetfoot.cli.main import as_printed
from fleetfoot.config import from_json, to_json
from fleetfoot.log.sinks import _line
from fleetfoot.run.folder import has_checkpoint, load_own_parts
from fleetfoot.run.stored import read_stored, write_stored
from support.forked import Child, Outcome, preload
from support.trust_recipes import tiny
from trust.mutate import changed_json, changed_state, damage
from trust.readers import READERS, digest

MEMORY = 8 << 30  # bytes that a trial may ask for beyond those it begins with


def trial(place: Path, act: Callable[[], Any]) -> Outcome:
    """Like the command: a UserError is a line and exit code 2."""

    def attempt() -> None:
        warnings.formatwarning = as_printed
        resource.setrlimit(resource.RLIMIT_AS, (_memory() + MEMORY,) * 2)
        try:
            print(act())
        except UserError as error:
            print(f"fleetfoot: {error}", file=sys.stderr)
            sys.exit(2)

    return Child(place, attempt).wait()


def _memory() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], tuple[Path, str]]]:
    """The folder of a reader, and what it reads where nothing is damaged."""
    preload()
    place = tmp_path_factory.mktemp("made")

    @cache
    def folder_of(make: Callable[[Path], Any]) -> Path:
        folder = place / make.__name__
        make(folder)
        return folder

    @cache
    def make(name: str) -> tuple[Path, str]:
        reader = READERS[name]
        for late in ("rliable.library", "jinja2") if name == "report" else ():
            importlib.import_module(late)  # once here, and not in every child
        folder = folder_of(reader.make)
        copy = Path(shutil.copytree(folder, place / f"{name}-whole"))
        outcome = trial(place, lambda: reader.read(copy))
        outcome.assert_clean(0)
        return folder, outcome.out

    yield make
    shutil.rmtree(place)


def corruption(name: str, number: int, made: Any, place: Path) -> int:
    """One file of a folder is damaged: the reader says so, or reads what is right."""
    whole, right = made(name)
    rng = Random(f"{name} {number}")
    folder = Path(shutil.copytree(whole, place / f"{name}-{number}"))
    what = damage(rng, folder, READERS[name].files)
    outcome = trial(place, lambda: READERS[name].read(folder))
    try:
        outcome.assert_clean(0, 2)
        assert outcome.code == 2 or outcome.out == right
    except AssertionError as error:
        raise AssertionError(f"{name} {number}: {what}: {error}") from error
    shutil.rmtree(folder)
    return outcome.code


def crafted_recipe(number: int, made: Any, place: Path) -> int:
    """A recipe that no command wrote, with the right digest, and in half of the trials in the checkpoint too."""
    rng = Random(f"recipe {number}")
    folder = Path(shutil.copytree(made("resume")[0], place / f"recipe-{number}"))
    tree, what = changed_json(rng, to_json(tiny()))
    write_stored(folder / "recipe.json", "recipe", tree if isinstance(tree, dict) else {})
    if rng.random() < 0.5:
        seal_again(folder, checkpoint.load(folder).state, tree)
    reader = rng.choice(["resume", "evaluate", "load_policy"])
    return checked(place, folder, reader, f"recipe {number}: {what}")


def crafted_checkpoint(number: int, made: Any, place: Path) -> int:
    """A checkpoint with the right digests whose content no run wrote."""
    rng = Random(f"checkpoint {number}")
    folder = Path(shutil.copytree(made("resume")[0], place / f"checkpoint-{number}"))
    loaded = checkpoint.load(folder)
    state, what = changed_state(rng, loaded.state)
    seal_again(folder, state, loaded.recipe_json)
    reader = rng.choice(["resume", "resume", "resume", "load_policy"])
    return checked(place, folder, reader, f"checkpoint {number}: {what}")


def crafted_fit(number: int, made: Any, place: Path) -> int:
    """The laws of a study with the right digest whose content no fit wrote."""
    rng = Random(f"fit {number}")
    folder = Path(shutil.copytree(made("scale fit")[0], place / f"fit-{number}"))
    path = folder / "fit.json"
    tree, what = changed_json(rng, read_stored(path, "fit"))
    write_stored(path, "fit", tree if isinstance(tree, dict) else {})
    return checked(place, folder, "scale fit", f"fit {number}: {what}")


def seal_again(folder: Path, state: dict[Any, Any], recipe: Any) -> None:
    shutil.rmtree(folder / "checkpoints")
    Checkpoint(folder / "checkpoints").save(state, recipe_json=recipe, step=20)


def checked(place: Path, folder: Path, reader: str, what: str) -> int:
    outcome = trial(place, lambda: READERS[reader].read(folder))
    try:
        outcome.assert_clean(0, 2)
    except AssertionError as error:
        raise AssertionError(f"{reader}, {what}: {error}") from error
    shutil.rmtree(folder)
    return outcome.code


def kill_at(operation: int) -> None:
    """From now on: the so-many-th operation on a file kills this process."""
    left = [operation]
    names = ("open", "mkdir", "replace", "rename", "rmdir", "fsync", "unlink", "scandir")
    for module, name in [*((os, name) for name in names), (io, "open")]:
        true = getattr(module, name)

        def change(*args: Any, true: Any = true, **kwargs: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), 9)
            return true(*args, **kwargs)

        setattr(module, name, change)


@cache
def right_weights(place: Path) -> str:
    train(tiny(), place / "never-killed")
    return digest(checkpoint.load(place / "never-killed").state["agent"])


def killed(number: int, place: Path) -> int:
    """Killed at a file operation, perhaps again while it is resumed, and resumed: the same bits."""
    preload()
    rng = Random(f"kill {number}")
    folder = place / f"kill-{number}"

    def go_on(operation: int | None) -> None:
        if operation:
            kill_at(operation)
        begun = has_checkpoint(folder)
        if (folder / "recipe.json").exists():
            # An evaluation may have saved the best before anything else was saved.
            api.resume(folder, restart=not begun, delete_checkpoints=not begun)
        else:
            shutil.rmtree(folder, ignore_errors=True)
            train(tiny(), folder)

    kills = 0
    for _ in range(rng.choice([1, 1, 2])):
        operation = rng.randrange(1, 90)
        outcome = Child(place, lambda operation=operation: go_on(operation)).wait()  # type: ignore[misc]
        assert outcome.code in (0, -9), outcome
        kills += outcome.code == -9
    if kills and not (has_checkpoint(folder) and checkpoint.load(folder).step == 20):
        outcome = trial(place, lambda: go_on(None))
        outcome.assert_clean(0)
    assert digest(checkpoint.load(folder).state["agent"]) == right_weights(place), number
    shutil.rmtree(folder)
    return kills


@pytest.mark.parametrize("name", READERS)
def test_damaged_files(name: str, made: Any, tmp_path: Path) -> None:
    count = 2 if name == "report" else 6  # a page takes as long as all the others; more are below
    codes = [corruption(name, number, made, tmp_path) for number in range(count)]
    assert set(codes) <= {0, 2}


def test_crafted_recipes(made: Any, tmp_path: Path) -> None:
    assert 2 in [crafted_recipe(number, made, tmp_path) for number in range(20)]


def test_crafted_checkpoints(made: Any, tmp_path: Path) -> None:
    assert 2 in [crafted_checkpoint(number, made, tmp_path) for number in range(20)]


def test_crafted_fits(made: Any, tmp_path: Path) -> None:
    assert 2 in [crafted_fit(number, made, tmp_path) for number in range(20)]


def test_kills_at_file_operations(tmp_path: Path) -> None:
    assert sum(killed(number, tmp_path) for number in range(4)) > 0


PIECES = 10


@pytest.mark.slow
@pytest.mark.parametrize("piece", range(PIECES))
@pytest.mark.parametrize("name", READERS)
def test_damaged_files_in_full(name: str, piece: int, made: Any, tmp_path: Path) -> None:
    size = 1000 // len(READERS) // PIECES + 1
    for number in range(piece * size, (piece + 1) * size):
        corruption(name, 1000 + number, made, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("piece", range(PIECES))
@pytest.mark.parametrize("kind", [crafted_recipe, crafted_checkpoint, crafted_fit])
def test_crafted_in_full(kind: Any, piece: int, made: Any, tmp_path: Path) -> None:
    size = 1000 // PIECES
    for number in range(piece * size, (piece + 1) * size):
        kind(1000 + number, made, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("piece", range(PIECES))
def test_kills_in_full(piece: int, tmp_path: Path) -> None:
    size = 100 // PIECES
    assert sum(killed(1000 + piece * size + number, tmp_path) for number in range(size)) > 0


# Whatever JSON there is, a reader returns something or raises a UserError.

KEYS = st.sampled_from(["part", "dict", "tensor", "float", "x", "folder", "older"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(KEYS | st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=100, deadline=None)
@given(JSON)
def test_any_json_as_a_part(tree: Any) -> None:
    load_own_parts()
    with contextlib.suppress(UserError, TypeError):
        from_json(tree)


@settings(max_examples=100, deadline=None)
@given(JSON)
def test_any_json_as_a_state(tree: Any) -> None:
    with contextlib.suppress(ValueError):
        unpack({}, tree)


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=60) | JSON.map(lambda tree: str(tree).encode()))
def test_any_bytes_as_a_line_and_a_pointer(tmp_path_factory: Any, data: bytes) -> None:
    _line(data)
    folder = tmp_path_factory.mktemp("pointer")
    (folder / "last.json").write_bytes(data)
    read_pointer(folder, "last")
