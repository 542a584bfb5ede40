"""Where the processes of a study run: on this machine, or on a Ray cluster."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from fleetfoot.errors import UserError, writing
from fleetfoot.files import open_append

LOST = 1  # exit code of a process whose machine is gone


class Process(Protocol):
    """The part of `subprocess.Popen` that a study needs."""

    def poll(self) -> int | None: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...
    def wait(self) -> int: ...


class Launcher(Protocol):
    """Starts a command whose output goes to the end of `log`. The command's standard input closes when we end."""

    def start(self, command: Sequence[str], log: Path) -> Process: ...


def make_folder(logs: Path) -> None:
    """UserError where there is a link: the study may be a stranger's."""
    logs.mkdir(parents=True, exist_ok=True)
    if logs.is_symlink():
        raise UserError(f"{logs} is a link, which is not followed.")


class Locally:
    """Processes on this machine."""

    def start(self, command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
        with writing(log):
            make_folder(log.parent)
            with open_append(log) as file:
                return subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,  # closes when this process ends
                    stdout=file,
                    stderr=file,
                    start_new_session=True,  # Ctrl-C is for the study, which passes it on once
                )


class OnRay:
    """Processes somewhere in a Ray cluster, each beside an actor that asks for its cores and GPUs.

    All machines must see the study's folder under the same path. Ray ends the actors when the study ends, however it
    ends; then the standard input of their processes closes.
    """

    def __init__(self, ray: Any, *, cpus: float, gpus: float) -> None:
        self.ray = ray
        self.host = ray.remote(num_cpus=cpus, num_gpus=gpus, max_restarts=0, max_concurrency=3)(
            Host
        )

    def start(self, command: Sequence[str], log: Path) -> RayProcess:
        with writing(log):
            make_folder(log.parent)
        return RayProcess(self.ray, self.host.remote(list(command), str(log), os.getcwd()))


class Host:
    """The actor beside a process."""

    def __init__(self, command: list[str], log: str, folder: str) -> None:
        os.chdir(folder)
        self.process = Locally().start(command, Path(log))

    def wait(self) -> int:
        return self.process.wait()

    def terminate(self) -> None:
        self.process.terminate()

    def kill(self) -> None:
        self.process.kill()


class RayProcess:
    """A process in the cluster. Until there is room for it, it waits there."""

    def __init__(self, ray: Any, host: Any) -> None:
        self.ray, self.host = ray, host
        self.code = host.wait.remote()

    def poll(self) -> int | None:
        ended, _ = self.ray.wait([self.code], timeout=0)
        return self.wait() if ended else None

    def terminate(self) -> None:
        self.host.terminate.remote()

    def kill(self) -> None:
        self.host.kill.remote()

    def wait(self) -> int:
        try:
            code = int(self.ray.get(self.code))
        except self.ray.exceptions.RayError:
            return LOST
        self.ray.kill(self.host)  # its cores are free again
        return code
