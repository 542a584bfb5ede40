"""Where time goes, and which of it counts as training. No test reads a real clock."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fleetfoot.execution import EagerLearner
from fleetfoot.log import timer as timer_module
from fleetfoot.log.timer import StepTimer
from fleetfoot.run.build import open_run
from fleetfoot.run.clock import Clock
from fleetfoot.topologies import overlap as overlap_module
from fleetfoot.topologies.synchronous import in_turns
from support.runs import small

CPU = torch.device("cpu")


class Time:
    """Stands for the module `time` and for a clock; goes on when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now

    def go(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    fake = Time()
    monkeypatch.setattr(timer_module, "time", fake)
    return fake


def test_milliseconds_per_vec_step_by_name(time: Time) -> None:
    split = StepTimer(CPU)
    for act, update in ((0.010, 0.002), (0.030, 0.006)):
        with split("act"):
            time.go(act)
        time.go(5.0)  # nobody's
        for _ in range(2):  # a part that comes twice in a vec step counts twice
            with split("update"):
                time.go(update)
        split.next_vec_step()
    found = split.metrics()
    assert found == pytest.approx({"time/act_ms": 20.0, "time/update_ms": 8.0})
    assert split.metrics() == {}, "each reading begins anew"


def test_reading_before_a_vec_step_is_over_divides_by_one(time: Time) -> None:
    split = StepTimer(CPU)
    with split("act"):
        time.go(0.5)
    assert split.metrics() == pytest.approx({"time/act_ms": 500.0})


def test_what_was_measured_can_be_forgotten(time: Time) -> None:
    split = StepTimer(CPU)
    with split("update"):
        time.go(60.0)  # compilation
    split.next_vec_step()
    split.forget()
    with split("update"):
        time.go(0.25)
    split.next_vec_step()
    assert split.metrics() == pytest.approx({"time/update_ms": 250.0})


class Event:
    """Of a GPU whose work takes as long as the fake clock says."""

    made = 0

    def __init__(self, time: Time) -> None:
        self.time = time
        Event.made += 1

    def record(self, stream: Any) -> None:
        self.at = self.time.now

    def elapsed_time(self, end: Event) -> float:
        return 1e3 * (end.at - self.at)


def test_on_a_gpu_some_vec_steps_stand_for_all(time: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    Event.made = 0
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: None)
    monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: Event(time))
    split = StepTimer(torch.device("cuda"))
    for step in range(2 * timer_module.EVERY):
        with split("act"):
            time.go(0.5 if step % timer_module.EVERY == 0 else 77.0)
        split.next_vec_step()
    assert Event.made == 4, "two vec steps are measured, by two events each"
    assert split.metrics() == pytest.approx({"time/act_ms": 500.0})


def test_a_clock_that_is_stopped_stays_so_through_a_pause() -> None:
    time = Time()
    clock = Clock(read=time.perf_counter)
    time.go(2.0)
    clock.stop()
    time.go(30.0)
    with clock.paused():
        time.go(5.0)
    time.go(40.0)
    assert clock.seconds() == 2.0, "what paused it must not set it going"
    clock.stop()  # a second stop changes nothing
    clock.resume()
    time.go(1.0)
    assert clock.seconds() == 3.0


def test_pauses_may_be_nested() -> None:
    time = Time()
    clock = Clock(read=time.perf_counter)
    with clock.paused():
        with clock.paused():
            time.go(5.0)
        time.go(7.0)
        assert clock.seconds() == 0.0
    time.go(1.0)
    assert clock.seconds() == 1.0


def test_a_pause_that_fails_still_ends() -> None:
    time = Time()
    clock = Clock(read=time.perf_counter)
    with pytest.raises(ValueError, match="disk"), clock.paused():
        raise ValueError("disk")
    time.go(1.0)
    assert clock.seconds() == 1.0


@pytest.mark.parametrize("overlap", [False, True])
def test_training_time_leaves_out_what_compiles(
    overlap: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first vec step takes a minute, the others a second; the first three rounds of updates take an hour each."""
    recipe = small(total_vec_steps=12)
    recipe = replace(recipe, pace=replace(recipe.pace, warmup_vec_steps=2))
    time, make_updates = Time(), EagerLearner._updates
    made = 0  # rounds of updates
    monkeypatch.setattr(EagerLearner, "ready", lambda self, count: count == 0 or made >= 3)

    def updates(learner: EagerLearner, count: int) -> Any:
        nonlocal made
        time.go(0.0 if count == 0 else 3600.0 if made < 3 else 0.25)
        made += count > 0
        return make_updates(learner, count)

    monkeypatch.setattr(EagerLearner, "_updates", updates)
    seconds = []
    with open_run(recipe, tmp_path / "run", None) as (journal, parts):
        journal.clock, step_env = Clock(read=time.perf_counter), parts.env.step

        def step(action: torch.Tensor) -> Any:
            time.go(60.0 if journal.vec_steps == 0 else 1.0)
            return step_env(action)

        parts.env.step = step  # type: ignore[method-assign]
        loop = overlap_module.vec_steps if overlap else in_turns
        for _ in loop(journal, parts, parts.learner(journal)):
            seconds.append(journal.clock.seconds())
            if journal.finished:
                break
    # Updates are owed after the third vec step; under overlap they are made during the next one.
    late = 1 if overlap else 0
    counted = [max(0, step - 5 - late) for step in range(1, 12)]
    assert seconds[:11] == [step - 1 + 0.25 * n for step, n in enumerate(counted, start=1)]
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert all("time/compile_s" in json.loads(line) for line in lines)
