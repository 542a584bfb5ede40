"""Films of a policy as MP4 or GIF, and strips of frames as PNG.

frames = list(film(policy, env, seconds=10))
write_film(frames, frame_rate(env.spec), Path("policy.mp4"))
"""

from __future__ import annotations

import contextlib
import math
import signal
import threading
import warnings
from collections.abc import Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import imageio_ffmpeg
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import nn

from fleetfoot.data import EnvSpec
from fleetfoot.envs.vec_env import VecEnv
from fleetfoot.errors import UserError
from fleetfoot.files import replacing

Frame: TypeAlias = NDArray[np.uint8]  # [H, W, 3]

MOST_SECONDS = 3_600.0  # of a film
FASTEST = 50.0  # frames per second; more is not seen, and rendering is the slow part

# What ffmpeg is told, by the ending of the file.
ENCODERS: dict[str, dict[str, Any]] = {
    ".mp4": {  # H.264 that every browser plays
        "codec": "libx264",
        "pix_fmt_out": "yuv420p",
        "output_params": ["-movflags", "+faststart"],
    },
    ".gif": {  # with a palette made for these frames; without one the colours are those of a fixed table
        "codec": "gif",
        "pix_fmt_out": "pal8",
        "output_params": ["-vf", "split[a][b];[a]palettegen[p];[b][p]paletteuse"],
    },
}


def steps_per_frame(spec: EnvSpec) -> int:
    """How many steps pass between two frames, so that a film in real time stays at `FASTEST` or below."""
    return max(1, math.ceil(1.0 / (FASTEST * spec.step_seconds) - 1e-9))


def frame_rate(spec: EnvSpec) -> float:
    """Frames per second at which the film shows simulated time as it passes."""
    return 1.0 / (spec.step_seconds * steps_per_frame(spec))


@torch.no_grad()
def film(policy: nn.Module, env: VecEnv, seconds: float) -> Iterator[Frame]:
    """Frames of environment 0, for `seconds` of simulated time after a reset, across the ends of episodes."""
    if not 0 < seconds <= MOST_SECONDS:
        raise UserError(
            f"a video cannot have {seconds:g} seconds; give more than 0 and at most {MOST_SECONDS:,.0f}."
        )
    skip = steps_per_frame(env.spec)
    obs = env.reset()
    for step in range(math.ceil(seconds / env.spec.step_seconds)):
        if step % skip == 0:
            yield env.render(0)
        obs = env.step(policy(obs)).obs


def check_ending(path: Path, *endings: str) -> None:
    """UserError unless the name ends in one of these: it says what is written."""
    if path.suffix.lower() not in endings:
        raise UserError(f"{path} must end in {' or '.join(endings)}.")


def write_film(frames: Iterable[Frame], fps: float, path: Path) -> Path:
    """Encode as MP4 or GIF, by the ending of the name. A film that was not finished leaves nothing at `path`."""
    check_ending(path, *ENCODERS)
    writer, sent = None, 0
    with replacing(path) as hidden:
        hidden.touch()  # where that is impossible, ffmpeg would say so in many lines
        try:
            for frame in frames:
                picture = _even(frame)
                if writer is None:
                    writer = imageio_ffmpeg.write_frames(
                        str(hidden),
                        (picture.shape[1], picture.shape[0]),
                        fps=fps,
                        macro_block_size=2,
                        ffmpeg_log_level="fatal",  # of a film that Ctrl-C cut, it would tell more
                        **ENCODERS[path.suffix.lower()],
                    )
                    _start(writer)
                _send(writer, picture, path)
                sent += 1
            if writer is None:
                raise UserError("a video needs at least one frame.")
        finally:
            if writer is not None:
                writer.close()
        if _frames_in(hidden) < sent:  # nothing else tells that ffmpeg failed at the end
            raise UserError(f"cannot write {path}: ffmpeg left it incomplete; is the disk full?")
    return path


def write_strip(frames: Sequence[Frame], path: Path, count: int = 4) -> Path:
    """`count` frames, evenly spread from the first to the last, side by side in one PNG."""
    check_ending(path, ".png")
    if len(frames) < count:
        raise UserError(f"a strip of {count} frames cannot be cut from {len(frames)}.")
    chosen = np.linspace(0, len(frames) - 1, count).round().astype(int)
    with replacing(path) as hidden:
        Image.fromarray(np.concatenate([frames[i] for i in chosen], axis=1)).save(hidden, "PNG")
    return path


def _start(writer: Generator[None, Any, None]) -> None:
    """Start the encoder without JAX's warning.

    JAX, where a simulator has loaded it, warns of a deadlock whenever a process forks; here another program replaces
    the child at once.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"os\.fork\(\) was called")
        with _without_ctrl_c():
            writer.send(None)


@contextlib.contextmanager
def _without_ctrl_c() -> Iterator[None]:
    """Ctrl-C waits until the encoder has started, which never sees it."""
    if threading.current_thread() is not threading.main_thread():  # others do not see it either
        yield
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        if before is not None:
            signal.signal(signal.SIGINT, before)
    if came and callable(before):
        before(signal.SIGINT, None)


def _send(writer: Generator[None, Any, None], picture: Frame, path: Path) -> None:
    try:
        writer.send(picture)
    except OSError as error:  # of many lines, with the whole command
        raise UserError(
            f"cannot write {path}: ffmpeg ended before the film did; is the disk full?"
        ) from error


def _frames_in(path: Path) -> int:
    try:
        return int(imageio_ffmpeg.count_frames_and_secs(str(path))[0])
    except RuntimeError:  # it is no film
        return 0


def _even(frame: Frame) -> Frame:
    """yuv420p halves both sides, so an odd last row or column is cut off."""
    height, width = frame.shape[0] // 2 * 2, frame.shape[1] // 2 * 2
    return np.ascontiguousarray(frame[:height, :width])
