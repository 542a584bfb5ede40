"""Where metrics go: a file of JSON lines, TensorBoard. Those of other services are in `trackers`."""

from __future__ import annotations

import contextlib
import json
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from fleetfoot.config import flat_fields
from fleetfoot.errors import Notice, one_line, writing
from fleetfoot.files import (
    MOST_LOG,
    open_append,
    plain_folder,
    read_bytes,
    replacing,
)
from fleetfoot.log.meter import EVAL_RETURN, Counters, Sink

MOST_VALUE = 1e300  # of a metric; beyond it means and spreads overflow


class JsonLines:
    """One JSON object per flush, counters and metrics side by side, safe on disk line by line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: IO[str] | None = None

    def write(self, counters: Counters, metrics: Mapping[str, float]) -> None:
        line = json.dumps({**metrics, **asdict(counters)}, allow_nan=False) + "\n"
        with writing(self.path):
            if self._file is None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._file = open_append(self.path)
            self._file.write(line)
            self._file.flush()

    def truncate_after(self, vec_steps: int) -> None:
        """Drop the lines after a checkpoint, and a last line that a kill cut short."""
        self.close()
        if not self.path.exists():
            return
        lines = [json.dumps(line) + "\n" for line in read_lines(self.path, vec_steps)]
        with replacing(self.path) as hidden, hidden.open("x", encoding="utf-8") as file:
            file.writelines(lines)
            file.flush()
            os.fsync(file.fileno())

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def read_lines(path: Path, until_vec_steps: int | None = None) -> list[dict[str, Any]]:
    """The whole lines of a metrics.jsonl, in order, optionally only up to a vec step. Others are named in a notice."""
    lines, damaged = [], []
    for number, raw in enumerate(read_bytes(path, most=MOST_LOG).splitlines(), start=1):
        line = _line(raw)
        if line is None:
            damaged.append(number)
        else:
            lines.append(line)
    if damaged:
        some = ", ".join(map(str, damaged[:5])) + (", ..." if len(damaged) > 5 else "")
        noun = "line is" if len(damaged) == 1 else "lines are"
        text = f"{path}: {len(damaged)} damaged {noun} left out ({some})"
        warnings.warn(text, Notice, stacklevel=2)
    return [x for x in lines if until_vec_steps is None or x["vec_steps"] <= until_vec_steps]


def _line(raw: bytes) -> dict[str, Any] | None:
    """One line, or None where it is damaged: all values are finite numbers, and the counters are there."""
    try:
        line = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    if not isinstance(line, dict) or type(line.get("vec_steps")) is not int:
        return None
    for value in line.values():
        if type(value) not in (int, float) or not -MOST_VALUE < value < MOST_VALUE:
            return None
    return line


class Dispensable:
    """A sink that a run can do without: if it fails, that is said once, and the run goes on."""

    def __init__(self, name: str, make: Callable[[], Sink]) -> None:
        self.name = name
        self.sink: Sink | None = None
        with self._left_out_if_it_fails():
            self.sink = make()

    def write(self, counters: Counters, metrics: Mapping[str, float]) -> None:
        if self.sink is not None:
            with self._left_out_if_it_fails():
                self.sink.write(counters, metrics)

    def close(self) -> None:
        if self.sink is not None:
            with self._left_out_if_it_fails():
                self.sink.close()

    @contextlib.contextmanager
    def _left_out_if_it_fails(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.sink = None
            warnings.warn(f"{self.name} is left out: {one_line(error)}", Notice, stacklevel=3)


class TensorBoard:
    """Event files; the horizontal axis is env steps, which compares runs of any number of envs."""

    def __init__(
        self, folder: Path, *, resumed: Counters | None = None, recipe_json: Any = None
    ) -> None:
        # Imported here: it takes seconds, and many runs do without.
        from torch.utils.tensorboard import SummaryWriter

        # Readers hide earlier events from the purge step on.
        purge = None if resumed is None else resumed.env_steps + 1
        self.folder = folder
        with writing(folder):
            plain_folder(folder)
            self._writer = SummaryWriter(str(folder), purge_step=purge)
            if recipe_json is not None and resumed is None:
                self._add_recipe(recipe_json)

    def write(self, counters: Counters, metrics: Mapping[str, float]) -> None:
        rest = {"train/updates": counters.updates, "train/seconds": counters.train_seconds}
        with writing(self.folder):  # what its own thread could not write is raised here
            for name, value in {**metrics, **rest}.items():
                self._writer.add_scalar(name, value, counters.env_steps)

    def _add_recipe(self, recipe_json: Any) -> None:
        """As hyper-parameters, by which TensorBoard sorts and filters runs, and as a text to read."""
        from torch.utils.tensorboard.summary import hparams

        plain = {
            name: value if isinstance(value, (bool, int, float, str)) else json.dumps(value)
            for name, value in flat_fields(recipe_json)
        }
        summaries = hparams(plain, {EVAL_RETURN: 0.0})  # type: ignore[no-untyped-call]
        for summary in summaries[:2]:  # the third says that the run has ended
            self.add_summary(summary, None)
        text = json.dumps(recipe_json, indent=2)
        self._writer.add_text("recipe", "\n".join(f"    {line}" for line in text.splitlines()))

    def add_summary(self, summary: Any, env_steps: int | None) -> None:
        with writing(self.folder):
            assert self._writer.file_writer is not None
            self._writer.file_writer.add_summary(summary, env_steps)

    def close(self) -> None:
        with writing(self.folder):
            self._writer.close()
