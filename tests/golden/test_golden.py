"""Moves of code are moves: the weights of small runs are the same, bit for bit, as when `hashes.json` was written.

A change of behaviour rewrites the hashes that it changes, in a commit of its own that says which and why:
`python -m golden.test_golden NAME ...` from the folder `tests`, or without names for all of them.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import pytest
import torch

from golden import cases

FILE = Path(__file__).with_name("hashes.json")


def stored() -> dict[str, dict[str, str]]:
    known: dict[str, dict[str, str]] = json.loads(FILE.read_text())
    return known


def same_bits_expected() -> None:
    then, now = stored()["versions"], cases.versions()
    if then != now:
        other = [
            f"{name} {now[name]} (made with {then[name]})"
            for name in then
            if then[name] != now[name]
        ]
        pytest.skip(f"the bits depend on {', '.join(other)}")


@pytest.mark.parametrize("name", [*cases.AGENTS, *cases.TOPOLOGIES, *cases.SEEDS])
def test_same_weights(name: str, tmp_path: Path) -> None:
    same_bits_expected()
    assert cases.run(name, tmp_path / "run") == stored()["hashes"][name]


@pytest.mark.slow  # lockstep equals synchronous bit for bit: that is in the suite, in tests/topologies
@pytest.mark.usefixtures("ray")
@pytest.mark.parametrize("name", cases.ON_RAY)
def test_same_weights_on_ray(name: str, tmp_path: Path) -> None:
    same_bits_expected()
    assert cases.run(name, tmp_path / "run") == stored()["hashes"][name]


def write(names: list[str]) -> None:
    torch.set_num_threads(1)
    everything = [*cases.AGENTS, *cases.TOPOLOGIES, *cases.SEEDS, *cases.ON_RAY]
    hashes = stored()["hashes"] if FILE.exists() else {}
    for name in names or everything:
        with tempfile.TemporaryDirectory() as folder:
            hashes[name] = cases.run(name, Path(folder) / "run")
        print(name, hashes[name][:12], flush=True)
    ordered = {name: hashes[name] for name in everything if name in hashes}
    FILE.write_text(json.dumps({"versions": cases.versions(), "hashes": ordered}, indent=2) + "\n")


if __name__ == "__main__":
    write(sys.argv[1:])
