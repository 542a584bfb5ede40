"""What a report tells of one run, read from its folder.

The folder may be a stranger's: links are not followed, sizes are bounded, and films must look like films.
"""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleetfoot.compare import Run, read
from fleetfoot.errors import Notice, UserError, printable
from fleetfoot.files import open_plain, read_json
from fleetfoot.log.sinks import read_lines

MOST_FILM = 32 << 20  # bytes; a film of ten seconds has about one MiB
MOST_ROWS = 60  # of a provenance
MOST_CHARACTERS = 300  # of one of its values
FILM_TYPES = {".mp4": "video/mp4", ".gif": "image/gif"}


@dataclass(frozen=True)
class Film:
    """A film in the folder `videos` of a run."""

    path: Path
    type: str  # its MIME type

    def read(self) -> bytes:
        """UserError where it is not what its name says."""
        with open_plain(self.path, most=MOST_FILM) as file:
            data = file.read(MOST_FILM)
        start = data[4:8] == b"ftyp" if self.type == "video/mp4" else data[:4] == b"GIF8"
        if not start:
            raise UserError(f"{self.path} is not a film")
        return data


@dataclass(frozen=True)
class Facts:
    """One run, as a report sees it."""

    run: Run
    lines: list[dict[str, Any]]  # of metrics.jsonl
    films: list[Film]  # the newest first
    provenance: dict[str, str]  # what the run noted of its origin, by dotted names
    command: str  # that began it; empty: it noted none
    notes: list[str]

    @property
    def metrics(self) -> set[str]:
        return {name for line in self.lines for name in line}

    def last(self, name: str) -> float | None:
        """The newest value of a metric."""
        values = (line[name] for line in reversed(self.lines) if name in line)
        return next((float(value) for value in values), None)


def read_facts(folder: Path) -> Facts:
    """UserError where the recipe cannot be read. Whatever else is damaged is left out, with a note."""
    notes: list[str] = []
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always", Notice)
        run = read(folder)
        metrics = folder / "metrics.jsonl"
        lines = read_lines(metrics) if metrics.exists() else []
    for one in heard:
        if issubclass(one.category, Notice) and (text := printable(str(one.message))) not in notes:
            notes.append(text)
    # What a report cannot place is left out: such a line has no counters.
    lines = [line for line in lines if {"env_steps", "train_seconds"} <= line.keys()]
    entries = _entries(folder, notes)
    films = list(find_films(folder))
    return Facts(run, lines, films, _origin(entries), _command(entries), notes)


def find_films(folder: Path) -> Iterator[Film]:
    videos = folder / "videos"
    if videos.is_symlink() or not videos.is_dir():
        return
    paths = [path for path in videos.iterdir() if path.suffix.lower() in FILM_TYPES]
    whole = [
        path for path in paths if not path.name.startswith(".")
    ]  # not one that is being written
    plain = [path for path in whole if path.is_file() and not path.is_symlink()]
    for path in sorted(plain, key=lambda path: (path.stat().st_mtime, path.name), reverse=True):
        yield Film(path, FILM_TYPES[path.suffix.lower()])


def _entries(folder: Path, notes: list[str]) -> list[Any]:
    """What a run noted at each of its starts."""
    path = folder / "provenance.json"
    if not path.exists():
        return []
    try:
        tree = read_json(path, most=1 << 20)
    except UserError as error:
        notes.append(f"{path} is left out: {printable(str(error))}")
        return []
    entries = tree.get("entries") if isinstance(tree, dict) else None
    return [one for one in entries if isinstance(one, dict)] if isinstance(entries, list) else []


def _origin(entries: list[Any]) -> dict[str, str]:
    """The newest entry, and how often the run was started."""
    if not entries:
        return {}
    try:
        rows = list(_flat({k: v for k, v in entries[-1].items() if k != "command"}))
    except RecursionError:
        return {}
    starts = [("started", f"{len(entries)} times")] if len(entries) > 1 else []
    return dict([*starts, *rows][:MOST_ROWS])


def _command(entries: list[Any]) -> str:
    """What began the run, if it is a command of this library. Every word is quoted, whatever a stranger wrote there."""
    noted = entries[0].get("command") if entries else None
    try:
        words = shlex.split(noted) if isinstance(noted, str) else []
    except ValueError:
        return ""
    text = printable(shlex.join(_without_folder(words))).replace("\n", "?")
    return text if words[:1] == ["fleetfoot"] and len(text) < 4000 else ""


def _without_folder(words: list[str]) -> list[str]:
    """Without --folder: there is a run in that one."""
    kept = [word for word in words if not word.startswith("--folder=")]
    if "--folder" in kept:
        place = kept.index("--folder")
        del kept[place : place + 2]
    return kept


def _flat(tree: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Every value of a JSON tree by its dotted name; a list of words is one value."""
    if isinstance(tree, dict):
        for name, value in tree.items():
            yield from _flat(value, f"{path}.{name}" if path else str(name))
    elif isinstance(tree, list) and any(isinstance(value, (dict, list)) for value in tree):
        for number, value in enumerate(tree):
            yield from _flat(value, f"{path}.{number}")
    elif tree not in (None, "", []):
        text = " ".join(map(str, tree)) if isinstance(tree, list) else str(tree)
        yield printable(path)[:MOST_CHARACTERS], printable(text)[:MOST_CHARACTERS]
