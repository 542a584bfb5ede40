"""A Ray that a run starts for itself: it gets no signals that are meant for the run, its death is noticed, and its
files go with it.

Ray itself waits for minutes for a server that is gone, and then ends the process with messages of its own. What is used
here of Ray's inside is looked up with care: a version that has changed it loses the service and nothing else.
"""

from __future__ import annotations

import functools
import importlib
import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from fleetfoot.errors import Program, UserError

LOOK_SECONDS = 1.0
SERVERS = ("gcs_server", "raylet")  # without either nothing works


class Died(BaseException):
    """Raised in the main thread. Not an Exception: a topology would take it for the loss of one worker."""


@contextmanager
def own_groups() -> Iterator[None]:
    """Inside, the processes of Ray start in process groups of their own. What a terminal or a scheduler sends to the
    group of the run then reaches the run, which saves with the help of a Ray that is still alive."""
    services = importlib.import_module("ray._private.services")
    popen = getattr(services, "ConsolePopen", None)
    if popen is None or os.name == "nt":
        yield
        return
    services.ConsolePopen = functools.partial(popen, process_group=0)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        services.ConsolePopen = popen  # type: ignore[attr-defined]


@contextmanager
def watched(ray: Any, folder: Path | None) -> Iterator[None]:
    """Around the use of a Ray that was started here; shuts it down at the end, and removes its files."""
    node = getattr(ray._private.worker, "_global_node", None)
    stopped = threading.Event()
    main = threading.current_thread() is threading.main_thread()
    previous = signal.signal(signal.SIGUSR2, _raise) if main else None
    threading.Thread(target=_watch, args=(node, folder, stopped), daemon=True).start()
    try:
        yield
    except Died:
        raise UserError(_line(folder)) from None
    finally:
        stopped.set()
        if main:
            signal.signal(signal.SIGUSR2, previous)
        ray.shutdown()
        _remove_files(node)


def _raise(number: int, frame: FrameType | None) -> None:
    raise Died


def _watch(node: Any, folder: Path | None, stopped: threading.Event) -> None:
    while not stopped.wait(LOOK_SECONDS):
        if not any(_gone(node, name) for name in SERVERS):
            continue
        if stopped.is_set():
            return
        if Program.is_ours:  # what Ray would still do takes minutes
            print(f"fleetfoot: {_line(folder)}", file=sys.stderr, flush=True)
            with suppress(Exception):
                node.kill_all_processes(check_alive=False, allow_graceful=False)
            _remove_files(node)
            os._exit(2)
        with suppress(OSError, ValueError):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR2)
        return


def _gone(node: Any, name: str) -> bool:
    found = getattr(node, "all_processes", {}).get(name, [])
    return any(info.process.poll() is not None for info in found)


def _line(folder: Path | None) -> str:
    go_on = f": fleetfoot resume {folder} continues from it" if folder else ""
    return (
        "Ray's servers on this machine are gone (killed, or out of memory), and with them the workers; the last "
        f"checkpoint is kept{go_on}."
    )


def _remove_files(node: Any) -> None:
    """Logs, sockets and spilled objects of this Ray."""
    with suppress(Exception):
        session = Path(node.get_session_dir_path())
        shutil.rmtree(session, ignore_errors=True)
        latest = session.parent / "session_latest"
        if latest.is_symlink() and not latest.exists():
            latest.unlink()
