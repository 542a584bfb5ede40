"""The log: the one place where metrics leave their device.

`meter` accumulates them without waiting for the device and reads them once per interval, `sinks`
are where the numbers go, `trackers` those of other services, `films` what they get at the end, `console` is the one a
person watches, `clipping` one that warns, `curve` reads them back.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fleetfoot.config import at_least, part
from fleetfoot.errors import UserError
from fleetfoot.log.clipping import ClippingNotice
from fleetfoot.log.console import Console
from fleetfoot.log.curve import Point, curve, plot_text
from fleetfoot.log.episodes import EpisodeStats
from fleetfoot.log.films import TensorBoardFilm, publish_film
from fleetfoot.log.meter import EVAL_RETURN, Counters, Log, Mean, NonFinite, Sink, Totals, added
from fleetfoot.log.sinks import Dispensable, JsonLines, TensorBoard
from fleetfoot.log.trackers import Trackio, WandB

__all__ = [
    "EVAL_RETURN",
    "ClippingNotice",
    "Console",
    "Counters",
    "Dispensable",
    "EpisodeStats",
    "JsonLines",
    "Log",
    "LogConfig",
    "Mean",
    "NonFinite",
    "Point",
    "Sink",
    "TensorBoard",
    "Totals",
    "Trackio",
    "WandB",
    "added",
    "curve",
    "plot_text",
    "publish_film",
]


@part
class LogConfig:
    """How often metrics are read and where they go besides metrics.jsonl."""

    every_vec_steps: int = 100
    """Vec steps between two log lines. Not seconds, so that the same run gives the same lines."""
    tensorboard: bool = True
    """Write event files for TensorBoard."""
    wandb_project: str = ""
    """Project at Weights & Biases; empty: none."""
    wandb_entity: str = ""
    """User or team that the project belongs to; empty: your default."""
    wandb_group: str = ""
    """Group of related runs, such as the seeds of one study (also in Trackio)."""
    wandb_tags: tuple[str, ...] = ()
    """Tags of the run."""
    trackio_project: str = ""
    """Project in Trackio, which is free and keeps its data on this machine; empty: none."""
    console: bool = True
    """Show progress: a bar in a terminal, plain lines otherwise."""
    console_seconds: float = 10.0
    """Seconds between two plain lines if there is no terminal."""

    def __post_init__(self) -> None:
        at_least(self, "log", every_vec_steps=1, console_seconds=0)

    def build(
        self,
        folder: Path,
        *,
        total_vec_steps: int,
        recipe_json: Any = None,
        resumed: Counters | None = None,
        best: float | None = None,
    ) -> Log:
        """The log of the run in `folder`.

        `resumed` are the counters of the checkpoint a run goes on from (all zero where it begins
        again): lines after them are dropped. `best` is the best evaluation so far.
        """
        lines = JsonLines(folder / "metrics.jsonl")
        if resumed is not None:
            lines.truncate_after(resumed.vec_steps)
        elif os.path.lexists(lines.path):
            raise UserError(
                f"{lines.path} belongs to another run; resume that run or choose another folder"
            )
        sinks: list[Sink] = [lines]
        # Before those that open files: they may be missing, and since they were asked for, they must start.
        for name, make in self._trackers(folder, recipe_json).items():
            tracker = make()
            sinks.append(Dispensable(name, lambda tracker=tracker: tracker))  # type: ignore[misc]
        if self.tensorboard:
            events = folder / "tensorboard"
            sinks.append(
                Dispensable(
                    "TensorBoard",
                    lambda: TensorBoard(events, resumed=resumed, recipe_json=recipe_json),
                )
            )
        if self.console:
            seconds = self.console_seconds
            sinks.append(
                Dispensable(
                    "Console", lambda: Console(total_vec_steps, every_seconds=seconds, best=best)
                )
            )
        return Log(sinks, every_vec_steps=self.every_vec_steps)

    def _trackers(self, folder: Path, recipe_json: Any) -> dict[str, Callable[[], Any]]:
        makers: dict[str, Callable[[], Any]] = {}
        if self.wandb_project:
            makers["WandB"] = lambda: WandB(
                self.wandb_project,
                folder,
                config=recipe_json,
                entity=self.wandb_entity,
                group=self.wandb_group,
                tags=self.wandb_tags,
            )
        if self.trackio_project:
            makers["Trackio"] = lambda: Trackio(
                self.trackio_project, folder, config=recipe_json, group=self.wandb_group
            )
        return makers

    def add_film(self, folder: Path, film: Path, counters: Counters, recipe_json: Any) -> None:
        """Show a film of the finished run in `folder` wherever its metrics went."""
        makers = self._trackers(folder, recipe_json)
        if self.tensorboard:
            makers["TensorBoard"] = lambda: TensorBoardFilm(folder / "tensorboard")
        publish_film(makers, film, counters)
