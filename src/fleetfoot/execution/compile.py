"""Precision and compilation, applied to an agent from outside."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from traceback import walk_tb
from typing import Any, Literal

import torch

from fleetfoot.agents.contract import Agent, compiled_methods, compiled_steps
from fleetfoot.data import UpdateResult
from fleetfoot.errors import Notice
from fleetfoot.optim import LocalStepper

Mode = Literal["auto", "eager", "compiled", "captured"]
Precision = Literal["float32", "tf32", "bf16"]
Half = Literal["update", "update_critic", "update_policy"]
# Shapes that one function may be compiled for. Torch stops at 8 and runs the next ones uncompiled; DAA's loss has one
# for each number of imagined actions, and one without.
MOST_SHAPES = 64
# Independent small kernels become one: an update of small networks is hundreds of them, and the gaps between them cost
# as much as they do. The search for loops in another order fails (torch 2.11) at operations on lists of tensors.
OPTIONS: dict[str, Any] = {"combo_kernels": True, "loop_ordering_after_fusion": False}


def resolved(mode: Mode, device: torch.device) -> Mode:
    """What "auto" means on this device."""
    if mode == "auto":
        return "captured" if device.type == "cuda" else "eager"
    return mode


def possible_mode(agent: Agent, mode: Mode, device: torch.device) -> Mode:
    """The mode asked for, or "eager", with one line that says why, for an agent that declares nothing to compile."""
    mode = resolved(mode, device)
    if mode != "eager" and compiled_methods(agent) is None:
        notice(f"{type(agent).__name__} declares no compiled_methods, so its updates run eagerly.")
        return "eager"
    return mode


def updater(
    agent: Agent,
    *,
    half: Half = "update",
    precision: Precision,
    mode: Mode,
    device: torch.device,
) -> Callable[[Any], UpdateResult]:
    """`agent.update` (or a half of it) in the precision asked for, compiled unless `mode` is eager."""
    if possible_mode(agent, mode, device) != "eager":
        torch._dynamo.reset()  # code that other runs of this process compiled counts against a limit
        for name in compiled_methods(agent) or ():
            setattr(agent, name, Compiled(getattr(agent, name), name))
        if device.type == "cuda":  # a CPU is faster with torch's own optimisers
            compile_steps(agent)
    update: Callable[[Any], UpdateResult] = getattr(agent, half)
    # Of the process, so an earlier run's choice must not stay. On a CPU "high" may mean fewer bits, too.
    tf32 = precision == "tf32" and device.type == "cuda"
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    if precision != "bf16":
        return update

    def in_bf16(batch: Any) -> UpdateResult:
        # No cache of cast weights: an update changes weights and reads them again inside this context.
        with torch.autocast(device.type, dtype=torch.bfloat16, cache_enabled=False):
            return update(batch)

    return in_bf16


def compile_steps(agent: Agent) -> None:
    """What follows the gradients (their norm, Adam, projections, schedules, targets) as a few kernels instead of a
    hundred."""
    steppers = {
        name: value for name, value in vars(agent).items() if isinstance(value, LocalStepper)
    }
    for name, stepper in steppers.items():
        if stepper.compilable:
            _ = stepper.optimizer  # made here, and not while it is being compiled
            plain, own = stepper.apply_in_plain_operations, partial(type(stepper).apply, stepper)
            setattr(stepper, "apply", Compiled(plain, f"{name}.apply", instead=own))  # noqa: B010
    if all(stepper.compilable for stepper in steppers.values()):
        for name in compiled_steps(agent):
            step = getattr(agent, name)
            setattr(agent, name, Compiled(step, name, instead=step))


class Compiled:
    """A function through torch.compile; where compilation fails, after one warning, the function itself or `instead`.

    A function that changes tensors has an `instead` and is compiled as a whole or not at all: what was compiled of it
    must not have run when the rest fails.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        instead: Callable[..., Any] | None = None,
    ):
        self.eager, self.name = instead or function, name
        torch._dynamo.config.recompile_limit = max(
            torch._dynamo.config.recompile_limit, MOST_SHAPES
        )
        whole = instead is not None
        self.function = torch.compile(function, dynamic=False, fullgraph=whole, options=OPTIONS)

    def __call__(self, *args: Any) -> Any:
        try:
            return self.function(*args)
        except Exception as error:
            if self.function is self.eager or not _is_compiler_error(error):
                raise
            reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
            notice(f"{self.name} runs uncompiled: {reason}")
            self.function = self.eager
            return self.eager(*args)


def _is_compiler_error(error: BaseException) -> bool:
    """Did the compiler fail? An error of the function itself is wrapped while it is traced, and recurs uncompiled."""
    if type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
        return True
    frames = (frame.f_globals.get("__name__") for frame, _ in walk_tb(error.__traceback__))
    return "torch._dynamo.convert_frame" in frames  # it was compiling, not running


def notice(message: str) -> None:
    warnings.warn(message, Notice, stacklevel=3)
