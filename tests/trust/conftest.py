"""A finished run, made once, for tests that spoil a copy of it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fleetfoot import train
from support.trust_recipes import tiny


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "run"
    train(tiny(), folder)
    return folder


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A finished run that a test may spoil."""
    return Path(shutil.copytree(finished, tmp_path / "run"))
