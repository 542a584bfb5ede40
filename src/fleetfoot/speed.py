"""Speed from outside: precision and compilation, applied to agents that know of neither."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Literal

import torch

from fleetfoot.agents.agent import Agent
from fleetfoot.data import Batch, Learned

LOSSES = (
    "critic_loss",
    "policy_loss",
)  # what agents offer for compilation: pure functions of a batch


def learner(
    agent: Agent, *, precision: Literal["float32", "bf16"], compile: bool, device: torch.device
) -> Callable[[Batch], Learned]:
    """`agent.update`, in the precision asked for and with compiled losses."""
    if compile:
        for name in LOSSES:
            if hasattr(agent, name):
                setattr(agent, name, Compiled(getattr(agent, name), name))
    if precision == "float32":
        return agent.update

    def update(batch: Batch) -> Learned:
        # No cache of cast weights: an update changes weights and reads them again inside this context.
        with torch.autocast(device.type, dtype=torch.bfloat16, cache_enabled=False):
            return agent.update(batch)

    return update


class Compiled:
    """A function through torch.compile; as it was, after one warning, where compilation fails."""

    def __init__(self, function: Callable[..., Any], name: str):
        self.eager, self.name = function, name
        self.function = torch.compile(function)

    def __call__(self, *args: Any) -> Any:
        try:
            return self.function(*args)
        except Exception as error:
            if self.function is self.eager or not _is_compiler_error(error):
                raise
            reason = str(error).strip().splitlines()[0][:200]
            warnings.warn(f"{self.name} runs uncompiled: {reason}", stacklevel=2)
            self.function = self.eager
            return self.eager(*args)


def _is_compiler_error(error: BaseException) -> bool:
    return type(error).__module__.startswith(("torch._dynamo", "torch._inductor"))
