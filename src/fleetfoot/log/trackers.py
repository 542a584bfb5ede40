"""Where metrics and films go besides the run folder, if asked: W&B and Trackio, whose interfaces are nearly the same.

A run keeps one id in its folder, so that a resume goes on in the same run there.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fleetfoot import extras
from fleetfoot.errors import UserError, one_line, writing
from fleetfoot.files import read_bytes, write_text
from fleetfoot.log.meter import Counters


def _id(folder: Path, name: str) -> str:
    """The id of the run at a tracker, made once."""
    path = folder / name
    with writing(path):
        folder.mkdir(parents=True, exist_ok=True)
        if not os.path.lexists(path):
            write_text(path, secrets.token_hex(4))
    return read_bytes(path, most=100).decode(errors="replace").strip()


class WandB:
    """A run at Weights & Biases."""

    def __init__(
        self,
        project: str,
        folder: Path,
        *,
        config: Any = None,
        entity: str = "",
        group: str = "",
        tags: tuple[str, ...] = (),
    ) -> None:
        wandb = extras.load("wandb", "wandb", "W&B logging needs the wandb package")
        run_id = _id(folder, "wandb-id.txt")
        try:
            self._run = wandb.init(
                project=project,
                entity=entity or None,
                group=group or None,
                tags=list(tags) or None,
                name=folder.name,
                id=run_id,
                resume="allow",
                dir=str(folder),
                config=config,
            )
        except wandb.Error as error:
            reason = " ".join(str(error).split())
            raise UserError(
                f"W&B did not start: {reason}; run `wandb login` or set WANDB_MODE=offline"
            ) from error
        # W&B's own step only grows. After a resume from an earlier checkpoint it would drop what comes again.
        self._run.define_metric("*", step_metric="env_steps")

    def write(self, counters: Counters, metrics: Mapping[str, float]) -> None:
        self._run.log({**metrics, **asdict(counters)})

    def add_film(self, path: Path, env_steps: int) -> None:
        import wandb

        kind: Any = path.suffix[1:].lower()  # a Literal, which a suffix cannot be
        film = wandb.Video(str(path), format=kind)
        self._run.log({"film": film, "env_steps": env_steps})

    def close(self) -> None:
        self._run.finish()


class Trackio:
    """A run in Trackio: on this machine, or in the Hugging Face Space that the variable TRACKIO_SPACE_ID names."""

    def __init__(self, project: str, folder: Path, *, config: Any = None, group: str = "") -> None:
        trackio = extras.load("trackio", "trackio", "Trackio logging needs the trackio package")
        # A run is known by its name alone, so that of another folder must not be equal.
        name = f"{folder.name}-{_id(folder, 'trackio-id.txt')}"
        try:
            self._run = trackio.init(
                project=project,
                name=name,
                group=group or None,
                config=config,
                resume="allow",
                space_id=os.environ.get("TRACKIO_SPACE_ID"),
            )
        except Exception as error:  # it has no errors of its own
            raise UserError(f"Trackio did not start: {one_line(error)}") from error

    def write(self, counters: Counters, metrics: Mapping[str, float]) -> None:
        self._run.log({**metrics, **asdict(counters)}, step=counters.env_steps)

    def add_film(self, path: Path, env_steps: int) -> None:
        import trackio

        kind: Any = path.suffix[1:].lower()
        film = trackio.Video(str(path), format=kind)
        self._run.log({"film": film}, step=env_steps)

    def close(self) -> None:
        self._run.finish()
