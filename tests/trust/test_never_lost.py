"""What was learned or logged is not lost by a missing file, a hasty option, or two commands at once."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import imageio_ffmpeg
import pytest

from fleetfoot import UserError, api, checkpoint, train
from fleetfoot.checkpoint import CheckpointConfig
from fleetfoot.cli.main import main
from fleetfoot.errors import Notice
from fleetfoot.log import EVAL_RETURN
from fleetfoot.log.sinks import read_lines
from fleetfoot.run.build import Parts
from fleetfoot.run.journal import Journal
from support.fake_runs import make_run
from support.forked import Child, command, preload, start
from support.trust_recipes import tiny


def test_without_last_json_the_whole_checkpoint_is_named(run: Path) -> None:
    (run / "checkpoints" / "last.json").unlink()
    with pytest.raises(UserError, match=r"has no last.json, but .*000000020 is complete"):
        api.resume(run, total_vec_steps=25)
    assert api.resume(run / "checkpoints" / "000000020", total_vec_steps=25).finished
    assert checkpoint.load(run).step == 25


class Killed(BaseException):
    pass


@pytest.mark.parametrize("name", ["000000010", "best-000000010"])
def test_a_run_that_went_back_stays_there_when_it_is_killed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    returns = iter([3.0, 2.0, 1.0])
    monkeypatch.setattr(Parts, "evaluate", lambda *_: {EVAL_RETURN: next(returns)})
    train(tiny(checkpoint=CheckpointConfig(every_vec_steps=10, keep=2)), run)

    def kill(journal: Journal, *_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "record_step", kill)
        with pytest.raises(Killed):
            api.resume(run / "checkpoints" / name)
    assert checkpoint.steps(run).keys() == {10}
    assert api.resume(run).finished
    assert [line["vec_steps"] for line in read_lines(run / "metrics.jsonl")] == [5, 10, 15, 20]


def test_a_copy_put_back_in_place_of_a_corrupt_checkpoint_survives_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    train(tiny(checkpoint=CheckpointConfig(every_vec_steps=10), total_vec_steps=10), run)
    shutil.copytree(run / "checkpoints" / "000000010", tmp_path / "000000010")
    api.resume(run, total_vec_steps=20)
    shutil.copytree(tmp_path / "000000010", run / "checkpoints" / "000000010")
    (run / "checkpoints" / "000000020" / "state.safetensors").write_bytes(b"")

    def kill(journal: Journal, *_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "record_step", kill)
        with pytest.raises(Killed):
            api.resume(run / "checkpoints" / "000000010")
    assert checkpoint.load(run).step == 10
    assert api.resume(run).finished


def test_the_best_that_is_told_is_the_best_that_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a run goes back behind it, as after a kill between an evaluation and the next save."""
    run = tmp_path / "run"
    returns = iter([1.0, 3.0, 2.0, 4.0])
    monkeypatch.setattr(Parts, "evaluate", lambda *_: {EVAL_RETURN: next(returns)})
    train(tiny(checkpoint=CheckpointConfig(every_vec_steps=10, keep=2)), run)
    back = api.resume(run / "checkpoints" / "000000010")
    assert back.best_return == checkpoint.load(run, which="best").score == 3.0
    on = api.resume(run, total_vec_steps=25)
    assert on.best_return == checkpoint.load(run, which="best").score == 4.0


def test_restart_deletes_whole_checkpoints_only_when_told_twice(run: Path) -> None:
    (run / "checkpoints" / "last.json").unlink()
    outcome = command(run.parent, "resume", str(run), "--restart", "--no-video")
    outcome.assert_clean(2)
    assert "only together with --delete-checkpoints" in outcome.err
    assert checkpoint.whole_beside(run / "checkpoints") is not None
    args = ("--restart", "--delete-checkpoints", "--no-video")
    command(run.parent, "resume", str(run), *args).assert_clean(0)
    assert checkpoint.load(run).step == 20


def test_restart_still_works_where_there_is_nothing_to_lose(run: Path) -> None:
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(UserError, match="add --restart"):
        api.resume(run)
    assert api.resume(run, restart=True).finished


