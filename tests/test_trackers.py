"""Films, hyper-parameters and other services: against fakes, and against the real packages where they work offline."""

from __future__ import annotations

import io
import json
import sqlite3
import sys
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fleetfoot import api
from fleetfoot.cli.train import finish
from fleetfoot.config import to_json
from fleetfoot.errors import Notice, UserError
from fleetfoot.log import Counters, LogConfig, TensorBoard, Trackio
from fleetfoot.log.films import as_gif
from fleetfoot.record import write_film
from support.trust_recipes import tiny

AFTER = Counters(vec_steps=10, env_steps=80, updates=20, train_seconds=1.0)


class FakeTracker(types.ModuleType):
    """What W&B and Trackio have in common; notes what it is told."""

    class Error(Exception):
        """Of W&B."""

    def __init__(self, name: str):
        super().__init__(name)
        self.started: list[dict[str, Any]] = []
        self.logged: list[dict[str, Any]] = []
        self.steps: list[int | None] = []
        self.finished = 0
        self.broken = False

    def init(self, **options: Any) -> Any:
        if self.broken:
            raise RuntimeError("out\nof order")
        self.started.append(options)
        return types.SimpleNamespace(
            log=self._log, finish=self._finish, define_metric=lambda *a, **k: None
        )

    def Video(self, path: str, format: str) -> tuple[str, str]:  # noqa: N802
        return Path(path).name, format

    def _log(self, metrics: dict[str, Any], step: int | None = None) -> None:
        self.logged.append(metrics)
        self.steps.append(step)

    def _finish(self) -> None:
        self.finished += 1


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> FakeTracker:
    fake = FakeTracker("wandb")
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


@pytest.fixture
def trackio(monkeypatch: pytest.MonkeyPatch) -> FakeTracker:
    fake = FakeTracker("trackio")
    monkeypatch.setitem(sys.modules, "trackio", fake)
    return fake


@pytest.fixture(scope="module")
def film(tmp_path_factory: pytest.TempPathFactory) -> Path:
    frames = [np.full((64, 400, 3), 8 * k, np.uint8) for k in range(24)]
    return write_film(frames, 24.0, tmp_path_factory.mktemp("film") / "best.mp4")


def test_wandb_is_told_whose_run_it_is_and_with_which(tmp_path: Path, wandb: FakeTracker) -> None:
    cfg = LogConfig(
        tensorboard=False,
        console=False,
        wandb_project="walkers",
        wandb_entity="lab",
        wandb_group="seeds",
        wandb_tags=("a", "b"),
    )
    cfg.build(tmp_path, total_vec_steps=10, recipe_json={"seed": 3}).close()
    (told,) = wandb.started
    assert (told["project"], told["entity"], told["group"]) == ("walkers", "lab", "seeds")
    assert (told["tags"], told["config"], told["resume"]) == (["a", "b"], {"seed": 3}, "allow")
    LogConfig(tensorboard=False, console=False, wandb_project="p").build(
        tmp_path / "other", total_vec_steps=10
    ).close()
    assert [wandb.started[1][name] for name in ("entity", "group", "tags")] == [None] * 3


def test_a_film_goes_into_the_same_runs(
    tmp_path: Path, film: Path, wandb: FakeTracker, trackio: FakeTracker
) -> None:
    cfg = LogConfig(wandb_project="w", trackio_project="t", console=False, every_vec_steps=1)
    log = cfg.build(tmp_path, total_vec_steps=10)
    log.write(AFTER, {"loss": 1.0})
    log.close()
    cfg.add_film(tmp_path, film, AFTER, None)
    for tracker in (wandb, trackio):
        first, second = tracker.started
        assert first == second
        assert tracker.logged[0]["loss"] == 1.0
        assert tracker.logged[1]["film"] == ("best.mp4", "mp4")
        assert tracker.finished == 2
    assert trackio.steps == [80, 80]
    assert wandb.started[0]["id"] in (tmp_path / "wandb-id.txt").read_text()
    assert trackio.started[0]["name"].startswith(f"{tmp_path.name}-")
    assert shown(tmp_path / "tensorboard", film) == 80


