"""Signals, closed pipes and killed processes: a run ends with a saved state, or says why not, and never with code 0
when it is not done."""

from __future__ import annotations

import os
import random
import re
import signal
import time
from pathlib import Path

import psutil
import pytest

from fleetfoot import checkpoint
from fleetfoot.run.folder import has_checkpoint
from support.forked import Child, command, start
from support.losing import lines


def begin(place: Path, recipe: str, *, vec_steps: int = 15) -> tuple[Child, Path]:
    """A run that has come so far."""
    folder = place / "run"
    child = start(
        place, "train", f"support.trust_recipes:{recipe}", "--folder", str(folder), "--no-video"
    )
    child.until(lambda: any(line["vec_steps"] >= vec_steps for line in lines(folder)))
    return child, folder


def workers_of(child: Child) -> list[psutil.Process]:
    return [p for p in psutil.Process(child.pid).children() if p.status() != psutil.STATUS_ZOMBIE]


def assert_goes_on(place: Path, folder: Path) -> None:
    """A short resume of a run that was saved."""
    step = checkpoint.load(folder).step
    outcome = command(
        place, "resume", str(folder), "--total-vec-steps", str(step + 5), "--no-video",
        "--import", "support.misbehaving",
    )  # fmt: skip
    outcome.assert_clean(0)
    assert checkpoint.load(folder).step == step + 5


