"""The `fleetfoot` command in a child of the test process: as separate as a program of its own, without the seconds that
importing torch takes."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fleetfoot.cli.main import COMMANDS, main
from fleetfoot.run.folder import load_own_parts

LONGEST = 240.0  # seconds, also on a busy machine; who takes longer hangs


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    code: int  # below 0: by this signal
    out: str
    err: str
    hung: bool = False

    def assert_clean(self, *codes: int) -> None:
        """No traceback, no crash, no hang; what it says on standard error is one line each time."""
        assert not self.hung, self
        assert self.code in (codes or (0, 2, 130)), self
        assert "Traceback" not in self.err, self.err
        strangers = [line for line in self.err.splitlines() if not line.startswith("fleetfoot: ")]
        assert not strangers, self.err
        if self.code == 2:
            assert self.err, self


class Child:
    """A command that is running, in a process group of its own."""

    def __init__(self, place: Path, act: Callable[[], Any], *, stdout: int | None = None) -> None:
        self.files = [place / f".{name}-{time.monotonic_ns()}" for name in ("out", "err")]
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            self._become(act, stdout)
        with contextlib.suppress(OSError):
            os.setpgid(self.pid, self.pid)

    def _become(self, act: Callable[[], Any], stdout: int | None) -> None:
        code = 70
        sys.settrace(None)  # nobody collects what coverage would measure here
        threading.settrace(None)
        # Where OpenMP's threads have run in the parent, the child would wait for them for ever.
        torch.set_num_threads(1)
        torch.set_num_threads = lambda nthreads: None
        try:
            os.setpgid(0, 0)
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            out = os.open(self.files[0], flags) if stdout is None else stdout
            os.dup2(out, 1)
            os.dup2(os.open(self.files[1], flags), 2)
            sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
            sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
            warn_as_usual()
            code = 0
            try:
                act()
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else 1
        except BaseException:
            traceback.print_exc()
            code = 1
        finally:
            with contextlib.suppress(OSError):
                sys.stdout.flush()
            os._exit(code)

    def ended(self) -> bool:
        done = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return done is not None

    def wait(self, seconds: float = LONGEST) -> Outcome:
        until = time.monotonic() + seconds
        while not self.ended() and time.monotonic() < until:
            time.sleep(0.005)
        hung = not self.ended()
        with contextlib.suppress(OSError):
            os.killpg(self.pid, signal.SIGKILL)
        _, status = os.waitpid(self.pid, 0)
        texts = [file.read_text() if file.exists() else "" for file in self.files]
        for file in self.files:
            file.unlink(missing_ok=True)
        return Outcome(os.waitstatus_to_exitcode(status), texts[0], texts[1], hung)

    def until(self, happened: Callable[[], bool], seconds: float = LONGEST) -> None:
        end = time.monotonic() + seconds
        while not happened():
            assert not self.ended(), self.wait()
            assert time.monotonic() < end
            time.sleep(0.005)

    def signal(self, number: int, *, group: bool = True) -> None:
        (os.killpg if group else os.kill)(self.pid, number)


def warn_as_usual() -> None:
    """As without pytest, which collects warnings."""

    def show(message: Any, category: Any, filename: str, lineno: int, *rest: Any) -> None:
        sys.stderr.write(warnings.formatwarning(message, category, filename, lineno))

    warnings.showwarning = show  # type: ignore[assignment]
    warnings.resetwarnings()
    for category in (DeprecationWarning, PendingDeprecationWarning, ResourceWarning, ImportWarning):
        warnings.simplefilter("ignore", category)
    # Other tests of this process may have imported JAX, which warns of every fork.
    warnings.filterwarnings("ignore", message=r"os\.fork\(\) was called")


def preload() -> None:
    """Import everything once, in the parent."""
    for module, _ in COMMANDS.values():
        importlib.import_module(module)
    importlib.import_module("fleetfoot.api")
    importlib.import_module("torch.utils.tensorboard")
    importlib.import_module("torch._dynamo")  # by the first optimiser
    load_own_parts()


def start(place: Path, *args: str, stdout: int | None = None) -> Child:
    preload()
    return Child(place, lambda: main(list(args)), stdout=stdout)


def command(place: Path, *args: str) -> Outcome:
    return start(place, *args).wait()
