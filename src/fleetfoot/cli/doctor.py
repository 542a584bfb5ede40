"""`fleetfoot doctor`: what this machine has, what is missing, and the line that installs it."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from fleetfoot import extras
from fleetfoot.cli.form import parse
from fleetfoot.errors import UserError, one_line


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
    missing = [finding for finding in findings if finding.missing]
    table = Table(box=None, show_header=False)
    for column in ("mark", "what", "state"):
        table.add_column(column, no_wrap=column != "state")
    for finding in findings:
        bad = "[red]no[/]" if finding.needed else "[yellow]--[/]"
        mark = bad if finding.missing else "[green]ok[/]"
        table.add_row(
            mark, Text(finding.what), Text(finding.state)
        )  # not markup: [extra] would vanish
    console = Console(highlight=False)
    console.print(table)
    if missing:
        print("\nWhat would help:")
    for (
        finding
    ) in missing:  # one line each, however narrow the terminal: they are there to be copied
        print(f"  {finding.what}: {finding.missing}")
    return 1 if any(finding.needed for finding in missing) else 0


def examine() -> list[Finding]:
    checks: list[Callable[[], list[Finding]]] = [
        python,
        hardware,
        torch_and_gpu,
        package,
        rendering,
        compiler,
        optional,
    ]
    findings = []
    for check in checks:
        try:
            findings += check()
        except (ImportError, OSError) as error:
            # The check needs a package that is missing, and `package` says which; or one that is broken.
            if not any(finding.missing for finding in package()):
                fix = "pip install --force-reinstall torch, or the package that is named here"
                findings.append(Finding(check.__name__, one_line(error), fix, needed=True))
    return findings


def python() -> list[Finding]:
    version = platform.python_version()
    old = "" if sys.version_info >= (3, 11) else "install Python 3.11 or newer"
    return [Finding("python", f"{version} on {platform.system()} {platform.machine()}", old, True)]


def hardware() -> list[Finding]:
    import psutil

    from fleetfoot.system import usable_cores

    facts = [f"{usable_cores()} usable cores"]
    facts.append(f"{psutil.virtual_memory().total / 2**30:.1f} GiB memory")
    facts.append(f"{shutil.disk_usage('.').free / 2**30:.1f} GiB free here")
    return [Finding("machine", ", ".join(facts))]


def torch_and_gpu() -> list[Finding]:
    import torch

    findings = []
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        findings.append(Finding("GPU", f"{', '.join(names)} (CUDA {torch.version.cuda})"))
    elif shutil.which("nvidia-smi") and torch.version.cuda is None:
        fix = "pip install --force-reinstall torch, from the CUDA index that pytorch.org names"
        findings.append(Finding("GPU", "there is one, but this torch was built for CPU", fix))
    else:
        findings.append(Finding("GPU", "none seen by torch; training uses the CPU"))
    return findings


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


def package() -> list[Finding]:
    """What fleetfoot itself needs, as the metadata of the package has it."""
    findings = []
    for one in extras.requirements(""):
        version = extras.installed(one)
        fix = "" if version else f"pip install {shlex.quote(str(one))}"
        findings.append(Finding(one.name, version or "missing, or too old", fix, needed=True))
    return findings


def optional() -> list[Finding]:
    """Every extra of the package, with the line that brings what is missing of it."""
    findings = []
    for name in extras.names():
        versions = {
            one.name
            + (f"[{','.join(sorted(one.extras))}]" if one.extras else ""): extras.installed(one)
            for one in extras.requirements(name)
        }
        missing = [other for other, version in versions.items() if version is None]
        if missing:
            are = f"{', '.join(missing[:3])}{' ...' if len(missing) > 3 else ''}: not installed"
            findings.append(Finding(f"[{name}]", are, extras.install_line(name)))
        else:
            there = [f"{other} {version}" for other, version in list(versions.items())[:3]]
            more = f" and {len(versions) - 3} more" if len(versions) > 3 else ""
            findings.append(Finding(f"[{name}]", f"{', '.join(there)}{more}"))
    return findings
