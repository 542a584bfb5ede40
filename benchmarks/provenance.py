"""What a measurement was made with: hardware, versions, commit and time. Every result is written beside it."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

from fleetfoot.system import usable_cores

PACKAGES = (
    "fleetfoot",
    "torch",
    "numpy",
    "mujoco",
    "gymnasium",
    "stable-baselines3",
    "jax",
    "mujoco-mjx",
    "playground",
    "warp-lang",
    "envpool",
)


def provenance() -> dict[str, Any]:
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "hardware": {
            "cpu": cpu_name(),
            "usable_cores": usable_cores(),
            # Others' work on the same cores slows a measurement; this is how a reader can tell.
            "load_before": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
            "gpus": gpus,
        },
        "versions": {"python": platform.python_version(), **versions()},
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }


def versions() -> dict[str, str]:
    installed = {}
    for name in PACKAGES:
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return installed


def commit() -> str | None:
    """The commit of the source that runs, with `+changes` where files differ from it; None outside a repository."""
    here = Path(__file__).parent
    try:
        head = _git(here, "rev-parse", "HEAD")
        changed = _git(here, "status", "--porcelain", "--untracked-files=no", ".")
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{head}+changes" if changed else head


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def write_result(path: Path, name: str, arguments: dict[str, Any], result: Any, made: Any) -> Path:
    """One JSON file per measurement: what was asked, with what, and what came out."""
    path.parent.mkdir(parents=True, exist_ok=True)
    body = {"benchmark": name, "arguments": arguments, "provenance": made, "result": result}
    hidden = path.with_name(f".{path.name}.partial")
    hidden.write_text(json.dumps(body, indent=2, default=str) + "\n")
    os.replace(hidden, path)
    return path


def _git(folder: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", *words], cwd=folder, capture_output=True, text=True, timeout=20, check=True
    )
    return done.stdout.strip()
