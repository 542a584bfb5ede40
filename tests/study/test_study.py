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
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import rich.console

from fleetfoot import api, recipes
from fleetfoot.errors import Halted, UserError
from fleetfoot.evaluate import STOPPING, Evaluator
from fleetfoot.recipe import Recipe
from fleetfoot.replay.replay import ReplayConfig
from fleetfoot.replay.samplers import ProportionalConfig
from fleetfoot.run.estimate import estimate
from fleetfoot.run.folder import folder_lock
from fleetfoot.study import open_study, read_study, run_study, runner, seeds, worker
from fleetfoot.study.folder import Study
from fleetfoot.study.jobs import Listed
from fleetfoot.study.launch import OnRay
from fleetfoot.study.progress import Progress
from fleetfoot.study.runner import Runner, default_workers, workers_in_memory
from fleetfoot.study.table import curve
from fleetfoot.study.worker import train
from fleetfoot.topologies.multi_seed.seeds import make_folders
from support.runs import agent_state, assert_same, small
from support.trust_recipes import EVALUATION, tiny

PRIORITISED = ReplayConfig(capacity=40, n_step=2, sampler=ProportionalConfig())


def make(folder: Path, seeds: int = 2, **steps: int) -> Study:
    points = {name: small(total_vec_steps=count) for name, count in steps.items()}
    return open_study(folder, points, seeds)


def stubbed_runner(study: Study, workers: int, code: str, launcher: Any = None) -> Runner:
    """All jobs of a study, with a stub for a worker."""
    plan = Listed(study.jobs())
    progress = Progress(plan, console=rich.console.Console(file=io.StringIO()))
    options = {} if launcher is None else {"launcher": launcher}
    return Runner(plan, workers, progress, study.folder / "logs", (), stub(code), **options)


def pretend(study: Study, name: str, vec_steps: int, seed: int = 0) -> None:
    run = study.seed_folders(name)[seed]
    run.mkdir(parents=True, exist_ok=True)
    with (run / "metrics.jsonl").open("a") as file:
        file.write(
            json.dumps({"vec_steps": vec_steps}) + '\n{"vec_'
        )  # and a line that a kill cut short


def stub(code: str) -> tuple[str, ...]:
    """A worker without torch. It is given the folder of its job, STUDY/runs/NAME."""
    start = "place = pathlib.Path(sys.argv[1]); folder, name = str(place.parents[1]), place.name"
    return (sys.executable, "-c", f"import sys, os, time, pathlib\n{start}\n{code}")


def test_a_study_is_read_back_and_grows(tmp_path: Path) -> None:
    made = make(tmp_path / "s", a=20, b=30)
    assert read_study(tmp_path / "s") == made
    grown = make(tmp_path / "s", b=30, c=40)
    assert list(grown.points) == ["a", "b", "c"]
    assert read_study(tmp_path / "s") == grown