def killed_at(operation: int) -> None:
    """From now on: the so-many-th operation that changes the disk kills this process."""
    left = [operation]
    for name in ("mkdir", "replace", "rename", "rmdir", "fsync", "unlink"):
        true = getattr(os, name)

        def change(*args: Any, true: Any = true, **kwargs: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), 9)
            return true(*args, **kwargs)

        setattr(os, name, change)


@pytest.mark.parametrize("operation", [1, 5, 16])
def test_seeds_that_are_killed_go_on_with_all_seeds(operation: int, tmp_path: Path) -> None:
    preload()
    folder = tmp_path / "seeds"
    args = ["train", "support.trust_recipes:tiny", "--seeds", "3", "--folder", str(folder)]

    def act() -> None:
        killed_at(operation)
        main(args)

    assert Child(tmp_path, act).wait().code == -9
    again = ["resume", str(folder), "--restart"] if folder.exists() else args
    command(tmp_path, *again).assert_clean(0)
    steps = [checkpoint.load(folder / f"seed-{seed}").step for seed in range(3)]
    assert steps == [20, 20, 20]


def test_two_films_at_once_do_not_meet(run: Path) -> None:
    films = [start(run.parent, "record", str(run), "--seconds", "2") for _ in range(2)]
    for film in films:
        film.wait().assert_clean(0)
    frames, _ = imageio_ffmpeg.count_frames_and_secs(str(run / "videos" / "best.mp4"))
    assert frames == 40
    assert [p.name for p in (run / "videos").iterdir()] == ["best.mp4"]


SPOILED = [b"", b"{", b"\xff\xfe", b"[1]", b'{"vec_steps": "7"}', b'{"vec_steps": NaN}',
           b'{"vec_steps": 7, "x": NaN}', b'{"vec_steps": 7, "x": "much"}',
           b'{"vec_steps": 7, "x": 1e999}', b'{"vec_steps": 7, "x": [1]}',
           b'{"vec_steps": 1' + b"0" * 400 + b"}", b"[" * 100_000]  # fmt: skip


@pytest.mark.parametrize("spoiled", SPOILED, ids=lambda line: line[:30].decode("latin1"))
def test_damaged_lines_are_named(spoiled: bytes, tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    good = [json.dumps({"vec_steps": k, "x": 1.0}).encode() for k in (1, 2)]
    path.write_bytes(b"\n".join([good[0], spoiled, good[1], b""]))
    with pytest.warns(Notice, match=r"metrics.jsonl: 1 damaged line is left out \(2\)"):
        lines = read_lines(path)
    assert [line["vec_steps"] for line in lines] == [1, 2]


def test_a_resume_names_damaged_lines_and_goes_on(run: Path) -> None:
    metrics = run / "metrics.jsonl"
    lines = metrics.read_bytes().splitlines()
    metrics.write_bytes(b"\n".join([lines[0], b"rubbish", *lines[2:], b'{"vec_st']))
    outcome = command(run.parent, "resume", str(run), "--total-vec-steps", "25", "--no-video")
    outcome.assert_clean(0)
    assert "2 damaged lines are left out (2, 5)" in outcome.err
    assert [line["vec_steps"] for line in read_lines(metrics)] == [5, 15, 20, 25]


def test_compare_survives_nan_text_and_huge_numbers(tmp_path: Path) -> None:
    for name in ("one", "two"):
        for seed in range(2):
            folder = make_run(tmp_path / "runs", name, seed, [1.0, 2.0, 3.0, 4.0])
            with (folder / "metrics.jsonl").open("ab") as file:
                for value in (b"NaN", b"Infinity", b'"high"', b"1e400", b"null", b"1" * 400):
                    file.write(b'{"vec_steps": 50, "env_steps": 200, "train_seconds": 1, ')
                    file.write(b'"eval/return": ' + value + b"}\n")
                file.write(b'{"vec_steps": 60, "eval/return": 1.0}\n')
    outcome = command(
        tmp_path,
        "compare",
        str(tmp_path / "runs"),
        "--folder",
        str(tmp_path / "out"),
        "--reps",
        "100",
    )
    outcome.assert_clean(0)
    assert outcome.err.count("6 damaged lines are left out") == 4
