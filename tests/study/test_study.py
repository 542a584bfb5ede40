"""Studies: what is in the folder, who runs at the same time, and what happens when something ends early."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
import rich.console

from fleetfoot.errors import UserError
from fleetfoot.recipe import Recipe
from fleetfoot.run.folder import folder_lock, write_recipe
from fleetfoot.study import open_study, read_study, run_study, worker
from fleetfoot.study.folder import Study
from fleetfoot.study.progress import Progress
from fleetfoot.study.runner import Runner, default_workers
from fleetfoot.study.worker import train
from support.runs import small

LINE = {"vec_steps": 0}


def make(folder: Path, seeds: int = 2, **steps: int) -> Study:
    points = {name: small(total_vec_steps=count) for name, count in steps.items()}
    return open_study(folder, points, seeds)


def quiet(study: Study) -> Progress:
    return Progress(study, console=rich.console.Console(file=io.StringIO()))


def pretend(study: Study, name: str, vec_steps: int, seed: int = 0) -> None:
    run = study.seed_folders(name)[seed]
    run.mkdir(parents=True, exist_ok=True)
    with (run / "metrics.jsonl").open("a") as file:
        file.write(
            json.dumps({"vec_steps": vec_steps}) + '\n{"vec_'
        )  # and a line that a kill cut short


def stub(code: str) -> tuple[str, ...]:
    """A worker without torch. It is given the folder and the name as sys.argv[1:]."""
    return (
        sys.executable,
        "-c",
        f"import sys, os, time, pathlib\nfolder, name = sys.argv[1:]\n{code}",
    )


def test_a_study_is_read_back_and_grows(tmp_path: Path) -> None:
    made = make(tmp_path / "s", a=20, b=30)
    assert read_study(tmp_path / "s") == made
    grown = make(tmp_path / "s", b=30, c=40)
    assert list(grown.points) == ["a", "b", "c"]
    assert read_study(tmp_path / "s") == grown


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    make(tmp_path / "s", a=20)
    with pytest.raises(UserError, match="a with total_vec_steps 20, not 21"):
        make(tmp_path / "s", a=21)
    with pytest.raises(UserError, match="has 2 seeds of each configuration, not 3"):
        make(tmp_path / "s", seeds=3, a=20)
    with pytest.raises(UserError, match="--seeds must be at least 1"):
        make(tmp_path / "t", seeds=0, a=20)
    with pytest.raises(UserError, match="is no study"):
        read_study(tmp_path)
    with pytest.raises(UserError, match="exists and is no study"):
        make(tmp_path, a=20)
    for text, says in (
        ("{", "cannot be read"),
        ("[]", "holds no study"),
        ('{"points": {"a": 3}, "seeds": 1}', "no rec"),
    ):
        (tmp_path / "s/study.json").write_text(text)
        with pytest.raises(UserError, match=says):
            read_study(tmp_path / "s")
    with pytest.raises(UserError, match="--workers must be at least 1"):
        run_study(make(tmp_path / "u", a=20), workers=-1)


def test_the_time_left_is_that_of_the_work_left(tmp_path: Path) -> None:
    study = make(tmp_path, a=100, b=300)
    now = [0.0]
    out = io.StringIO()
    progress = Progress(study, console=rich.console.Console(file=out), clock=lambda: now[0])
    assert study.work("b") > 3 * study.work("a")  # warm-up makes no updates
    for seed in (0, 1):
        pretend(study, "a", 50, seed)
    progress.show(["a"])  # too early to look
    assert out.getvalue() == ""
    now[0] = 60.0
    progress.show(["a"])
    share = 0.5 * study.work("a") / (study.work("a") + study.work("b"))
    left = 60 * (1 - share) / share
    minutes = f"{int(left // 3600)}:{int(left % 3600 // 60):02}:"
    assert out.getvalue().startswith(f"0 of 2 configurations | {share:.0%} | {minutes}")
    assert out.getvalue().endswith("| a 50%\n")


def test_a_study_on_cores_and_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from fleetfoot.study import runner

    monkeypatch.setattr(runner, "usable_cores", lambda: 8)
    recipes: list[Recipe] = [small(threads=3), small(threads=2)]
    assert default_workers(recipes) == 2
    assert default_workers([small(threads=0)]) == 1
    monkeypatch.setattr(runner, "resolve_device", torch.device)
    assert default_workers([replace(recipes[0], device="cuda")]) == 1


def test_all_are_trained_within_the_workers_and_the_longest_first(tmp_path: Path) -> None:
    study = make(tmp_path, a=10, b=40, c=30, d=20)
    code = """
