"""Gymnasium environments in several processes, with actions and observations in shared memory.

For simulators whose step is slow Python: each process steps its share of the environments, one after the other. A vec
step costs one byte to and one byte from each process; nothing is pickled. The memory has no name and the processes end
when their pipe closes, so nothing is left behind however the parent ends. For Linux.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import mmap
import os
import struct
import subprocess
import sys
import time
import weakref
from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fleetfoot.data import Continuous, EnvSpec, Obs, Step
from fleetfoot.envs.gym_copy import how_it_ended, silent
from fleetfoot.envs.host import HostEnv, seeds_of_copies
from fleetfoot.envs.info import InfoRows
from fleetfoot.envs.subprocess import worker as process_worker
from fleetfoot.envs.subprocess.worker import DONE, DRAW, MISTAKE, NAMED, RESET, STEP, Shared
from fleetfoot.envs.vec_env import EnvFault
from fleetfoot.errors import Hung, UserError

PATIENCE = 5.0  # seconds a process has to end by itself


class Worker:
    """One process and the pipes to it."""

    def __init__(self, memory_file: int, settings: dict[str, Any], env: dict[str, str]):
        self.first: int = settings["first"]
        self.last = self.first + len(settings["seeds"])
        self.seeds: list[int] = settings["seeds"]
        self.shared: Shared | None = None  # once the process has said how large the arrays are
        self.names: list[str] = []  # of the lines of `Shared.info`, as this process uses them
        self.patience = PATIENCE
        read, write = os.pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-m", process_worker.__name__, str(memory_file), str(write)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,  # some packages greet
            pass_fds=(memory_file, write),
            # The child finds what the parent finds, also what was put on the path by hand.
            env={**os.environ, **env, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            bufsize=0,
        )
        os.close(write)
        self.answers: BinaryIO = os.fdopen(read, "rb", buffering=0)
        assert self.process.stdin is not None
        self.requests: Any = self.process.stdin
        data = json.dumps(settings).encode()
        self.send(struct.pack("<I", len(data)) + data)

    def send(self, request: bytes) -> None:
        self.begun = time.monotonic()
        with contextlib.suppress(BrokenPipeError):  # `receive` says how it ended
            self.requests.write(request)

    def receive(self, text: bool = False) -> bytes:
        """Wait for the answer to one request. Raises where an environment or the process failed."""
        try:
            kind = process_worker.read_exactly(self.answers, 1)
            if kind == DONE:
                return process_worker.read_text(self.answers) if text else b""
            reason = process_worker.read_text(self.answers).decode()
        except EOFError:
            what = how_it_ended(self.process.wait())
            raise self._fault(what, who="the process of environment") from None
        except Hung as error:
            raise self._fault(silent(self.begun)) from error
        if kind == NAMED:
            self.names = json.loads(reason)
            return b""
        if kind == MISTAKE:
            raise UserError(reason)
        raise self._fault(reason)

    def _fault(self, what: str, who: str = "environment") -> EnvFault:
        """Names the environment whose turn it was; before there are arrays, the first of this process."""
        index = self.first if self.shared is None else int(self.shared.current[self.first])
        return EnvFault(what, who=who, index=index, seed=self.seeds[index - self.first])

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.requests.close()
        try:
            self.process.wait(self.patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.answers.close()


class ProcessEnv(HostEnv):
    """N copies of a Gymnasium environment behind the `VecEnv` contract."""

    why_no_state = "Gymnasium environments do not tell their state"

    def __init__(
        self,
        name: str,
        gym_id: str,
        kwargs: dict[str, Any],
        num_envs: int,
        processes: int,
        seed: int,
        device: torch.device,
        env: dict[str, str] | None = None,
    ) -> None:
        self.workers: list[Worker] = []
        memory_file = os.memfd_create("fleetfoot")
        self.close = weakref.finalize(self, _close, self.workers, memory_file)
        seeds = seeds_of_copies(seed, num_envs)
        count = min(processes, num_envs)
        bounds = [num_envs * k // count for k in range(count + 1)]
        try:
            for first, last in itertools.pairwise(bounds):
                settings = {
                    "name": gym_id,
                    "kwargs": kwargs,
                    "first": first,
                    "seeds": seeds[first:last],
                    "num_envs": num_envs,
                }
                self.workers.append(Worker(memory_file, settings, env or {}))
            # They were all started first, and get ready at the same time.
            about, *_ = [json.loads(worker.receive(text=True)) for worker in self.workers]
        except (UserError, EnvFault) as error:
            self.close()
            why = f"its process {error}" if isinstance(error, EnvFault) else str(error)
            raise UserError(f"{name} cannot be made: {why}") from None
        except BaseException:
            self.close()
            raise
        sizes = num_envs, about["obs_size"], about["action_size"]
        os.ftruncate(memory_file, Shared(None, *sizes).end)
        self.shared = Shared(mmap.mmap(memory_file, 0), *sizes)
        self.info = InfoRows(num_envs)
        for worker in self.workers:
            worker.shared = self.shared
            self.shared.current[worker.first] = worker.first  # should it die before its first turn
            worker.send(b"g")
        self.spec = EnvSpec(
            name=name,
            num_envs=num_envs,
            obs_shape=(about["obs_size"],),
            action=Continuous(about["action_size"]),
            device=device,
            episode_length=about["episode_length"],
            step_seconds=about["step_seconds"],
        )

    def reset(self) -> Obs:
        self._tell(RESET)
        self._wait()
        self.info.forget()
        return self._obs(self.shared.obs)

    def step(self, action: Tensor) -> Step:
        self.send(action)
        return self.receive()

    def send(self, action: Tensor) -> None:
        shared = self.shared
        rows = action.cpu().numpy()
        if rows.shape != shared.action.shape:
            raise UserError(
                f"{self.spec.name} takes actions {list(shared.action.shape)}, not {list(rows.shape)}."
            )
        shared.action[:] = rows
        self._tell(STEP)

    def receive(self) -> Step:
        self._wait()
        shared = self.shared
        obs = next_obs = self._obs(shared.obs)
        if shared.terminated.any() or shared.truncated.any():
            next_obs = self._obs(shared.next_obs)
        return Step(
            obs,
            next_obs,
            self._tensor(shared.reward),
            self._tensor(shared.terminated),
            self._tensor(shared.truncated),
            self._info(),
        )

    def _info(self) -> dict[str, Tensor]:
        self.info.begin_step()
        for worker in self.workers:
            for line, name in enumerate(worker.names):
                told = ~np.isnan(self.shared.info[line])
                told[: worker.first] = told[worker.last :] = False
                self.info.tell(name, self.shared.info[line], told)
        return self._log_rows(self.info)

    def render(self, index: int = 0) -> NDArray[np.uint8]:
        self._require_open()
        worker = next(worker for worker in self.workers if index < worker.last)
        data = b""
        why: UserError | None = None
        with self._or_closed():
            worker.send(DRAW + struct.pack("<I", index))
            try:
                data = worker.receive(text=True)
            except UserError as error:  # a whole answer: nothing is left over
                why = error
        if why is not None:
            raise UserError(f"{self.spec.name} cannot be rendered here: {why}")
        height, width = struct.unpack("<II", data[:8])
        return np.frombuffer(data, np.uint8, offset=8).reshape(height, width, 3).copy()

    def _tell(self, request: bytes) -> None:
        self._require_open()
        with self._or_closed():
            for worker in self.workers:
                worker.send(request)

    def _wait(self) -> None:
        with self._or_closed():
            for worker in self.workers:
                worker.receive()

    def _require_open(self) -> None:
        if not self.workers:
            raise RuntimeError(f"{self.spec.name} is closed.")

    @contextlib.contextmanager
    def _or_closed(self) -> Iterator[None]:
        """Whatever breaks in, also Ctrl-C, closes: answers would be left over, and read as those of the next step."""
        try:
            yield
        except BaseException:
            for worker in self.workers:
                worker.patience = 0.0  # one of them may hang
            self.close()
            raise

    def _tensor(self, array: NDArray[Any]) -> Tensor:
        return super()._tensor(array.copy())  # the processes write to it again


def _close(workers: list[Worker], memory_file: int) -> None:
    for worker in workers:  # all of them first, so that they end at the same time
        with contextlib.suppress(OSError):
            worker.requests.close()
    for worker in workers:
        worker.close()
    workers.clear()
    os.close(memory_file)
