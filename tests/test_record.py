"""Films: real time, playable, whole or not there at all."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import imageio_ffmpeg
import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from fleetfoot import record
from fleetfoot.data import Continuous, EnvSpec, Obs
from fleetfoot.envs.tensor import TensorConfig
from fleetfoot.errors import UserError

SPEC = EnvSpec("x", 1, (1,), Continuous(1), torch.device("cpu"))


class Push(nn.Module):
    def forward(self, obs: Obs) -> Tensor:
        return torch.ones(len(obs.actor), 1)


def pictures(count: int, height: int = 32, width: int = 48) -> list[record.Frame]:
    return [np.full((height, width, 3), 10 * i, dtype=np.uint8) for i in range(count)]


@pytest.mark.parametrize(
    ("step_seconds", "skip", "fps"),
    [(0.05, 1, 20.0), (0.02, 1, 50.0), (0.01, 2, 50.0), (0.008, 3, 1 / 0.024), (0.002, 10, 50.0)],
)
def test_film_shows_real_time_at_no_more_than_50_frames(
    step_seconds: float, skip: int, fps: float
) -> None:
    spec = dataclasses.replace(SPEC, step_seconds=step_seconds)
    assert record.steps_per_frame(spec) == skip
    assert record.frame_rate(spec) == pytest.approx(fps)


def test_film_of_the_pendulum_plays_back_with_every_frame(tmp_path: Path) -> None:
    env = TensorConfig(task="pendulum").build(1, 0, torch.device("cpu"))
    frames = list(record.film(Push(), env, seconds=2.0))
    assert len(frames) == round(2.0 / env.spec.step_seconds / record.steps_per_frame(env.spec))
    path = record.write_film(frames, record.frame_rate(env.spec), tmp_path / "videos" / "a.mp4")

    reader = imageio_ffmpeg.read_frames(str(path))
    meta = next(reader)
    assert meta["codec"] == "h264"
    assert "yuv420p" in meta["pix_fmt"]
    assert meta["fps"] == pytest.approx(record.frame_rate(env.spec), rel=1e-3)
    width, height = meta["size"]
    played = [np.frombuffer(raw, np.uint8).reshape(height, width, 3) for raw in reader]
    assert len(played) == len(frames)
    # The film shows what was rendered, and the pendulum moves in it.
    assert np.abs(played[0].astype(int) - frames[0][:height, :width]).mean() < 10
    assert np.abs(played[0].astype(int) - played[-1]).mean() > 0.5
    assert [p.name for p in path.parent.iterdir()] == ["a.mp4"]


def test_a_name_that_ends_in_gif_gets_a_gif_in_real_time(tmp_path: Path) -> None:
    frames = [np.roll(_ramp(), 3 * i, axis=1) for i in range(25)]
    path = record.write_film(frames, 1 / 0.024, tmp_path / "a.GIF")
    assert path.read_bytes()[:6] == b"GIF89a"
    with Image.open(path) as image:
        assert (image.n_frames, image.size) == (25, (48, 32))  # type: ignore[attr-defined]
        shown, milliseconds = [], 0.0
        for number in range(25):
            image.seek(number)
            shown.append(np.asarray(image.convert("RGB")).astype(int))
            milliseconds += image.info["duration"]
        assert image.info["loop"] == 0  # for ever
    assert milliseconds == pytest.approx(25 * 24, abs=20)
    assert max(np.abs(a - b).mean() for a, b in zip(shown, frames, strict=True)) < 12
    assert [p.name for p in tmp_path.iterdir()] == ["a.GIF"]


def _ramp() -> record.Frame:
    """Blue to yellow, in many shades."""
    x = np.linspace(0, 255, 48, dtype=np.uint8)
    row = np.stack([x, x, 255 - x], axis=1)
    return np.broadcast_to(row, (32, 48, 3)).copy()


@pytest.mark.parametrize("name", ["a.avi", "a", "a.png"])
def test_other_endings_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match=rf"{name} must end in \.mp4 or \.gif\.$"):
        record.write_film(pictures(3), 20, tmp_path / name)
    with pytest.raises(UserError, match=r"a\.jpg must end in \.png\.$"):
        record.write_strip(pictures(8), tmp_path / "a.jpg")
    assert not any(tmp_path.iterdir())


def test_what_cannot_be_written_is_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"cannot write .*a\.mp4: Not a directory"):
        record.write_film(pictures(3), 20, tmp_path / "file" / "b" / "a.mp4")
    with pytest.raises(UserError, match=r"cannot write /proc/a\.mp4: No such file"):
        record.write_film(pictures(3), 20, Path("/proc/a.mp4"))  # a folder that is there
    assert capfd.readouterr().err == ""  # nothing of ffmpeg
    with pytest.raises(UserError, match=r"cannot write .*a\.png: Not a directory"):
        record.write_strip(pictures(4), tmp_path / "file" / "b" / "a.png")


def test_odd_sizes_are_cut_to_even_ones(tmp_path: Path) -> None:
    path = record.write_film(pictures(3, 33, 47), 20, tmp_path / "odd.mp4")
    assert next(imageio_ffmpeg.read_frames(str(path)))["size"] == (46, 32)


def test_a_film_that_breaks_off_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    path.write_bytes(b"old")

    def broken() -> object:
        yield from pictures(2)
        raise UserError("no more light")

    with pytest.raises(UserError, match="no more light"):
        record.write_film(broken(), 20, path)  # type: ignore[arg-type]
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(sys.platform == "win32", reason="has no limits of files")
@pytest.mark.parametrize("name", ["a.mp4", "a.gif"])
def test_a_film_for_which_there_is_no_room_leaves_the_old_one(tmp_path: Path, name: str) -> None:
    program = """
