from __future__ import annotations

import io
import json
import math
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import rich.console
import torch
from hypothesis import given
from hypothesis import strategies as st

from fleetfoot.config import from_json, to_json
from fleetfoot.errors import UserError
from fleetfoot.log import (
    EVAL_RETURN,
    Console,
    Counters,
    EpisodeStats,
    JsonLines,
    Log,
    LogConfig,
    Mean,
    NonFinite,
    Point,
    TensorBoard,
    WandB,
    curve,
    plot_text,
)

CPU = torch.device("cpu")


class Memory:
    """A sink that only remembers."""

    def __init__(self) -> None:
        self.written: list[tuple[Counters, dict[str, float]]] = []
        self.closed = False

    def write(self, counters: Counters, metrics: Mapping[str, float]) -> None:
        self.written.append((counters, dict(metrics)))

    def close(self) -> None:
        self.closed = True


def at(vec_steps: int) -> Counters:
    return Counters(vec_steps, vec_steps * 8, vec_steps * 2, vec_steps / 10)


def test_means_of_tensors_numbers_and_vectors() -> None:
    sinks = Memory(), Memory()
    log = Log(sinks)
    log.add({"loss": torch.tensor(1.0), "lr": 0.5, "info": torch.tensor([1, 2, 6])})
    log.add({"loss": torch.tensor(4.0, requires_grad=True), "lr": 1.5})
    log.add({"loss": torch.tensor(4, dtype=torch.int64)})  # other names, another dtype
    metrics = log.flush(at(10), {EVAL_RETURN: 7.0})
    assert metrics == {"loss": 3.0, "lr": 1.0, "info": 3.0, EVAL_RETURN: 7.0}
    assert sinks[0].written == sinks[1].written == [(at(10), metrics)]
    assert log.flush(at(20)) == {}  # nothing is counted twice
    log.close()
    assert sinks[0].closed
    assert sinks[1].closed


@given(st.lists(st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=3), min_size=1))
def test_means_are_those_of_all_measurements(rows: list[list[float]]) -> None:
    log = Log([])
    for row in rows:
        log.add({str(i): torch.tensor(v) for i, v in enumerate(row)})
    read = log.flush(at(1))
    for i in range(3):
        values = [row[i] for row in rows if len(row) > i]
        assert (str(i) in read) == bool(values)
        if values:
            assert read[str(i)] == pytest.approx(math.fsum(values) / len(values), abs=1e-9)


def test_a_buffer_that_is_overwritten_later_was_already_counted() -> None:
    log = Log([])
    loss = torch.tensor(1.0, dtype=torch.float64)  # the dtype of the sums: no copy by conversion
    for value in (1.0, 2.0, 6.0):
        loss.fill_(value)
        log.add({"loss": loss})
    loss.fill_(99.0)
    assert log.flush(at(1)) == {"loss": 3.0}
    assert loss == 99.0  # and the log did not write to it


