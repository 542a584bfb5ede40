"""A study that is killed, over and over, ends with the tables of one that never was: `pytest -m slow tests/study`."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fleetfoot.scale.table import read_table
from fleetfoot.study import read_study

COMMAND = [sys.executable, "-m", "fleetfoot", "scale", "run"]
GRID = [
    *(
        "sac/pendulum",
        "--utd",
        "0.1",
        "0.2",
        "0.3",
        "--seeds",
        "2",
        "--device",
        "cpu",
        "--threads",
        "1",
    ),
    *(
        "--total-vec-steps",
        "400",
        "--evaluation.every-vec-steps",
        "40",
        "--evaluation.episodes",
        "2",
    ),
    *("--checkpoint.every-vec-steps", "20", "--log.every-vec-steps", "20", "--batch-size", "32"),
]


@pytest.mark.slow
def test_killed_again_and_again_it_gives_the_same_tables(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    subprocess.run([*COMMAND, *GRID, "--folder", str(whole)], check=True, timeout=200)
    kills = 0
    for share in (0.15, 0.5, 0.8):
        with subprocess.Popen([*COMMAND, *GRID, "--folder", str(killed)]) as process:
            kills += wait_until(killed, share, process)
            os.kill(process.pid, signal.SIGKILL)
    assert kills >= 2
    subprocess.run([*COMMAND, "--folder", str(killed)], check=True, timeout=200)
    assert table(whole, tmp_path / "whole.csv") == table(killed, tmp_path / "killed.csv")


SWEEP = [sys.executable, "-m", "fleetfoot", "sweep"]
SETTINGS = [
    *("fast_td3/pendulum", "--over", "agent.tau=0.05,0.1,0.2", "--over", "num_envs=8,16"),
    *("--seeds", "3", "--device", "cpu", "--threads", "1", "--total-vec-steps", "300"),
    *("--evaluation.every-vec-steps", "50", "--evaluation.episodes", "2", "--batch-size", "32"),
    *("--checkpoint.every-vec-steps", "20", "--log.every-vec-steps", "20"),
]


@pytest.mark.slow
def test_a_sweep_killed_twice_gives_the_same_table(tmp_path: Path) -> None:
    """Six configurations, three seeds each."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    subprocess.run([*SWEEP, *SETTINGS, "--folder", str(whole)], check=True, timeout=900)
    kills = 0
    for share in (0.2, 0.6):
        with subprocess.Popen([*SWEEP, *SETTINGS, "--folder", str(killed)]) as process:
            kills += wait_until(killed, share, process)
            os.kill(process.pid, signal.SIGKILL)
    assert kills == 2
    subprocess.run([*SWEEP, "--folder", str(killed)], check=True, timeout=900)
    rows = (whole / "sweep.csv").read_text()
    assert rows == (killed / "sweep.csv").read_text()
    assert rows.count("complete") == 6


def wait_until(folder: Path, share: float, process: subprocess.Popen[bytes]) -> bool:
    """Did the study get so far, while it was running?"""
    for _ in range(2400):
        time.sleep(0.25)
        if process.poll() is not None:
            return False
        if (folder / "study.json").exists():
            study = read_study(folder)
            jobs = [study.job(name) for name in study.points]
            if sum(job.done() for job in jobs) / len(jobs) >= share:
                return True
    return False


def table(study: Path, path: Path) -> list[dict[str, str]]:
    """All evaluations, without the seconds they took."""
    with read_table(study).write(path).open(newline="") as file:
        rows = [dict(row) for row in csv.DictReader(file)]
    for row in rows:
        del row["train_seconds"]
    return rows
