"""A whole vec step as one CUDA graph: one launch instead of a thousand.

torch captures, and Warp adds its kernels to the same graph. Before that everything runs a few times as it is, so
that kernels are compiled and memory has its place. Where a driver refuses, vec steps stay eager, and one line says so.
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
CAPTURING = threading.Lock()  # two threads that capture at once may disturb each other


def capture(env: RobotEnv, engine: WarpEngine) -> Callable[[], None]:
    """The vec step of `env`, captured. A reset must follow; it is then as new."""
    stream = torch.cuda.Stream(engine.device)  # type: ignore[no-untyped-call]
    run = env._vec_step
    with CAPTURING, torch.no_grad(), _collecting_off():
        stream.wait_stream(torch.cuda.current_stream(engine.device))
        with torch.cuda.stream(stream):
            env.reset()
            for _ in range(WARM_UPS):
                env._vec_step()
        torch.cuda.synchronize(engine.device)
        try:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                env._act()
                engine.within()
                env._finish()
            for _ in range(2):  # some drivers capture it, and refuse to launch it twice
                graph.replay()
            torch.cuda.synchronize(engine.device)
            run = graph.replay
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[0][:200]
            if "between CPU and CUDA" in reason:
                reason = "the task makes a tensor in every step; make it in bind, and index with slices, not lists"
            warnings.warn(f"vec steps run without a CUDA graph: {reason}", Notice, stacklevel=2)
            torch.cuda.synchronize(engine.device)
    env._forget()
    return run


@contextmanager
def _collecting_off() -> Iterator[None]:
    """A graph that is collected in the middle of a capture would become a part of it."""
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
