"""Killed processes of Ray, its servers too, and signals to a run on Ray. Slow: each trial starts a Ray of its own."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from fleetfoot import checkpoint
from support.extras import needs
from support.losing import lines

needs("ray")
pytestmark = pytest.mark.slow

MOST_SECONDS = 60  # from the death of a server to the end of the run


class Run:
    """A run on a Ray of its own, in a process group of its own."""

    def __init__(self, place: Path, recipe: str, *, vec_steps: int = 60) -> None:
        self.folder, self.temporary = place / "run", place / "t"
        self.temporary.mkdir()
        name = f"support.trust_recipes:{recipe}"
        surroundings = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "fleetfoot", "train", name, "--folder", str(self.folder)],
            env={**os.environ, **surroundings, "RAY_TMPDIR": str(self.temporary)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
        )
        until = time.monotonic() + 120
        while not any(line["vec_steps"] >= vec_steps for line in lines(self.folder)):
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < until
            time.sleep(0.05)

    def kill(self, *names: str) -> None:
        """SIGKILL a process whose command line begins with, or whose program is, one of these."""
        for process in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                words = process.cmdline() or [""]
                if words[0].startswith(names) or words[0].endswith(names):
                    process.kill()
                    return
        raise AssertionError(f"no process is {names}")

    def end(self, seconds: float = MOST_SECONDS) -> tuple[int, str]:
        _, err = self.process.communicate(timeout=seconds)
        assert "Traceback" not in err
        # Ray's own greeting comes before anything of ours.
        said = [line for line in err.splitlines() if not line.startswith("Token authentication")]
        assert all(line.startswith("fleetfoot: ") for line in said), err
        return self.process.returncode, "\n".join(said)

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()


@pytest.fixture
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Run]]:
    begun: list[Run] = []
    yield begun
    for run in begun:
        run.close()


def begin(runs: list[Run], recipe: str) -> Run:
    place = Path(
        os.path.realpath(f"/tmp/ff{os.getpid()}-{len(os.listdir('/tmp'))}-{random.random():.6f}")
    )
    place.mkdir()  # short: the sockets of Ray are in it
    runs.append(Run(place, recipe))
    return runs[-1]


@pytest.mark.parametrize("recipe", ["apex", "gorila"])
@pytest.mark.parametrize("server", ["raylet", "gcs_server"])
def test_a_dead_server_of_ray_ends_in_one_line(server: str, recipe: str, runs: list[Run]) -> None:
    run = begin(runs, recipe)
    run.kill(f"/{server}")
    code, err = run.end()
    assert code == 2
    assert err.count("\n") == 0
    assert f"fleetfoot resume {run.folder} continues from it" in err
    assert checkpoint.load(run.folder).step >= 50
    assert not list(run.temporary.rglob("*.log"))  # the files of Ray are gone


@pytest.mark.parametrize("recipe", ["apex", "gorila"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_all_processes_saves(number: int, recipe: str, runs: list[Run]) -> None:
    run = begin(runs, recipe)
    os.killpg(run.process.pid, number)
    code, _ = run.end()
    assert code == 130
    assert checkpoint.load(run.folder).step >= 60
    assert not list(run.temporary.rglob("*.log"))


def test_a_run_that_has_no_restarts_left_is_saved(runs: list[Run]) -> None:
    run = begin(runs, "apex_that_fails")
    code, err = run.end(120)
    assert code == 2
    last = err.splitlines()[-1]
    assert "after 10 restarts" in last
    assert "saved after" in last
    assert "the pole has left the world" in last


@pytest.mark.parametrize("trial", range(30))
def test_kills_at_random(trial: int, runs: list[Run]) -> None:
    """Workers are replaced and the run goes on; a server ends it in one line."""
    rng = random.Random(trial)
    run = begin(runs, "apex" if trial % 2 else "gorila")
    roles = ("ray::Actor", "ray::Learner", "ray::RemoteEvaluator") if trial % 2 else (
        "ray::Bundle", "ray::Shard")  # fmt: skip
    for _ in range(rng.choice([1, 2])):
        time.sleep(rng.uniform(0.0, 1.0))
        with contextlib.suppress(AssertionError):  # some have not begun
            run.kill(rng.choice(roles))
    if trial % 3 == 0:
        run.kill(rng.choice(["/raylet", "/gcs_server"]))
        assert run.end()[0] == 2
    else:
        time.sleep(1.0)
        os.killpg(run.process.pid, signal.SIGTERM)
        assert run.end()[0] in (2, 130)
    assert checkpoint.load(run.folder).step >= 50
