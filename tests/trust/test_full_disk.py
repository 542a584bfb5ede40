"""A disk that is full or read-only, at any place: one line, and training goes on where it can."""

from __future__ import annotations

import os
import resource
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fleetfoot import UserError, checkpoint, train
from fleetfoot.cli.main import main
from fleetfoot.errors import Notice
from fleetfoot.log import Counters, Log, TensorBoard
from fleetfoot.log.console import Console
from support.forked import Child, command, preload
from support.trust_recipes import EVALUATION, tiny


def failing(*args: Any, **kwargs: Any) -> Any:
    raise OSError(28, "No space left on device")


def trained(recipe: Any, folder: Path) -> list[str]:
    """What a run that is finished has said."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", Notice)
        assert train(recipe, folder).finished
    return [str(w.message) for w in caught if w.category is Notice]


@pytest.mark.parametrize(
    ("sink", "method"),
    [(TensorBoard, "__init__"), (TensorBoard, "write"), (Console, "write"), (Console, "close")],
)
def test_a_sink_that_fails_is_left_out(
    sink: type, method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink, method, failing)
    recipe = tiny()
    log = replace(recipe.log, tensorboard=sink is TensorBoard, console=sink is Console)
    (said,) = trained(replace(recipe, log=log), tmp_path / "run")
    assert said == f"{sink.__name__} is left out: OSError: [Errno 28] No space left on device"


def test_wandb_that_fails_later_is_left_out() -> None:
    from fleetfoot.log.sinks import Dispensable

    class WandB:
        def write(self, counters: Counters, metrics: Any) -> None:
            raise ConnectionError("no network")

        def close(self) -> None:
            raise AssertionError("it is not used again")

    log = Log([Dispensable("WandB", WandB)])
    with pytest.warns(Notice, match="WandB is left out: ConnectionError: no network"):
        log.write(Counters(), {})
    log.write(Counters(), {})
    log.close()


def test_a_log_that_cannot_be_written_ends_in_one_line_and_saves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fleetfoot.log.sinks import JsonLines

    true_write = JsonLines.write

    def write(self: JsonLines, counters: Counters, metrics: Any) -> None:
        if counters.vec_steps == 15:
            self.path = self.path / "not a folder"
            self._file = None
        true_write(self, counters, metrics)

    monkeypatch.setattr(JsonLines, "write", write)
    with pytest.raises(UserError, match=r"cannot write .*; saved after 15 vec steps"):
        train(tiny(evaluation=EVALUATION), tmp_path / "run")
    assert checkpoint.load(tmp_path / "run").step == 15


def limited(place: Path, size: int, *args: str) -> Any:
    """The command, where no file may become larger than `size` bytes: every write beyond it fails."""
    preload()

    def act() -> None:
        import signal

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        main(list(args))

    read, write = os.pipe()  # what is said must get through
    child = Child(place, act, stdout=write)
    os.close(write)
    os.close(read)
    return child.wait()


@pytest.mark.parametrize(
    ("name", "size"), [("tiny", 0), ("plotting", 100), ("tiny", 3_000), ("plotting", 20_000)]
)
def test_files_that_cannot_grow(size: int, name: str, tmp_path: Path) -> None:
    recipe = f"support.trust_recipes:{name}"
    outcome = limited(tmp_path, size, "train", recipe, "--folder", str(tmp_path / "run"))
    if size:  # else not even standard error can be written, which is a file here
        outcome.assert_clean()
    assert outcome.code != 0 or checkpoint.load(tmp_path / "run").step == 20


def test_a_film_that_cannot_be_written(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    train(tiny(), folder)
    (folder / "videos").write_text("in the way")
    outcome = command(tmp_path, "record", str(folder), "--seconds", "0.5")
    outcome.assert_clean(2)
    assert outcome.err.startswith(f"fleetfoot: cannot write {folder / 'videos' / 'best.mp4'}")
    again = command(tmp_path, "resume", str(folder), "--total-vec-steps", "25")
    again.assert_clean(0)
    assert again.err.startswith("fleetfoot: no video: cannot write ")
