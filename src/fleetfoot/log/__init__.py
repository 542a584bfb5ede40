"""The log: the one place where metrics leave their device.

`meter` accumulates them without waiting for the device and reads them once per interval, `sinks`
are where the numbers go, `console` is the one a person watches, `clipping` one that warns, `curve` reads them back.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from fleetfoot.config import at_least, part
from fleetfoot.errors import UserError
from fleetfoot.log.clipping import ClippingNotice
from fleetfoot.log.console import Console
from fleetfoot.log.curve import Point, curve, plot_text
from fleetfoot.log.episodes import EpisodeStats
from fleetfoot.log.meter import EVAL_RETURN, Counters, Log, Mean, NonFinite, Sink, Totals, added
from fleetfoot.log.sinks import Dispensable, JsonLines, TensorBoard, WandB

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
    "WandB",
    "added",
    "curve",
    "plot_text",
]


@part
class LogConfig:
    """How often metrics are read and where they go besides metrics.jsonl."""

    every_vec_steps: int = 100
    """Vec steps between two lines of the log. Not seconds, so that the same run gives the same lines."""
    tensorboard: bool = True
    """Write event files for TensorBoard."""
    wandb_project: str = ""
    """Project at Weights & Biases; empty: none."""
    console: bool = True
    """Show progress: a bar in a terminal, plain lines elsewhere."""
    console_seconds: float = 10.0
    """Seconds between two plain lines where there is no terminal."""

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
        if self.wandb_project:  # before those that open files: it is the one that may be missing
            wandb = WandB(
                self.wandb_project, folder, config=recipe_json
            )  # asked for: it must start
            sinks.append(Dispensable("WandB", lambda: wandb))
        if self.tensorboard:
            events = folder / "tensorboard"
            sinks.append(Dispensable("TensorBoard", lambda: TensorBoard(events, resumed=resumed)))
        if self.console:
            seconds = self.console_seconds
            sinks.append(
                Dispensable(
                    "Console", lambda: Console(total_vec_steps, every_seconds=seconds, best=best)
                )
            )
        return Log(sinks, every_vec_steps=self.every_vec_steps)