log = pathlib.Path(folder) / "order"
with log.open("a") as file: file.write(f"+{name}")
time.sleep(0.3)
with log.open("a") as file: file.write(f"-{name}")
"""
    runner = Runner(study, 2, quiet(study), stub(code))
    assert runner.run()
    order = (tmp_path / "order").read_text()
    assert sorted(order.replace("+", "").replace("-", "")) == sorted("aabbccdd")
    starts = [order[place + 1] for place, sign in enumerate(order) if sign == "+"]
    assert set(starts[:2]) == {"b", "c"}
    running = most = 0
    for sign in order[::2]:
        running += 1 if sign == "+" else -1
        most = max(most, running)
    assert most <= 2


def test_one_failure_does_not_stop_the_others_and_is_told(tmp_path: Path) -> None:
    study = make(tmp_path, a=10, b=20, c=30)
    code = "if name == 'a': print('fleetfoot: the loss became NaN.', file=sys.stderr); sys.exit(2)"
    runner = Runner(study, 1, quiet(study), stub(code))
    with pytest.raises(UserError, match=r"^a failed: the loss became NaN\. Its log is .*a\.log\.$"):
        runner.run()
    assert runner.worked == 2


def test_where_nothing_works_the_rest_is_not_tried(tmp_path: Path) -> None:
    study = make(tmp_path, a=10, b=20, c=30)
    runner = Runner(study, 1, quiet(study), stub("open(folder + '/' + name, 'w'); sys.exit(2)"))
    with pytest.raises(UserError, match=r"^c failed: exit code 2"):
        runner.run()
    assert not (tmp_path / "a").exists()


def test_ctrl_c_lets_the_workers_save(tmp_path: Path) -> None:
    study = make(tmp_path, a=10, b=20)
    code = """
import signal
def save(*_): open(folder + '/saved', 'a').write(name); sys.exit(130)
signal.signal(signal.SIGTERM, save)
open(folder + '/ready', 'a')
time.sleep(60)
"""
    runner = Runner(study, 1, quiet(study), stub(code))

    def interrupt() -> None:
        while not (tmp_path / "ready").exists():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    assert not runner.run()  # stopped, not failed
    assert (tmp_path / "saved").read_text() == "b"


def test_a_worker_stops_when_the_study_is_gone(tmp_path: Path) -> None:
    """Its standard input ends with the process that held the other end."""
    code = (
        "import os, threading, time; from fleetfoot.study.worker import stop_at_end_of\n"
        "threading.Thread(target=stop_at_end_of, args=(0,), daemon=True).start(); print('up', flush=True)\n"
        "time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as worker:
        assert worker.stdout is not None
        assert worker.stdin is not None
        assert worker.stdout.readline() == b"up\n"
        worker.stdin.close()
        assert worker.wait(30) == -signal.SIGTERM


@pytest.mark.parametrize("seeds", [1, 2])
def test_a_configuration_is_begun_continued_and_left_alone(seeds: int, tmp_path: Path) -> None:
    recipe = small("sac/pendulum", total_vec_steps=30)
    study = open_study(tmp_path, {"a": recipe}, seeds)
    for folder in study.seed_folders("a")[: 1 if seeds == 1 else 0]:
        folder.mkdir(parents=True)  # killed before its recipe was written
        (folder / ".lock").touch()
    assert (study.finished("a"), study.done("a")) == (False, 0.0)
    results = train(study, "a")
    assert [result.finished for result in results] == [True] * seeds
    assert (study.finished("a"), study.done("a")) == (True, 1.0)
    assert train(study, "a") == []


def test_a_worker_waits_for_one_that_is_still_saving(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = make(tmp_path, a=10)
    for folder in study.seed_folders("a"):
        folder.mkdir(parents=True)
        write_recipe(folder, study.points["a"])
    waits: list[float] = []
    with ExitStack() as lock:
        lock.enter_context(folder_lock(study.seed_folders("a")[1]))

        def sleep(seconds: float) -> None:
            waits.append(seconds)
            if len(waits) == 3:
                lock.close()  # now it has saved

        monkeypatch.setattr("time.sleep", sleep)
        worker.wait_for_predecessor(study, "a")
    assert len(waits) == 3
    with (
        folder_lock(study.seed_folders("a")[0]),
        pytest.raises(UserError, match="another process is training"),
    ):
        worker.wait_for_predecessor(study, "a")
