"""What a run was made with: versions, commit, command, hardware, start and end.

`provenance.json` of a run folder has an entry for each time that the run was started or resumed. One without an `end`
was killed. No path of the user's machine is in it, except for those that stand in the command.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import importlib.metadata
import json
import os
import platform
import shlex
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from fleetfoot.errors import Notice, UserError
from fleetfoot.files import read_json, write_text
from fleetfoot.system import usable_cores

NAME = "provenance.json"
MOST_BYTES = 1 << 20
MOST_ENTRIES = 100  # the newest; a run that is resumed every hour still has a small file
PACKAGES = (
    *("fleetfoot", "torch", "numpy", "mujoco", "gymnasium", "ray", "jax", "mujoco-mjx"),
    *("playground", "mujoco-warp", "warp-lang", "envpool", "ale-py", "stable-baselines3"),
)
Entry = dict[str, Any]


@contextlib.contextmanager
def recorded(*folders: Path) -> Iterator[None]:
    """Around a training in these run folders: writes its start, and its end."""
    entry: Entry = {"command": command(), "start": now(), **facts()}
    before = {folder: read_provenance(folder) for folder in folders}
    for folder in folders:
        _write(folder, [*before[folder], entry])
    try:
        yield
    finally:
        entry |= {"end": now(), "hardware": hardware()}  # only now torch may name the GPU
        for folder in folders:
            if (folder / NAME).exists():  # else the run has failed at its start, and left nothing
                try:
                    _write(folder, [*before[folder], entry])
                except UserError as error:  # what was learned counts
                    warnings.warn(str(error), Notice, stacklevel=3)


def read_provenance(folder: Path | str) -> list[Entry]:
    """The entries of a run folder; none where there is no such file, or none that can be read."""
    try:
        tree = read_json(Path(folder) / NAME, most=MOST_BYTES)
    except UserError:
        return []
    entries = tree.get("entries") if isinstance(tree, dict) else None
    return [one for one in entries if isinstance(one, dict)] if isinstance(entries, list) else []


def _write(folder: Path, entries: list[Entry]) -> None:
    tree = {"format": "fleetfoot provenance", "entries": entries[-MOST_ENTRIES:]}
    write_text(folder / NAME, json.dumps(tree, indent=1) + "\n")


def now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def command() -> str:
    """The command line of this process, without the place where the program is installed."""
    program = Path(sys.argv[0] or "python").name
    return shlex.join(["fleetfoot" if program == "__main__.py" else program, *sys.argv[1:]])


@functools.cache
def facts() -> Entry:
    """What does not change while a process lives."""
    return {
        "commit": commit(),
        "versions": {"python": platform.python_version(), **versions()},
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "hardware": hardware(),
    }


def versions() -> dict[str, str]:
    installed = {}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            installed[name] = importlib.metadata.version(name)
    return installed


def hardware() -> dict[str, Any]:
    return {"cpu": cpu_name(), "usable_cores": usable_cores(), "gpus": gpu_names()}


def commit(here: Path = Path(__file__).parents[1]) -> str | None:
    """The commit of the source in a folder, with `+changes` where files differ from it; None outside a repository."""
    try:
        # The second name fails where the library is installed inside of somebody else's repository.
        head, _ = _git(here, "rev-parse", "HEAD", "HEAD:./").split()
        changed = _git(here, "status", "--porcelain", "--untracked-files=no", ".")
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return f"{head}+changes" if changed else head


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def gpu_names() -> list[str]:
    """Those that torch uses; before it does, those that the driver lists. Asking torch would take memory on the GPU."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    names = []
    for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        with contextlib.suppress(OSError):
            lines = path.read_text(errors="replace").splitlines()
            names += [line.partition(":")[2].strip() for line in lines if line.startswith("Model:")]
    return names


def _git(folder: Path, *words: str) -> str:
    quiet = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    done = subprocess.run(
        ["git", *words],
        cwd=folder,
        env=quiet,
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )
    return done.stdout.strip()
