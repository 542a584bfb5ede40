"""Environments that fail in the first incarnation of one actor, or during evaluation. Ray's workers import this module
by name."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fleetfoot import guard
from fleetfoot.config import part
from fleetfoot.envs.tensor import TensorConfig, TensorEnv


@part
class CrashingConfig:
    """The cartpole, whose step number `at` fails in environments of this seed (0: of any seed). `how`: raise, exit (end
    the process), or hang in compiled code, which nothing interrupts."""

    seed: int = 0
    at: int = 20
    how: str = "raise"

    def build(self, num_envs: int, seed: int, device: torch.device) -> TensorEnv:
        env = TensorConfig(task="cartpole").build(num_envs, seed, device)
        if self.how == "hang":
            guard.GRACE = 0.0  # in this process
        if self.seed in (0, seed):
            true_step, count = env.step, 0

            def step(action: Tensor) -> Any:
                nonlocal count
                count += 1
                if count == self.at:
                    if self.how == "exit":
                        os._exit(1)
                    if self.how == "hang":
                        library, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(128)
                        for _ in range(2):  # it waits for itself
                            library.pthread_mutex_lock(mutex)
                    raise ZeroDivisionError("the pole has left the world")
                return true_step(action)

            env.step = step  # type: ignore[method-assign]
        return env

    def for_evaluation(self) -> TensorConfig:
        return TensorConfig(task="cartpole")


@part
class BadExamConfig:
    """The cartpole, with a bad evaluation. If `marker` is empty it raises an exception each time. Otherwise it kills
    its process the first time, and creates the file `marker` to remember that."""

    marker: str = ""

    def build(self, num_envs: int, seed: int, device: torch.device) -> TensorEnv:
        return TensorConfig(task="cartpole").build(num_envs, seed, device)

    def for_evaluation(self) -> ExamConfig:
        return ExamConfig(marker=self.marker)


@part
class ExamConfig:
    marker: str = ""

    def build(self, num_envs: int, seed: int, device: torch.device) -> TensorEnv:
        env = TensorConfig(task="cartpole").build(num_envs, seed, device)
        if not self.marker:

            def step(action: Tensor) -> Any:
                raise ZeroDivisionError("nobody passes")

            env.step = step  # type: ignore[method-assign]
        elif not Path(self.marker).exists():
            Path(self.marker).touch()
            os._exit(1)
        return env

    def for_evaluation(self) -> ExamConfig:
        return self


@part
class LongExamConfig:
    """The pendulum, whose episodes never end in an evaluation. The first step of one creates the file that the variable
    EXAM names."""

    exam: bool = False

    def build(self, num_envs: int, seed: int, device: torch.device) -> TensorEnv:
        env = TensorConfig().build(num_envs, seed, device)
        if self.exam:
            true_step, none = env.step, torch.zeros(num_envs, dtype=torch.bool)

            def step(action: Tensor) -> Any:
                Path(os.environ["EXAM"]).touch()
                return true_step(action)._replace(terminated=none, truncated=none)

            env.step = step  # type: ignore[method-assign]
        return env

    def for_evaluation(self) -> LongExamConfig:
        return LongExamConfig(exam=True)
