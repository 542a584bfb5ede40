"""`fleetfoot doctor`: what this machine has, what is missing, and the line that installs it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from fleetfoot.cli.form import parse
from fleetfoot.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Options:
    """What this machine has, what is missing and how to install it."""


class Finding(NamedTuple):
    """One line of the report."""

    what: str
    state: str  # what was found
    missing: str = ""  # what to do about it, where something is missing
    needed: bool = False  # training is impossible without it


def run(args: list[str], imports: list[str]) -> int:
    parse(Options, args, "fleetfoot doctor")
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    findings = examine()
    table = Table(box=None, show_header=False)
    for column in ("mark", "what", "state"):
        table.add_column(column, no_wrap=column != "state")
    for finding in findings:
        mark = (
            "[green]ok[/]"
            if not finding.missing
            else "[red]no[/]"
            if finding.needed
            else "[yellow]--[/]"
        )
        note = f"{finding.state}\n-> {finding.missing}" if finding.missing else finding.state
        table.add_row(mark, finding.what, Text(note))  # not markup: [extra] would vanish
    Console(highlight=False).print(table)
    return 1 if any(finding.missing and finding.needed for finding in findings) else 0


def examine() -> list[Finding]:
    checks: list[Callable[[], list[Finding]]] = [
        python,
        hardware,
        torch_and_gpu,
        simulators,
        rendering,
        compiler,
        extras,
    ]
    return [finding for check in checks for finding in check()]


def python() -> list[Finding]:
    version = platform.python_version()
    old = "" if sys.version_info >= (3, 11) else "install Python 3.11 or newer"
    return [Finding("python", f"{version} on {platform.system()} {platform.machine()}", old, True)]


def hardware() -> list[Finding]:
    from fleetfoot.system import usable_cores

    facts = [f"{usable_cores()} usable cores"]
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        facts.append(f"{memory / 2**30:.1f} GiB memory")
    facts.append(f"{shutil.disk_usage('.').free / 2**30:.1f} GiB free here")
    return [Finding("machine", ", ".join(facts))]


def torch_and_gpu() -> list[Finding]:
    import torch

    findings = [Finding("torch", torch.__version__, needed=True)]
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        findings.append(Finding("GPU", f"{', '.join(names)} (CUDA {torch.version.cuda})"))
    elif shutil.which("nvidia-smi") and torch.version.cuda is None:
        fix = "pip install --force-reinstall torch, from the CUDA index that pytorch.org names"
        findings.append(Finding("GPU", "there is one, but this torch was built for CPU", fix))
    else:
        findings.append(Finding("GPU", "none seen by torch; training uses the CPU"))
    return findings


def simulators() -> list[Finding]:
    return [
        _package(name, name, f"pip install {name}", needed=True) for name in ("mujoco", "gymnasium")
    ]


def rendering() -> list[Finding]:
    from fleetfoot.envs import render

    try:
        return [Finding("rendering", f"MuJoCo draws without a screen ({render.backend()})")]
    except UserError as why:
        return [Finding("rendering", "no MuJoCo videos", str(why))]


def compiler() -> list[Finding]:
    """What torch.compile needs (`--execution compiled`)."""
    names = [os.environ.get("CXX", ""), "g++", "c++", "clang++", "cl"]
    compiler_path = next((path for name in names if name and (path := shutil.which(name))), None)
    if compiler_path:
        return [Finding("compiler", f"{compiler_path}, for --execution compiled")]
    return [Finding("compiler", "no C++ compiler; nothing is compiled", "apt-get install g++")]


def extras() -> list[Finding]:
    findings = [
        _package("tensorboard", "tensorboard", "pip install tensorboard", needed=True),
        _package("video encoder", "imageio-ffmpeg", "pip install 'imageio[ffmpeg]'", needed=True),
    ]
    optional = [
        ("Atari games", "ale-py", "atari"),
        ("Box2D", "box2d", "box2d"),
        ("EnvPool", "envpool", "envpool"),
        ("robots on a GPU", "mujoco-warp", "warp"),
        ("Weights & Biases", "wandb", "wandb"),
        ("Ray", "ray", "ray"),
        ("plots", "matplotlib", "plot"),
        ("export", "onnxscript", "export"),
        ("comparisons", "rliable", "compare"),
        ("scaling laws", "scikit-learn", "scale"),
        ("searches", "optuna", "sweep"),
        ("YAML recipes", "pyyaml", "yaml"),
        ("bench peers", "stable-baselines3", "bench"),
    ]
    for what, package, extra in optional:
        findings.append(_package(what, package, f"pip install 'fleetfoot[{extra}]'"))
    return findings


def _package(what: str, package: str, fix: str, needed: bool = False) -> Finding:
    try:
        return Finding(what, f"{package} {importlib.metadata.version(package)}", needed=needed)
    except importlib.metadata.PackageNotFoundError:
        return Finding(what, f"{package} is not installed", fix, needed)