def test_adding_never_reads_and_flushing_reads_once(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[str] = []
    for name in ("item", "tolist", "__float__", "__bool__", "cpu", "numpy"):
        true = getattr(torch.Tensor, name)

        def spy(self: Any, *args: Any, _true: Any = true, _name: str = name) -> Any:
            reads.append(_name)
            return _true(self, *args)

        monkeypatch.setattr(torch.Tensor, name, spy)
    log, episodes = Log([]), EpisodeStats(2, CPU)
    for _ in range(3):
        episodes.update(torch.ones(2), torch.tensor([True, False]))
        log.add({"a": torch.tensor(1.0), "b": torch.ones(4), "c": 1.0})
        log.add({"a": torch.tensor(1.0)})
        log.add(episodes.metrics())
    assert reads == []
    log.flush(at(1))
    assert reads == ["tolist"]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_one_bad_value_between_flushes_is_named(bad: float) -> None:
    sink = Memory()
    log = Log([sink])
    for value in (1.0, bad, 1.0):
        log.add({"critic/loss": torch.tensor(value), "policy/loss": torch.tensor(1.0)})
    with pytest.raises(NonFinite, match=r"^critic/loss became NaN.* vec step 1,200 \(") as error:
        log.flush(at(1200))
    assert error.value.names == ("critic/loss",)
    assert isinstance(error.value, UserError)
    assert "\n" not in str(error.value)
    assert sink.written == []


def test_bad_numbers_and_evaluations_are_named_too() -> None:
    log = Log([])
    log.add({"speed": math.inf, "loss": 1.0})
    with pytest.raises(NonFinite, match=r"^speed became"):
        log.flush(at(1))
    with pytest.raises(NonFinite, match=r"^eval/return became"):
        log.flush(at(1), {EVAL_RETURN: math.nan})


def test_due_goes_by_vec_steps() -> None:
    log = Log([], every_vec_steps=5)
    assert [step for step in range(1, 16) if log.due(step)] == [5, 10, 15]


def test_a_mean_of_nothing_is_left_out() -> None:
    log = Log([])
    log.add({"a": Mean(torch.tensor(0.0), torch.tensor(0.0)), "b": 1.0})
    assert log.flush(at(1)) == {"b": 1.0}
    for total, count in ((6.0, 2.0), (0.0, 0.0), (3.0, 1.0)):
        log.add({"a": Mean(torch.tensor(total), torch.tensor(count))})
    assert log.flush(at(2)) == {"a": 3.0}


def test_episode_stats() -> None:
    log, episodes = Log([]), EpisodeStats(3, CPU)
    no, yes = False, True
    episodes.update(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([no, no, no]))
    log.add(episodes.metrics())
    assert log.flush(at(1)) == {}
    episodes.update(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([yes, no, no]))  # 2 in 2
    episodes.update(torch.tensor([5.0, 2.0, 3.0]), torch.tensor([yes, yes, no]))  # 5 in 1, 6 in 3
    log.add(episodes.metrics())
    assert log.flush(at(3)) == pytest.approx({"episode/return": 13 / 3, "episode/length": 2.0})
    log.add(episodes.metrics())
    assert log.flush(at(4)) == {}


def test_a_nan_in_an_episode_that_ended_is_found() -> None:
    log, episodes = Log([]), EpisodeStats(2, CPU)
    episodes.update(torch.tensor([math.nan, 1.0]), torch.tensor([False, True]))
    log.add(episodes.metrics())
    assert log.flush(at(1))["episode/return"] == 1.0
    episodes.update(torch.tensor([0.0, 1.0]), torch.tensor([True, True]))
    log.add(episodes.metrics())
    with pytest.raises(NonFinite, match="episode/return"):
        log.flush(at(2))


def test_episode_stats_go_on_after_a_resume() -> None:
    generator = torch.Generator().manual_seed(0)
    one, two = EpisodeStats(4, CPU), EpisodeStats(4, CPU)

    def step(*stats: EpisodeStats) -> None:
        reward = torch.rand(4, generator=generator)
        ended = torch.rand(4, generator=generator) < 0.3
        for each in stats:
            each.update(reward, ended)

    for _ in range(5):
        step(one)
    two.load_state_dict(one.state_dict())
    for _ in range(5):
        step(one, two)
    a, b = one.metrics()["episode/return"], two.metrics()["episode/return"]
    assert a.count == b.count > 0
    assert a.total == b.total
    with pytest.raises(UserError, match=r"shape \(4,\), this run needs \(1,\)"):
        EpisodeStats(1, CPU).load_state_dict(one.state_dict())


def test_json_lines_resume_without_duplicates(tmp_path: Path) -> None:
    path = tmp_path / "run" / "metrics.jsonl"
    first = JsonLines(path)
    for step in (10, 20, 30, 40):
        first.write(at(step), {"loss": 0.1 * step})
    before = path.read_text().splitlines()
    assert json.loads(before[0]) == {
        "loss": 1.0,
        "vec_steps": 10,
        "env_steps": 80,
        "updates": 20,
        "train_seconds": 1.0,
    }
    first.close()
    with path.open("a") as file:
        file.write('{"loss": 5.0, "vec_ste')  # a kill in the middle of a line
    second = JsonLines(path)
    second.truncate_after(20)
    assert path.read_text().splitlines() == before[:2]  # to the last digit
    for step in (30, 40):
        second.write(at(step), {"loss": 0.1 * step})
    assert path.read_text().splitlines() == before
    second.truncate_after(30)  # also while it is open
    second.write(at(50), {})
    second.close()
    assert [json.loads(line)["vec_steps"] for line in path.open()] == [10, 20, 30, 50]
    assert [p.name for p in path.parent.iterdir()] == ["metrics.jsonl"]
    JsonLines(tmp_path / "absent.jsonl").truncate_after(5)


def test_json_lines_are_on_disk_at_once(tmp_path: Path) -> None:
    sink = JsonLines(tmp_path / "metrics.jsonl")
    sink.write(at(1), {"a": 1.0})
    assert (tmp_path / "metrics.jsonl").read_text().endswith("\n")
    sink.close()


def test_logs_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot write"):
        JsonLines(tmp_path / "file" / "metrics.jsonl").write(at(1), {})
    with pytest.raises(UserError, match="cannot write"):
        TensorBoard(tmp_path / "file" / "tensorboard")


def events(folder: Path, name: str) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(str(folder))
    reader.Reload()
    return [(e.step, e.value) for e in reader.Scalars(name)]


def test_tensorboard_reads_back_and_resumes(tmp_path: Path) -> None:
    first = TensorBoard(tmp_path)
    for step in (10, 20, 30):
        first.write(at(step), {"loss": float(step)})
    first.close()
    assert events(tmp_path, "loss") == [(80, 10.0), (160, 20.0), (240, 30.0)]
    assert events(tmp_path, "train/updates") == [(80, 20.0), (160, 40.0), (240, 60.0)]
    second = TensorBoard(tmp_path, resumed=at(20))
    second.write(at(30), {"loss": -1.0})
    second.close()
    assert events(tmp_path, "loss") == [(80, 10.0), (160, 20.0), (240, -1.0)]


def test_wandb_missing_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UserError, match=r"pip install 'wandb>=") as error:
        LogConfig(wandb_project="p").build(tmp_path, total_vec_steps=1)
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