import resource, signal, sys
from pathlib import Path
import numpy as np
from fleetfoot.errors import UserError
from fleetfoot.record import write_film
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
random = np.random.default_rng(0)
try:
    write_film(random.integers(0, 256, (10, 240, 320, 3), np.uint8), 20.0, Path(sys.argv[1]))
except UserError as error:
    print(error)
"""
    path = tmp_path / name
    path.write_bytes(b"old")
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True
    )
    assert "is the disk full?" in done.stdout
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_strip_takes_the_first_the_last_and_even_steps_between(tmp_path: Path) -> None:
    path = record.write_strip(pictures(10), tmp_path / "docs" / "strip.png")
    image = np.asarray(Image.open(path))
    assert image.shape == (32, 4 * 48, 3)
    assert [int(image[0, 48 * i, 0]) for i in range(4)] == [0, 30, 60, 90]


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf"), 1e12])
def test_a_film_of_nothing_or_without_end_is_refused(seconds: float) -> None:
    env = TensorConfig(task="pendulum").build(1, 0, torch.device("cpu"))
    with pytest.raises(UserError, match="cannot have"):
        next(record.film(Push(), env, seconds))
    with pytest.raises(UserError, match="at least one frame"):
        record.write_film([], 20, Path("never.mp4"))


def test_too_few_frames_for_a_strip(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="4 frames cannot be cut from 3"):
        record.write_strip(pictures(3), tmp_path / "strip.png")


def test_writing_a_film_beside_jax_warns_of_no_deadlock(tmp_path: Path) -> None:
    # As JAX does it, in a process of its own: such a hook stays for ever.
    program = """
import os, sys, warnings
from pathlib import Path
import numpy as np
from fleetfoot.record import write_film
def warn(): warnings.warn("os.fork() was called. Beware.", RuntimeWarning)
os.register_at_fork(before=warn)
write_film([np.zeros((32, 48, 3), np.uint8)] * 3, 20.0, Path(sys.argv[1]))
"""
    path = tmp_path / "film.mp4"
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True
    )
    assert path.exists()
    assert "os.fork() was called" not in done.stderr


def test_ctrl_c_waits_until_the_encoder_has_started() -> None:
    started: list[bool] = []

    def start() -> None:
        with record._without_ctrl_c():
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.05)
            started.append(True)

    with pytest.raises(KeyboardInterrupt):
        start()
    assert started
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
