"""What is missing of an extra, and the line that brings it."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from fleetfoot import extras
from fleetfoot.errors import UserError

METADATA = {
    "fleetfoot": [
        "numpy>=2",
        "here[more]>=1; extra == 'both'",
        "absent<3,>=2; extra == 'both'",
        "fleetfoot[inner]; extra == 'both'",
        "elsewhere; extra == 'both' and sys_platform == 'nowhere'",
        "old>=2; extra == 'inner'",
    ],
    "here": ["inside; extra == 'more'", "numpy"],
}
VERSIONS = {"numpy": "2.1", "here": "1.5", "old": "1.0"}


@pytest.fixture(autouse=True)
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name not in VERSIONS:
            raise importlib.metadata.PackageNotFoundError(name)
        return VERSIONS[name]

    monkeypatch.setattr(importlib.metadata, "requires", lambda name: METADATA.get(name))
    monkeypatch.setattr(importlib.metadata, "version", version)


def test_an_extra_includes_what_its_extras_bring() -> None:
    assert [one.name for one in extras.requirements("both")] == ["here", "absent", "old"]
    assert [one.name for one in extras.requirements()] == ["numpy"]


def test_the_line_names_what_is_missing_too_old_or_without_its_own_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    line = "pip install 'here[more]>=1' 'absent<3,>=2' 'old>=2'"
    assert extras.install_line("both") == line
    for name in ("inside", "absent"):
        monkeypatch.setitem(VERSIONS, name, "2.0")
    assert extras.install_line("both") == "pip install 'old>=2'"
    monkeypatch.setitem(VERSIONS, "old", "2.0")
    assert extras.install_line("both") == line, (
        "nothing seems to be missing, and yet it was asked for"
    )


def test_an_extra_that_the_installed_package_does_not_know() -> None:
    assert extras.install_line("newer") == "pip install -e '.[newer]' (in a clone of fleetfoot)"
    assert extras.installed(Requirement("nothing-like-this")) is None


def test_one_line_for_several_extras_and_nothing_is_imported() -> None:
    METADATA["fleetfoot"].append("here[more]>=1; extra == 'third'")
    try:
        assert extras.install_line("inner", "third") == "pip install 'old>=2' 'here[more]>=1'"
        with pytest.raises(
            UserError, match=r"^it needs packages .* \(no_such_module\): pip install"
        ):
            extras.check("it", ("json", "no_such_module"), "inner")
    finally:
        METADATA["fleetfoot"].pop()
    assert extras.install_line("inner", "unknown").startswith("pip install -e '.[inner,unknown]'")
    extras.check("it", ("json",), "inner")


def test_commands_are_those_of_the_running_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for folder in ("env/bin", "elsewhere"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "pip").touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "env/bin/python"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "elsewhere"))
    assert extras.program("pip") == "env/bin/pip", "another environment's comes first"
    assert extras.install_line("inner").startswith("env/bin/pip install ")
    assert extras.program("no-such-command") == "no-such-command"
    monkeypatch.setenv("PATH", str(tmp_path / "env/bin"))
    assert extras.program("pip") == "pip", "its environment is active"


def test_a_package_that_cannot_be_imported_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "half_there.py").write_text("import nowhere_at_all")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match=r"it needs that \(.*nowhere_at_all'\): pip install"):
        extras.load("half_there", "both", "it needs that")
    with pytest.raises(UserError, match="it needs that: pip install"):
        extras.load("nowhere_at_all.inside", "both", "it needs that")
