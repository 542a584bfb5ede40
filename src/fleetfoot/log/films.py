"""A film of a finished run, for those who watch its metrics elsewhere."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import imageio_ffmpeg
from PIL import Image

from fleetfoot.errors import Notice, one_line
from fleetfoot.log.meter import Counters
from fleetfoot.log.sinks import TensorBoard

MOST_FRAMES, FPS, MOST_PIXELS = 120, 12.0, 320  # of the GIF for TensorBoard, which plays no video


def publish_film(makers: dict[str, Callable[[], Any]], film: Path, counters: Counters) -> None:
    """Add a film to what `makers` open. Whatever fails is said, and the others get it all the same."""
    for name, make in makers.items():
        try:
            sink = make()
            try:
                sink.add_film(film, counters.env_steps)
            finally:
                sink.close()
        except Exception as error:
            text = f"the film is not in {name}: {one_line(error)}"
            warnings.warn(text, Notice, stacklevel=2)


class TensorBoardFilm:
    """Writes one more event file beside those of the run."""

    def __init__(self, folder: Path):
        self.board = TensorBoard(folder)

    def add_film(self, path: Path, env_steps: int) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        data, (width, height) = as_gif(path)
        image = Summary.Image(height=height, width=width, colorspace=3, encoded_image_string=data)
        self.board.add_summary(Summary(value=[Summary.Value(tag="film", image=image)]), env_steps)

    def close(self) -> None:
        self.board.close()


def as_gif(path: Path) -> tuple[bytes, tuple[int, int]]:
    """A smaller copy of a film, and its size."""
    frames, rate = _frames(path)
    out = io.BytesIO()
    first, *rest = frames
    first.save(out, "GIF", save_all=True, append_images=rest, duration=round(1000 / rate), loop=0)
    return out.getvalue(), first.size


def _frames(path: Path) -> tuple[list[Image.Image], float]:
    reader: Iterator[Any] = imageio_ffmpeg.read_frames(str(path))
    about = next(reader)
    every = max(1, round(about["fps"] / FPS))
    pictures: list[Image.Image] = []
    for place, frame in enumerate(reader):
        if place % every == 0 and len(pictures) < MOST_FRAMES:
            picture = Image.frombytes("RGB", about["size"], frame)
            picture.thumbnail((MOST_PIXELS, MOST_PIXELS))
            pictures.append(picture)
    return pictures, about["fps"] / every
