"""Speed from outside: precision, compilation and CUDA graphs, applied to agents that know of none of them.

learner      what a learner does, eagerly: draw, update, reprioritise
compile      precision, and losses and (on a GPU) optimiser steps through torch.compile
cuda_graph   the same updates, recorded as CUDA graphs
"""

from __future__ import annotations

import torch

from fleetfoot.agents.contract import Agent
from fleetfoot.execution.compile import (
    Compiled,
    Half,
    Mode,
    Precision,
    notice,
    possible_mode,
    resolved,
    updater,
)
from fleetfoot.execution.cuda_graph import RECORDING, CapturedLearner, why_not_captured
from fleetfoot.execution.learner import EagerLearner, Memory
from fleetfoot.log.timer import StepTimer

__all__ = [
    "RECORDING",
    "CapturedLearner",
    "Compiled",
    "EagerLearner",
    "Half",
    "Memory",
    "Mode",
    "Precision",
    "make_learner",
    "resolved",
    "updater",
]


def make_learner(
    agent: Agent,
    memory: Memory,
    rows: int,
    *,
    half: Half = "update",
    precision: Precision,
    mode: Mode,
    device: torch.device,
    timer: StepTimer | None = None,
    world: int = 1,
) -> EagerLearner:
    """The learner of a recipe.

    `rows` is the batch size, `half` which updates it makes (those of the policy alone need nothing but observations),
    `world` the number of processes that share gradients. Where what `mode` asks for cannot be done, one line says why,
    and the learner does what can be done.
    """
    mode = possible_mode(agent, mode, device)
    timer = timer or StepTimer(device)
    update = updater(agent, half=half, precision=precision, mode=mode, device=device)
    gather = memory.gather if mode == "eager" else Compiled(memory.gather, "memory.gather")
    kind = EagerLearner
    if mode == "captured":
        reason = why_not_captured(agent, device, world)
        if reason is None:
            kind = CapturedLearner
        else:
            notice(f"the learner runs without CUDA graphs: {reason}.")
    return kind(agent, memory, rows, update, gather, timer, half)
