from __future__ import annotations

from pathlib import Path

import pytest

from fleetfoot import train
from support.trust_recipes import tiny


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of the tensor pendulum, to read only."""
    folder = tmp_path_factory.mktemp("play") / "run"
    train(tiny(), folder)
    return folder
