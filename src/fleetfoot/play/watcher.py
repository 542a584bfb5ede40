"""The newest policy of a run while it trains, beside its curves. It only reads, in a process of its own.

A new checkpoint is exported by a further process of lower priority, so that neither the training nor the picture waits
for it. A checkpoint that vanishes while it is read (the training keeps few) is left, and the next one taken.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fleetfoot import deploy
from fleetfoot.errors import UserError
from fleetfoot.log.meter import EVAL_RETURN
from fleetfoot.log.sinks import read_lines
from fleetfoot.run.folder import has_checkpoint, is_run, read_recipe

LOOK = 2.0  # seconds between two looks at the run
MOST_SKIPPED = 31  # looks
CURVES = {
    "return": (EVAL_RETURN, "episode/return"),
    "critic loss": ("critic/loss",),
    "policy loss": ("policy/loss",),
}
NEWEST = "newest checkpoint"


class Watcher:
    """Looks at a run folder. `told(policy)` hears of each new policy."""

    def __init__(self, folder: Path, imports: Sequence[str] = ()) -> None:
        if not is_run(folder):
            read_recipe(folder)  # says what it is instead
        self.folder, self.imports = folder, list(imports)
        self.told: Callable[[deploy.Policy], None] = lambda policy: None
        self.step: int | None = None  # vec steps of the policy that is shown
        self.problem = ""
        self._seen: tuple[int, int] | None = None  # the checkpoint that is shown
        self._failed: tuple[int, int] | None = None  # one that could not be exported,
        self._failures = self._skip = 0  # how often, and how many looks it is left alone
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def wait(self, say: Callable[[str], None]) -> deploy.Policy:
        """The first policy; where there is no checkpoint yet, after one line."""
        said = False
        while True:
            if has_checkpoint(self.folder):
                policy = self.newest()
                if policy is not None:
                    return policy
            if not said:
                why = self.problem or "it has no checkpoint yet"
                say(f"waiting for {self.folder}: {why}")
                said = True
            self._closed.wait(LOOK)

    def newest(self) -> deploy.Policy | None:
        """The policy of the newest checkpoint; None where it is the one already shown, or cannot be read now."""
        try:
            status = (self.folder / "checkpoints" / "last.json").stat()
        except OSError:
            return None
        stamp = (status.st_mtime_ns, status.st_size)
        if stamp == self._seen or self._rests(stamp):
            return None
        with tempfile.TemporaryDirectory(prefix="fleetfoot-watch-") as scratch:
            out = Path(scratch) / "export"
            try:
                self.export(out)
                policy = deploy.load(out)
            except UserError as error:
                self.problem = str(error)
                self._note_failure(stamp)
                return None
        self._seen, self.problem = stamp, ""
        training = policy.about.raw["training"]
        self.step = int(training["vec_steps"])
        return policy

    def _rests(self, stamp: tuple[int, int]) -> bool:
        """Whether to leave this checkpoint for now, because exporting it has failed."""
        if stamp != self._failed or not self._skip:
            return False
        self._skip -= 1
        return True

    def _note_failure(self, stamp: tuple[int, int]) -> None:
        """A checkpoint may be whole at the next look. If it is not, it is tried less and less often."""
        self._failures = self._failures + 1 if stamp == self._failed else 1
        self._failed, self._skip = stamp, min(2 ** (self._failures - 1) - 1, MOST_SKIPPED)

    def export(self, out: Path) -> None:
        """The newest checkpoint, into `out`, by a process that gives way to all others."""
        words = [sys.executable, "-m", "fleetfoot", "export", str(self.folder)]
        words += ["--which", "last", "--draw", "--out", str(out)]
        for module in self.imports:
            words += ["--import", module]
        if nice := shutil.which("nice"):
            words = [nice, "-n", "10", *words]
        made = subprocess.run(words, capture_output=True, text=True, check=False)
        if made.returncode:
            said = made.stderr.strip().splitlines() or ["the export failed"]
            raise UserError(said[-1].removeprefix("fleetfoot: ")[:300])

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._closed.wait(LOOK):
            policy = self.newest()
            if policy is not None:
                try:
                    self.told(policy)
                except UserError as error:
                    self.problem = str(error)

    def close(self) -> None:
        self._closed.set()


class CurvesPanel:
    """Return and losses of the run, read anew when the file has grown."""

    def __init__(self, gui: Any, watcher: Watcher) -> None:
        self.watcher, self._size, self._next = watcher, -1, 0.0
        with gui.add_folder("Training"):
            self.text = gui.add_markdown("")
            self.plots = {name: _plot(gui, name) for name in CURVES}
        self.refresh()

    def refresh(self) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + LOOK
        path = self.watcher.folder / "metrics.jsonl"
        with contextlib.suppress(OSError, UserError):
            size = path.stat().st_size
            if size != self._size:
                self._size = size
                self._show(read_lines(path))
        step = "none" if self.watcher.step is None else f"{self.watcher.step:,}"
        shown = f"Policy shown: after **{step}** vec steps"
        if self.watcher.problem:
            shown += f"  \n{escaped(self.watcher.problem)}"
        if self.text.content != shown:
            self.text.content = shown

    def _show(self, rows: list[dict[str, Any]]) -> None:
        for name, keys in CURVES.items():
            x, y = column(rows, keys)
            if len(x) >= 2:
                self.plots[name].data = (x, y)
            self.plots[name].visible = len(x) >= 2


def escaped(text: str) -> str:
    """Text as Markdown that shows it as it is: viser renders HTML inside Markdown, and a message may quote a file."""
    return re.sub(r"([!-/:-@\[-`{-~])", r"\\\1", " ".join(text.split()))


def column(
    rows: list[dict[str, Any]], keys: Sequence[str]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Env steps, and the first of these metrics that there is."""
    for key in keys:
        found = [
            (row["env_steps"], row[key])
            for row in rows
            if isinstance(row.get(key), (int, float))
            and isinstance(row.get("env_steps"), (int, float))
        ]
        if len(found) >= 2:
            table = np.array(found, np.float64)
            return table[:, 0], table[:, 1]
    return np.zeros(0), np.zeros(0)


def _plot(gui: Any, title: str) -> Any:
    return gui.add_uplot(
        (np.arange(2.0), np.zeros(2)),
        ({"label": "env steps"}, {"label": title, "stroke": "#1e88e5", "width": 2}),
        title=f"{title} over env steps",
        scales={"x": {"time": False}},
        height=150,
        legend={"show": False},
        axes=({"size": 26, "space": 90}, {"size": 50}),  # room for numbers like 20,000,000
        padding=(8, 36, 0, 0),
        visible=False,
    )
