"""A whole vec step as CUDA graphs: one launch instead of some thousand.

Two ways. *Three* graphs, launched back to back, each recorded by the library whose kernels it holds: torch, Warp,
torch. *One*: torch records, and Warp adds its kernels to the same recording. One is tried first; where a driver
refuses, three are made.

Before a recording everything runs a few times as it is, so that kernels are compiled and memory has its place.
"""

from __future__ import annotations

import gc
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from fleetfoot.errors import Notice

if TYPE_CHECKING:
    from fleetfoot.envs.robot.env import RobotEnv
    from fleetfoot.envs.robot.warp import WarpEngine

WARM_UPS = 3
RECORDING = threading.Lock()  # two threads that record at once may disturb each other


def record(env: RobotEnv, compiled: bool = False, one_graph: bool = True) -> Callable[[], None]:
    """The vec step of `env`, recorded. Its state afterwards means nothing: a reset must follow."""
    from fleetfoot.envs.robot.warp import WarpEngine

    engine = env.engine
    assert isinstance(engine, WarpEngine)
    act, finish = env._act, env._finish
    if compiled:
        act, finish = torch.compile(act, dynamic=False), torch.compile(finish, dynamic=False)
    stream = torch.cuda.Stream(engine.device)  # type: ignore[no-untyped-call]
    with RECORDING, torch.no_grad(), _collecting_off():
        stream.wait_stream(torch.cuda.current_stream(engine.device))
        with torch.cuda.stream(stream):
            env.reset()
            for _ in range(WARM_UPS):
                act()
                engine.advance()
                finish()
        torch.cuda.synchronize(engine.device)
        if one_graph:
            try:
                run = _one(act, engine, finish, stream)
                for _ in range(2):  # some drivers record it, and refuse to launch it twice
                    run()
                torch.cuda.synchronize(engine.device)
            except RuntimeError as error:
                reason = str(error).strip().splitlines()[0][:200]
                warnings.warn(
                    f"the vec step is recorded as three CUDA graphs, not as one: {reason}",
                    Notice,
                    stacklevel=2,
                )
                torch.cuda.synchronize(engine.device)
                run = _three(act, engine, finish, stream)
        else:
            run = _three(act, engine, finish, stream)
        torch.cuda.synchronize(engine.device)
    return run


def _one(
    act: Callable[[], None],
    engine: WarpEngine,
    finish: Callable[[], None],
    stream: torch.cuda.Stream,
) -> Callable[[], None]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        act()
        engine.within()
        finish()
    return graph.replay


def _three(
    act: Callable[[], None],
    engine: WarpEngine,
    finish: Callable[[], None],
    stream: torch.cuda.Stream,
) -> Callable[[], None]:
    first, last = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(first, stream=stream, capture_error_mode="thread_local"):
        act()
    with torch.cuda.stream(stream):
        engine.record()
    with torch.cuda.graph(last, stream=stream, capture_error_mode="thread_local"):
        finish()

    def run() -> None:
        first.replay()
        engine.advance()
        last.replay()

    return run


@contextmanager
def _collecting_off() -> Iterator[None]:
    """A graph that is collected in the middle of a recording would be recorded too."""
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
