"""Moves of code are moves: the weights of small runs are the same, bit for bit, as when `hashes.json` was written.

A change of behaviour rewrites the hashes that it changes, in a commit of its own that says which and why:
`python -m golden.test_golden NAME ...` from the folder `tests`, or without names for all of them.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

from golden import cases

FILE = Path(__file__).with_name("hashes.json")


def stored() -> list[dict[str, Any]]:
    """For each combination of versions and processor: what it was, and the hashes made with it; null: outdated."""
    known: list[dict[str, Any]] = json.loads(FILE.read_text()) if FILE.exists() else []
    return known


def expected(name: str) -> str:
    now = cases.versions()
    for known in stored():
        if known["versions"] == now:
            if (wanted := known["hashes"][name]) is None:
                pytest.skip(f"{name} has changed since the hashes of {now} were made")
            return str(wanted)
    pytest.skip(f"the bits depend on versions and processor, and there are no hashes for {now}")


@pytest.mark.parametrize("name", [*cases.AGENTS, *cases.TOPOLOGIES, *cases.SEEDS])
def test_same_weights(name: str, tmp_path: Path) -> None:
    wanted = expected(name)
    assert cases.run(name, tmp_path / "run") == wanted


@pytest.mark.slow  # lockstep equals synchronous bit for bit: that is in the suite, in tests/topologies
@pytest.mark.usefixtures("ray")
@pytest.mark.parametrize("name", cases.ON_RAY)
def test_same_weights_on_ray(name: str, tmp_path: Path) -> None:
    wanted = expected(name)
    assert cases.run(name, tmp_path / "run") == wanted


def write(names: list[str]) -> None:
    """New hashes for this machine. Where one of them changes or is new, other machines' are outdated."""
    torch.set_num_threads(1)
    everything = [*cases.AGENTS, *cases.TOPOLOGIES, *cases.SEEDS, *cases.ON_RAY]
    sets, versions = stored(), cases.versions()
    if all(known["versions"] != versions for known in sets):
        sets.append({"versions": versions, "hashes": {}})
    mine = next(known["hashes"] for known in sets if known["versions"] == versions)
    for name in names or everything:
        with tempfile.TemporaryDirectory() as folder:
            fresh = cases.run(name, Path(folder) / "run")
        print(name, fresh[:12], flush=True)
        if mine.get(name) != fresh:
            changed = mine.get(name) is not None
            for known in sets:
                known["hashes"][name] = None if changed else known["hashes"].get(name)
        mine[name] = fresh
    for known in sets:
        known["hashes"] = {name: known["hashes"].get(name) for name in everything}
    FILE.write_text(json.dumps(sets, indent=2) + "\n")


if __name__ == "__main__":
    write(sys.argv[1:])