@pytest.mark.parametrize(
    ("recipe", "number"),
    [
        ("endless", signal.SIGHUP),
        ("asynchronous", signal.SIGINT),
        ("asynchronous", signal.SIGTERM),
        ("in_processes", signal.SIGINT),
        pytest.param("endless", signal.SIGINT, marks=pytest.mark.slow),
        pytest.param("endless", signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param("asynchronous", signal.SIGHUP, marks=pytest.mark.slow),
    ],
)
def test_a_signal_to_all_processes_saves(number: int, recipe: str, tmp_path: Path) -> None:
    child, folder = begin(tmp_path, recipe)
    child.signal(number)
    outcome = child.wait()
    outcome.assert_clean(130)
    assert "interrupted and saved" in outcome.out
    assert checkpoint.load(folder).step >= 15


@pytest.mark.parametrize(
    ("recipe", "number"),
    [
        ("examined", signal.SIGTERM),
        ("examined_at_the_end", signal.SIGINT),
        ("examined_in_threads", signal.SIGINT),
    ],
)
def test_a_signal_cuts_an_evaluation_and_resume_makes_it(
    recipe: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, marker = tmp_path / "run", tmp_path / "exam"
    monkeypatch.setenv("EXAM", str(marker))
    args = ("train", f"support.trust_recipes:{recipe}", "--folder", str(folder), "--no-video")
    child = start(tmp_path, *args)
    child.until(marker.exists)
    child.signal(number)
    outcome = child.wait()
    outcome.assert_clean(130)
    assert "interrupted and saved" in outcome.out
    assert checkpoint.load(folder).step == 15
    assert not evaluated(folder)
    total = "15" if recipe == "examined_at_the_end" else "20"
    again = ("resume", str(folder), "--evaluation.max-vec-steps", "3", "--total-vec-steps", total)
    command(tmp_path, *again, "--no-video").assert_clean(0)
    assert evaluated(folder) == sorted({15, int(total)})
    outcome = command(tmp_path, *again, "--no-video")
    outcome.assert_clean(2)
    assert f"is finished after {total} vec steps" in outcome.err


def evaluated(folder: Path) -> list[int]:
    """The vec steps of all evaluations."""
    return [line["vec_steps"] for line in lines(folder) if "eval/return" in line]


def test_a_hangup_that_nohup_ignores_is_ignored(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        from fleetfoot.run.interrupt import Interrupt

        with Interrupt() as interrupt:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not interrupt.asked
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_simulator_that_hangs_in_its_thread_is_left_there(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    args = ("train", "support.trust_recipes:hanging_overlapped", "--folder", str(folder))
    outcome = start(tmp_path, *args, "--env-timeout", "3").wait()
    outcome.assert_clean(2)
    said = r"has not answered for \d+ s; saved after 24 vec steps"
    assert re.search(said, outcome.err.splitlines()[-1])
    assert checkpoint.load(folder).step == 24


@pytest.mark.parametrize(
    "recipe", ["hanging", "hanging_asynchronous", "hanging_in_processes", "hanging_overlapped"]
)
def test_ctrl_c_ends_a_run_whose_environment_hangs(recipe: str, tmp_path: Path) -> None:
    child, folder = begin(tmp_path, recipe, vec_steps=24)
    time.sleep(0.2)  # in step 25 it hangs
    child.signal(signal.SIGINT)
    outcome = child.wait()
    outcome.assert_clean(130)
    assert checkpoint.load(folder).step == 24


@pytest.mark.parametrize("recipe", ["asynchronous", "in_processes"])
def test_a_killed_environment_process_is_said_and_saved(recipe: str, tmp_path: Path) -> None:
    child, folder = begin(tmp_path, recipe)
    workers_of(child)[0].kill()
    outcome = child.wait()
    outcome.assert_clean(2)
    assert "was ended by SIGKILL" in outcome.err.splitlines()[-1]
    assert_goes_on(tmp_path, folder)


def test_a_reader_that_leaves_costs_the_console_alone(tmp_path: Path) -> None:
    read, write = os.pipe()
    folder = tmp_path / "run"
    args = ("train", "support.trust_recipes:talking", "--folder", str(folder), "--no-video")
    child = start(tmp_path, *args, stdout=write)
    os.close(write)
    assert os.read(read, 10)
    os.close(read)
    child.wait().assert_clean(0)
    assert checkpoint.load(folder).step == 60


def test_a_list_that_nobody_reads_to_the_end(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    outcome = start(tmp_path, "list", stdout=write).wait()
    os.close(write)
    outcome.assert_clean(0)
    assert outcome.err == ""


@pytest.mark.parametrize(
    ("args", "code"),
    [(("list",), 2), (("train", "support.trust_recipes:talking", "--no-video"), 0)],
)
def test_standard_output_on_a_full_device(args: tuple[str, ...], code: int, tmp_path: Path) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    if args[0] == "train":
        args = (*args, "--folder", str(tmp_path / "run"))
    outcome = start(tmp_path, *args, stdout=full).wait()
    os.close(full)
    outcome.assert_clean(code)
    assert outcome.err == ("fleetfoot: cannot write to standard output: No space left on device.\n")
    assert args[0] == "list" or checkpoint.load(tmp_path / "run").step == 60


def preempted(place: Path, seconds: float) -> None:
    """A scheduler's way: SIGTERM to all processes, and a little later SIGKILL."""
    child, folder = begin(place, "endless")
    child.signal(signal.SIGTERM)
    time.sleep(seconds)
    child.signal(signal.SIGKILL)
    outcome = child.wait()
    assert outcome.code in (130, -signal.SIGKILL)
    assert "Traceback" not in outcome.err
    if outcome.code == 130:
        assert has_checkpoint(folder)
    if has_checkpoint(folder):
        assert_goes_on(place, folder)


@pytest.mark.parametrize("seconds", [0.02, pytest.param(0.0, marks=pytest.mark.slow)])
def test_preemption_leaves_a_usable_checkpoint_or_none(seconds: float, tmp_path: Path) -> None:
    preempted(tmp_path, seconds)


@pytest.mark.slow
@pytest.mark.parametrize("trial", range(50))
def test_signals_at_random(trial: int, tmp_path: Path) -> None:
    """Several signals at random moments, to one process or to all of them."""
    rng = random.Random(trial)
    if trial % 5 == 4:
        preempted(tmp_path, rng.uniform(0.0, 0.2))
        return
    recipe = rng.choice(["endless", "asynchronous", "hanging", "hanging_asynchronous"])
    child, folder = begin(tmp_path, recipe, vec_steps=rng.choice([5, 15, 24]))
    time.sleep(rng.uniform(0.0, 0.3))
    number = rng.choice([signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
    child.signal(number, group=rng.random() < 0.5)
    outcome = child.wait()
    outcome.assert_clean(130)
    assert has_checkpoint(folder)
    if recipe in ("endless", "asynchronous"):
        assert_goes_on(tmp_path, folder)