def fake_wandb(monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    seen = types.SimpleNamespace(started=[], logged=[], axes=[], finished=0, fails=False)

    class Error(Exception):
        pass

    def finish() -> None:
        seen.finished += 1

    def init(**options: Any) -> Any:
        if seen.fails:
            raise Error("no API key\nset one")
        seen.started.append(options)
        return types.SimpleNamespace(
            log=seen.logged.append,
            finish=finish,
            define_metric=lambda name, step_metric: seen.axes.append((name, step_metric)),
        )

    module = types.ModuleType("wandb")
    video = lambda path, format: ("video", path, format)  # noqa: E731
    module.__dict__.update(init=init, Error=Error, Video=video)
    monkeypatch.setitem(sys.modules, "wandb", module)
    return seen


def test_wandb_goes_on_in_the_same_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = fake_wandb(monkeypatch)
    for step in (10, 20):
        sink = WandB("walkers", tmp_path / "run", config={"seed": 1})
        sink.write(at(step), {"loss": 1.0})
        sink.close()
    one, two = seen.started
    assert one == two
    assert (one["project"], one["config"], one["name"]) == ("walkers", {"seed": 1}, "run")
    assert WandB("walkers", tmp_path / "other") is not None
    assert seen.started[-1]["id"] != one["id"]
    assert [metrics["env_steps"] for metrics in seen.logged] == [80, 160]
    assert seen.logged[0]["loss"] == 1.0
    assert seen.axes[0] == ("*", "env_steps")  # its own step only grows, and a resume goes back
    assert seen.finished == 2
    seen.fails = True
    with pytest.raises(UserError, match="W&B did not start: no API key set one; run `wandb login`"):
        WandB("walkers", tmp_path / "run")


def plain_console(**options: Any) -> tuple[Console, io.StringIO, list[float]]:
    out, now = io.StringIO(), [0.0]
    console = rich.console.Console(file=out, force_terminal=False, width=40)
    return Console(1000, console=console, clock=lambda: now[0], **options), out, now


def test_without_a_terminal_one_plain_line_per_interval() -> None:
    sink, out, now = plain_console(every_seconds=10)
    for step in range(100, 1000, 100):
        now[0] = step / 50  # 2, 4, ... 18 seconds
        sink.write(
            at(step), {EVAL_RETURN: 300.0 - step} if step <= 200 else {"episode/return": 7.0}
        )
    lines = out.getvalue().splitlines()
    assert lines == [
        "vec step 100 of 1,000 | return 200.0 | best 200.0",
        # 8 rows a vec step, 2 updates, 10 vec steps a second
        "vec step 600 of 1,000 | 80 env steps/s | 20 updates/s | 0:00:40 left | "
        "training return 7.0 | return 100.0 | best 200.0",
    ]
    sink.close()
    assert out.getvalue().splitlines()[2].startswith("vec step 900 of 1,000")
    sink.close()
    assert len(out.getvalue().splitlines()) == 3


def test_the_best_before_a_resume_is_still_the_best() -> None:
    sink, out, _ = plain_console(best=500.0)
    sink.write(at(100), {EVAL_RETURN: 1.0})
    assert out.getvalue() == "vec step 100 of 1,000 | return 1.0 | best 500.0\n"


def test_in_a_terminal_a_live_bar() -> None:
    out = io.StringIO()
    sink = Console(1000, console=rich.console.Console(file=out, force_terminal=True, width=100))
    sink.write(at(100), {})
    sink.write(at(250), {EVAL_RETURN: 5.0})
    sink.close()
    assert "━" in out.getvalue()
    assert "vec step 250 of 1,000 | 80 env steps/s | 20 updates/s" in out.getvalue()
    assert out.getvalue().endswith("\x1b[?25h")  # the cursor is back


def test_curve_and_its_picture(tmp_path: Path) -> None:
    sink = JsonLines(tmp_path / "metrics.jsonl")
    for step in (0, 50, 100):
        sink.write(at(step), {EVAL_RETURN: step * 10.0})
        sink.write(at(step), {"loss": 1.0})
    sink.close()
    points = curve(tmp_path)
    assert points == curve(tmp_path / "metrics.jsonl")
    assert points == [Point(0, 0.0, 0.0), Point(50, 5.0, 500.0), Point(100, 10.0, 1000.0)]
    assert plot_text(points, width=20, height=4).splitlines() == [
        # column i of 20 is round(32 i / 19) eighths high
        "1,000 ┤               ▁▃▅▆█",
        "      ┤          ▁▃▄▆██████",
        "      ┤      ▂▄▅▇██████████",
        "    0 ┤▁▂▃▅▇███████████████",
        "       0      100 vec steps",
        "       return 1,000.0, best 1,000.0, after 0:00:10 of training",
    ]


def test_pictures_of_odd_curves() -> None:
    assert plot_text([]) == "no evaluations yet"
    flat = plot_text([Point(10, 1.0, 0.0)], width=5, height=2).splitlines()
    assert flat[:2] == ["0 ┤", "0 ┤▁▁▁▁▁"]
    rows = plot_text([Point(0, 0, -1000.0), Point(9, 1, -100.0)], width=10, height=3).splitlines()
    assert rows[0].startswith("  -100 ┤")
    assert rows[2].startswith("-1,000 ┤▁")
    assert rows[0].endswith("█")
    # Two evaluations at one step do not divide by zero.
    assert "█" in plot_text([Point(5, 0, 1.0), Point(5, 0, 2.0)])


def test_curve_of_a_missing_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot read .*metrics\.jsonl"):
        curve(tmp_path / "metrics.jsonl")


def test_config_builds_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = fake_wandb(monkeypatch)
    config = LogConfig(every_vec_steps=7, wandb_project="p", console_seconds=3.0)
    assert from_json(to_json(config)) == config
    log = config.build(tmp_path, total_vec_steps=70, recipe_json={"seed": 3}, best=4.0)
    assert log.every_vec_steps == 7
    assert [type(getattr(s, "sink", s)) for s in log.sinks] == [
        JsonLines,
        WandB,
        TensorBoard,
        Console,
    ]
    console = getattr(log.sinks[-1], "sink", None)
    assert isinstance(console, Console)
    assert (console.total_vec_steps, console.every_seconds) == (70, 3.0)
    assert seen.started[0]["config"] == {"seed": 3}
    for step in (7, 14, 21):
        log.flush(at(step), {"x": 1.0})
    log.close()

    quiet = LogConfig(tensorboard=False, console=False)
    with pytest.raises(UserError, match="belongs to another run"):
        quiet.build(tmp_path, total_vec_steps=70)
    log = quiet.build(tmp_path, total_vec_steps=70, resumed=at(14))
    assert [type(s) for s in log.sinks] == [JsonLines]
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["vec_steps"] for line in lines] == [7, 14]


def test_config_refuses_nonsense() -> None:
    with pytest.raises(UserError, match="every_vec_steps must be at least 1"):
        LogConfig(every_vec_steps=0)
    with pytest.raises(UserError, match="console_seconds must be at least 0, not -1"):
        LogConfig(console_seconds=-1)