def test_killed_while_it_is_first_written_it_is_begun_anew(tmp_path: Path) -> None:
    (tmp_path / ".study.0123.partial.json").write_text("{")
    assert list(make(tmp_path, a=20).points) == ["a"]


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    make(tmp_path / "s", a=20)
    with pytest.raises(UserError, match="a with total_vec_steps 20, not 21"):
        make(tmp_path / "s", a=21)
    with pytest.raises(UserError, match="has 2 seeds of each configuration, not 3"):
        make(tmp_path / "s", seeds=3, a=20)
    with pytest.raises(UserError, match="--seeds must be at least 1"):
        make(tmp_path / "t", seeds=0, a=20)
    with pytest.raises(UserError, match="is not a study"):
        read_study(tmp_path)
    with pytest.raises(UserError, match="exists and is not a study"):
        make(tmp_path, a=20)
    for text, says in (
        ("{", "cannot be read"),
        ("[]", "holds no study"),
        ('{"points": {"a": 3}, "seeds": 1}', "no rec"),
        ('{"points": {"../a": {}}, "seeds": 1}', "cannot be the name of a configuration"),
        ('{"points": {}, "seeds": -1}', "it has -1 seeds"),
        ('{"points": {}, "seeds": 1, "settings": [3]}', "cannot be read"),
        ('{"points": {}, "seeds": 1, "sweep": 3}', "cannot be read"),
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
    plan = Listed(study.jobs())
    a, b = plan.jobs
    progress = Progress(plan, console=rich.console.Console(file=out), clock=lambda: now[0])
    assert b.work() > 3 * a.work()  # warm-up makes no updates
    for seed in (0, 1):
        pretend(study, "a", 50, seed)
    progress.show(["a"])  # too early to look
    assert out.getvalue() == ""
    now[0] = 60.0
    progress.show(["a"])
    share = 0.5 * a.work() / (a.work() + b.work())
    left = 60 * (1 - share) / share
    minutes = f"{int(left // 3600)}:{int(left % 3600 // 60):02}:"
    assert out.getvalue().startswith(f"0 of 2 configurations | {share:.0%} | {minutes}")
    assert out.getvalue().endswith("| a 50%\n")


def test_a_study_on_cores_and_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

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
until = time.monotonic() + 120  # the two that begin wait for each other, however long Python takes to start
while not {"b", "c"} <= set(log.read_text()) and time.monotonic() < until: time.sleep(0.01)
with log.open("a") as file: file.write(f"-{name}")
"""
    assert stubbed_runner(study, 2, code).run()
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
    stubbed = stubbed_runner(study, 1, code)
    with pytest.raises(UserError, match=r"^a failed: the loss became NaN\. Its log is .*a\.log\.$"):
        stubbed.run()
    assert stubbed.worked == 2


def test_where_nothing_works_the_rest_is_not_tried(tmp_path: Path) -> None:
    study = make(tmp_path, a=10, b=20, c=30)
    stubbed = stubbed_runner(study, 1, "open(folder + '/' + name, 'w'); sys.exit(2)")
    with pytest.raises(UserError, match=r"^c failed: exit code 2"):
        stubbed.run()
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
    stubbed = stubbed_runner(study, 1, code)

    def interrupt() -> None:
        while not (tmp_path / "ready").exists():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    assert not stubbed.run()  # stopped, not failed
    assert (tmp_path / "saved").read_text() == "b"


def test_workers_are_told_to_stop_once_and_have_not_failed(tmp_path: Path) -> None:
    """A second signal would not let them save."""
    study = make(tmp_path, a=10, b=20)
    code = """
import signal
if name == "b":
    while not os.path.exists(folder + '/ready'): time.sleep(0.05)
    sys.exit(2)
def save(*_): open(folder + '/told', 'a').write(name)
signal.signal(signal.SIGTERM, save)
open(folder + '/ready', 'a')
while not os.path.exists(folder + '/told'): time.sleep(0.05)
time.sleep(1.0)
sys.exit(130)
"""
    stubbed = stubbed_runner(study, 2, code)
    with pytest.raises(UserError, match=r"^b failed: exit code 2"):
        stubbed.run()
    assert (tmp_path / "told").read_text() == "a"
    assert stubbed.failed == {"b": 2}


def test_ctrl_c_while_a_worker_is_started_reaches_it(tmp_path: Path) -> None:
    stopped: list[str] = []

    class Started:
        def poll(self) -> int | None:
            return 130 if stopped else None

        def terminate(self) -> None:
            stopped.append("told")

        def kill(self) -> None:
            stopped.append("killed")

        def wait(self) -> int:
            return 130

    class Interrupted:
        def start(self, command: Sequence[str], log: Path) -> Started:
            os.kill(os.getpid(), signal.SIGINT)
            return Started()

    stubbed = stubbed_runner(make(tmp_path, a=10, b=20), 1, "", Interrupted())
    timer = threading.Timer(5.0, stopped.append, ["too late"])
    timer.start()
    assert not stubbed.run()
    timer.cancel()
    assert stopped == ["told"]


def test_a_worker_finds_no_modules_in_a_strangers_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "json.py").write_text("print('executed')")
    command = runner.worker_command()
    done = subprocess.run([*command[:-2], "-c", "import json"], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("", "")
    monkeypatch.syspath_prepend(str(tmp_path))  # as --import does
    assert "-P" not in runner.worker_command()


def test_links_in_a_study_are_not_followed(tmp_path: Path) -> None:
    study = make(tmp_path / "s", a=10)
    stubbed = stubbed_runner(study, 1, "print('hello')")
    (tmp_path / "mine").write_text("")
    (tmp_path / "s/logs").mkdir()
    (tmp_path / "s/logs/a.log").symlink_to(tmp_path / "mine")
    with pytest.raises(UserError, match="link"):
        stubbed.run()
    assert (tmp_path / "mine").read_text() == ""
    (tmp_path / "s/logs").rename(tmp_path / "elsewhere")
    (tmp_path / "s/logs").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="logs is a link"):
        stubbed_runner(study, 1, "print('hello')").run()
    run = study.seed_folders("a")[0]
    run.rename(tmp_path / "mine too")
    run.symlink_to(tmp_path / "mine too")
    with pytest.raises(UserError, match="seed-0 is a link"):
        study.jobs()


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


@pytest.mark.parametrize("count", [1, 2])
def test_a_configuration_is_begun_continued_and_left_alone(count: int, tmp_path: Path) -> None:
    recipe = small("sac/pendulum", total_vec_steps=30)
    study = open_study(tmp_path, {"a": recipe}, count)
    (job,) = study.jobs()
    assert (job.finished(), job.done()) == (False, 0.0)
    results = train(job.folder)
    assert [result.finished for result in results] == [True] * count
    assert (job.finished(), job.done()) == (True, 1.0)
    assert train(job.folder) == []
    assert Listed(study.jobs()).next() is None


@pytest.mark.parametrize("count", [1, 2])
def test_a_last_evaluation_that_was_cut_is_made(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = tiny(evaluation=EVALUATION)
    study = open_study(tmp_path, {"a": recipe}, count)
    (job,) = study.jobs()
    evaluate = Evaluator.__call__

    def cut(*args: Any) -> Any:
        if not STOPPING.is_set():
            os.kill(os.getpid(), signal.SIGTERM)
        return evaluate(*args)

    with monkeypatch.context() as patch:
        patch.setattr(Evaluator, "__call__", cut)
        assert not any(result.finished for result in train(job.folder))
    assert not job.finished()
    assert [curve(run, "eval/return") for run in job.runs] == [{}] * count
    assert all(result.finished for result in train(job.folder))
    assert job.finished()
    assert [list(curve(run, "eval/return")) for run in job.runs] == [[20]] * count


def test_a_last_evaluation_that_failed_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also that of the seed whose turn had not come."""

    def fail(*args: Any) -> Any:
        raise Halted("the simulator is gone")

    recipe = tiny(evaluation=EVALUATION)
    with monkeypatch.context() as patch:
        patch.setattr(Evaluator, "__call__", fail)
        with pytest.raises(Halted, match="saved after 20 vec steps"):
            api.train_seeds(recipe, 2, tmp_path / "s")
    results = api.resume_seeds(tmp_path / "s")
    assert all(result.finished for result in results)
    assert [list(curve(result.folder, "eval/return")) for result in results] == [[20], [20]]


def test_seeds_that_cannot_be_batched_have_a_process_each(tmp_path: Path) -> None:
    """And learn what they learn alone."""
    recipe = tiny(replay=PRIORITISED)
    study = open_study(tmp_path / "s", {"a": recipe}, 2)
    jobs = study.jobs()
    assert [job.name for job in jobs] == ["a-seed-0", "a-seed-1"]
    for job in jobs:
        train(job.folder)
    api.train(replace(recipe, seed=1), tmp_path / "alone")
    assert_same(agent_state(study.seed_folders("a")[1]), agent_state(tmp_path / "alone"))


def test_a_best_checkpoint_without_a_last_one_begins_anew(tmp_path: Path) -> None:
    study = open_study(tmp_path, {"a": tiny()}, 1)
    (job,) = study.jobs()
    train(job.folder)
    before = agent_state(job.runs[0])
    (job.runs[0] / "checkpoints/last.json").unlink()
    assert not job.finished()
    train(job.folder)
    assert_same(agent_state(job.runs[0]), before)


def test_a_worker_waits_for_one_that_is_still_saving(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = make_folders(tmp_path / "a", tiny(), (0, 1))
    waits: list[float] = []
    with ExitStack() as lock:
        lock.enter_context(folder_lock(runs[1]))

        def sleep(seconds: float) -> None:
            waits.append(seconds)
            if len(waits) == 3:
                lock.close()  # now it has saved

        monkeypatch.setattr("time.sleep", sleep)
        worker.wait_for_predecessor(runs)
    assert len(waits) == 3
    with folder_lock(runs[0]), pytest.raises(UserError, match="another process is training"):
        worker.wait_for_predecessor(runs)


def test_modules_that_nobody_named_are_not_imported(tmp_path: Path) -> None:
    open_study(tmp_path, {"a": tiny()}, 1, imports=["nowhere_to_be_found"])
    with pytest.raises(UserError, match="--import nowhere_to_be_found"):
        run_study(read_study(tmp_path))


def test_processes_are_as_many_as_memory_is_enough_for(monkeypatch: pytest.MonkeyPatch) -> None:
    need = runner.PROCESS_BYTES + 2 * estimate(tiny()).replay_bytes
    for free, wanted in ((5 * need, 4), (need / 2, 1), (1.2 * need, 1)):
        monkeypatch.setattr(runner, "free_bytes", lambda device, free=free: free)
        assert workers_in_memory(tiny(), 2) == wanted


def test_which_seeds_want_processes() -> None:
    assert not seeds.wants_processes(tiny())
    assert seeds.wants_processes(tiny(replay=PRIORITISED))


def test_threads_are_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seeds, "usable_cores", lambda: 8)
    assert seeds.threads_of(tiny(threads=0), 3).threads == 2
    assert seeds.threads_of(tiny(threads=0), 30).threads == 1
    assert seeds.threads_of(tiny(threads=5), 3).threads == 5


def test_a_run_that_joins_a_cluster_is_refused(tmp_path: Path) -> None:
    recipe = recipes.get("apex_dqn/cartpole")
    topology: Any = recipe.topology
    joined = replace(recipe, topology=replace(topology, ray=replace(topology.ray, address="auto")))
    with pytest.raises(UserError, match="cannot join a Ray cluster"):
        open_study(tmp_path, {"a": joined}, 1)


@pytest.mark.slow
def test_on_a_cluster(ray: Any, tmp_path: Path) -> None:
    """The same processes, beside actors: they end, fail, and are told to stop."""
    study = make(tmp_path, a=10, b=20)
    launcher = OnRay(ray, cpus=1, gpus=0)
    code = "print('hello', os.getcwd()); sys.exit(2 * (name == 'a'))"
    stubbed = stubbed_runner(study, 2, code, launcher)
    with pytest.raises(UserError, match="a failed: hello"):
        stubbed.run()
    assert stubbed.worked == 1
    process = launcher.start(
        (*stub("time.sleep(60)"), str(tmp_path / "runs/a")), tmp_path / "x.log"
    )
    assert process.poll() is None
    process.terminate()
    assert process.wait() == -signal.SIGTERM
    lost = launcher.start((*stub("time.sleep(60)"), str(tmp_path / "runs/a")), tmp_path / "x.log")
    ray.kill(lost.host)
    assert lost.wait() != 0