def shown(board: Path, film: Path) -> int:
    """The step of the film in TensorBoard's files, which must hold its frames."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(board), size_guidance={"images": 0}).Reload()
    (event,) = events.Images("film")
    data, size = as_gif(film)
    assert event.encoded_image_string == data
    assert (event.width, event.height) == size
    with Image.open(io.BytesIO(data)) as gif:
        assert gif.size == (320, 51)  # of 400 x 64
        assert gif.n_frames == 12  # type: ignore[attr-defined]  # half of 24 at 12 a second
        assert gif.is_animated  # type: ignore[attr-defined]
    return int(event.step)


def test_a_film_that_one_of_them_refuses_reaches_the_others(
    tmp_path: Path, film: Path, wandb: FakeTracker, trackio: FakeTracker
) -> None:
    trackio.broken = True
    cfg = LogConfig(wandb_project="w", trackio_project="t", tensorboard=False)
    with pytest.warns(Notice, match="the film is not in Trackio: Trackio did not start") as said:
        cfg.add_film(tmp_path, film, AFTER, None)
    assert "\n" not in str(said[0].message)
    assert wandb.logged[0]["film"] == ("best.mp4", "mp4")


def test_trackio_that_is_missing_or_broken_is_one_line(
    tmp_path: Path, trackio: FakeTracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    trackio.broken = True
    with pytest.raises(UserError, match=r"^Trackio did not start: RuntimeError: out of order$"):
        Trackio("p", tmp_path)
    monkeypatch.setitem(sys.modules, "trackio", None)
    with pytest.raises(UserError, match=r"Trackio.*: pip install "):
        Trackio("p", tmp_path)


def test_tensorboard_knows_the_recipe(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import metadata

    recipe = to_json(tiny())
    TensorBoard(tmp_path, recipe_json=recipe).close()
    events = EventAccumulator(str(tmp_path)).Reload()
    content = events.PluginTagToContent("hparams")[metadata.SESSION_START_INFO_TAG]
    told = metadata.parse_session_start_info_plugin_data(content).hparams
    assert told["seed"].number_value == recipe["seed"]
    assert told["agent"].string_value == recipe["agent"]["part"]
    assert told["agent.tau"].number_value == recipe["agent"]["tau"]
    text = events.Tensors("recipe/text_summary")[0].tensor_proto.string_val[0].decode()
    assert json.loads(text) == recipe


def test_a_finished_training_shows_its_film(
    tmp_path: Path, wandb: FakeTracker, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tiny()
    log = replace(recipe.log, wandb_project="w", wandb_tags=("x",), tensorboard=False)
    result = api.train(replace(recipe, log=log), tmp_path / "run")
    assert finish(result, video=True, imports=()) == 0
    assert "video" in capsys.readouterr().out
    assert wandb.logged[-1]["film"] == ("best.mp4", "mp4")
    assert wandb.logged[-1]["env_steps"] == result.counters.env_steps


@pytest.mark.slow
def test_the_real_wandb_takes_it_offline(
    tmp_path: Path, film: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    cfg = LogConfig(
        wandb_project="p", wandb_entity="e", wandb_tags=("a",), tensorboard=False, console=False
    )
    for resumed in (None, AFTER):
        log = cfg.build(tmp_path, total_vec_steps=10, recipe_json={"seed": 1}, resumed=resumed)
        log.write(AFTER, {"loss": 1.0})
        log.close()
    cfg.add_film(tmp_path, film, AFTER, {"seed": 1})
    runs = sorted((tmp_path / "wandb").glob("offline-run-*"))
    run_id = (tmp_path / "wandb-id.txt").read_text()
    assert len(runs) == 3
    # Not the folders' names: the second of two that begin in one second ends in "-1".
    assert all((run / f"run-{run_id}.wandb").exists() for run in runs)
    assert list(tmp_path.rglob("media/videos/*.mp4"))


@pytest.mark.slow
def test_the_real_trackio_keeps_it_on_this_machine(
    tmp_path: Path, film: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    pytest.importorskip("trackio")
    cfg = LogConfig(trackio_project="p", tensorboard=False, console=False)
    for resumed in (None, AFTER):
        log = cfg.build(tmp_path / "run", total_vec_steps=10, resumed=resumed)
        log.write(AFTER, {"loss": 1.0})
        log.close()
    cfg.add_film(tmp_path / "run", film, AFTER, None)
    (store,) = (tmp_path / "trackio").glob("*.db")
    with sqlite3.connect(store) as database:
        rows = database.execute("select run_name, step, metrics from metrics").fetchall()
    assert {name for name, _, _ in rows} == {f"run-{(tmp_path / 'run/trackio-id.txt').read_text()}"}
    assert [step for _, step, _ in rows] == [80, 80, 80]
    assert list((tmp_path / "trackio").rglob("*.mp4"))
